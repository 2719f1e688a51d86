"""A finished request as the JSON object that `control.tail` reads, and the shadow of one that ran without drafts."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from draftgate.engines.base import Completion
from draftgate.policy.length import Fixed
from draftgate.replay.trajectory import retrace, walk

__all__ = ["line", "shadow"]


def line(done: Completion, id_: str, policy: str, end_s: float, seconds: float) -> dict[str, Any]:
    """What was done.

    Args:
        seconds: engine seconds of its steps; a step of B sequences counts 1 / B.
    """
    steps = done.steps
    return {
        **_of(done, id_, policy, end_s),
        **_kept([s.drafted_n for s in steps], [s.accepted for s in steps]),
        "committed": sum(s.committed for s in steps),
        "seconds": seconds,
        "latency_s": done.decode_s / done.step_tokens if done.step_tokens else None,
    }


def shadow(
    done: Completion, id_: str, policy: str, end_s: float, most: int, end_tokens: frozenset[int]
) -> dict[str, Any]:
    """What lookup drafts of up to `most` tokens would have come to under a lossless rule, which keeps the text."""
    request = done.request
    trajectory = retrace(request.tokens, done.tokens, request.max_tokens, most, end_tokens)
    walked = walk(trajectory, Fixed(most))
    return {
        **_of(done, id_, policy, end_s),
        **_kept(walked.drafted, walked.accepted),
        "committed": int(walked.committed.sum()),
        "shadow": True,
    }


def _of(done: Completion, id_: str, policy: str, end_s: float) -> dict[str, Any]:
    """What a request and its shadow share."""
    batch = float(np.mean([s.batch for s in done.steps])) if done.steps else None
    return {"id": id_, "workload": done.request.workload, "policy": policy, "end_s": end_s, "batch": batch}


def _kept(drafted_n: ArrayLike, accepted: ArrayLike) -> dict[str, Any]:
    """Counts of steps that drafted and kept so many tokens, in all and by position."""
    drafted, kept = np.array(drafted_n, np.int64), np.array(accepted, np.int64)
    positions = np.arange(drafted.max(initial=0))[:, None]
    return {
        "steps": len(drafted),
        "covered": int((drafted > 0).sum()),
        "drafted": int(drafted.sum()),
        "accepted": int(kept.sum()),
        "kept": (kept > positions).sum(axis=1).tolist(),
        "reached": ((drafted > positions) & (kept >= positions)).sum(axis=1).tolist(),
        "offered": (drafted > positions).sum(axis=1).tolist(),
    }
