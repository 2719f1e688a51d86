"""What a recording shows: acceptance by position, category and offset, and how much requests differ."""

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftgate.policy.category import Category
from draftgate.policy.policy import Policy
from draftgate.replay.accept import Replayable
from draftgate.stats.proportion import wilson

__all__ = ["rejected_by", "summarise"]

_OFFSET_BINS = 8


def _share(kept: NDArray[np.bool_] | Any, n: int) -> dict[str, Any]:
    """A proportion with its Wilson interval; None without observations."""
    if n == 0:
        return {"n": 0, "rate": None, "low": None, "high": None}
    hits = int(np.sum(kept))
    low, high = wilson(hits, n)
    return {"n": n, "rate": hits / n, "low": float(low), "high": float(high)}


def summarise(replayable: Replayable) -> dict[str, Any]:
    """Plain values that describe a recording under its lossless rule.

    Positions, categories and offsets count reached tokens only: those whose predecessors in the draft were all kept.
    survival is the share of drafting steps that kept a position, conditional the share of those that reached it.
    """
    columns, exact = replayable.columns, replayable.exact
    kept = np.logical_and.accumulate(exact & columns.valid, axis=0)
    reached = columns.valid.copy()
    reached[1:] &= kept[:-1]
    steps, drafts = columns.shape[1], int((columns.drafted_n > 0).sum())
    drafted = int(columns.drafted_n.sum())
    return {
        "requests": columns.n_requests,
        "steps": steps,
        "drafted": drafted,
        "acceptance_rate": float(columns.accepted.sum() / drafted) if drafted else None,
        "acceptance_length": float(columns.committed.sum() / steps) if steps else None,
        "coverage": drafts / steps if steps else None,
        "positions": [_position(j, kept[j], reached[j], drafts) for j in range(len(kept))],
        "categories": [
            {"category": c.name.lower()} | _share(kept[here], int(here.sum()))
            for c in Category
            if (here := reached & (columns.category == c)).any()
        ],
        "offsets": _by_offset(columns.offset + np.arange(len(kept))[:, None], kept, reached),
        "per_request": _per_request(columns.request, columns.accepted, columns.drafted_n, columns.n_requests),
    }


def rejected_by(replayable: Replayable, policy: Policy) -> dict[str, Any]:
    """Share of the recorded tokens that the lossless test keeps and a policy's rule rejects; None without any."""
    kept = np.logical_and.accumulate(replayable.exact & replayable.columns.valid, axis=0)
    n = int(kept.sum())
    return {"n": n, "share": float((kept & ~replayable.kept(policy)).sum() / n) if n else None}


def _position(j: int, kept: NDArray[np.bool_], reached: NDArray[np.bool_], drafts: int) -> dict[str, Any]:
    survival = _share(kept, drafts)
    return {"position": j, "survival": survival, "conditional": _share(kept, int(reached.sum()))}


def _by_offset(offset: NDArray[Any], kept: NDArray[np.bool_], reached: NDArray[np.bool_]) -> list[dict[str, Any]]:
    """Equally wide bins over the output."""
    if not reached.any():
        return []
    edges = np.linspace(0, int(offset[reached].max()) + 1, _OFFSET_BINS + 1).round().astype(int)
    rows = []
    for low, high in pairwise(edges):
        here = reached & (offset >= low) & (offset < high)
        rows.append({"from": int(low), "to": int(high)} | _share(kept[here], int(here.sum())))
    return rows


def _per_request(
    request: NDArray[np.int32], accepted: NDArray[np.int32], drafted: NDArray[np.int32], n: int
) -> dict[str, Any]:
    """Mean and standard deviation of the requests' own acceptance rates."""
    drafts = np.bincount(request, weights=drafted, minlength=n)
    rates = np.bincount(request, weights=accepted, minlength=n)[drafts > 0] / drafts[drafts > 0]
    spread = float(rates.std(ddof=1)) if len(rates) > 1 else None
    return {"n": len(rates), "mean": float(rates.mean()) if len(rates) else None, "sd": spread}
