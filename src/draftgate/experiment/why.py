"""Sentences that say why an arm wins or loses, from measured and replayed figures."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from draftgate.cost.steps import StepCost
from draftgate.policy.length import Fixed
from draftgate.policy.policy import Policy

__all__ = ["across_workloads", "mechanism", "preset_sentence"]

_PAYS = 0.02  # closer to 1 than this, a length neither pays nor loses


def _relative_cost(cost: StepCost, k: int) -> float:
    """Seconds of verifying k + 1 tokens over those of one."""
    one, more = cost.curve(1).at(np.array([1, k + 1]))
    return float(more / one)


def mechanism(policy: Policy, figures: Mapping[str, Any], cost: StepCost) -> str | None:
    """What an arm's steps commit and what they cost; None when it did not run or does not draft."""
    length, coverage = figures["acceptance_length"], figures["coverage"]
    if length is None or not policy.drafts:
        return None
    said = f"it commits {length:.2f} tokens a step"
    if isinstance(policy.length, Fixed):
        k = policy.length.k
        return f"{said}, and verifying {k + 1} tokens costs {_relative_cost(cost, k):.1f}x one"
    return f"{said}, drafting in {coverage:.0%} of them"


def preset_sentence(
    figures: Sequence[Mapping[str, Any]], rejected: Mapping[str, Mapping[str, Any]], greedy: bool
) -> str | None:
    """How the source article's thresholds did, and how much they reject of what exact match keeps.

    Args:
        figures: all arms of a workload.
        rejected: by preset, "share" of the `n` recorded tokens that the lossless test keeps and the preset rejects.
    """
    ran = [f for f in figures if f["speedup"]["estimate"] is not None and f["speedup"]["how"] == "measured"]
    presets = [f for f in ran if f["origin"] == "source preset"]
    lossless = [f for f in ran if f["lossless"]]
    if not presets or not lossless:
        return None
    best = max(lossless, key=lambda f: f["speedup"]["estimate"])
    said = []
    for f in presets:
        share, n = rejected[f["arm"]]["share"], rejected[f["arm"]]["n"]
        lost = "" if share is None else f" and rejects {share:.0%} of the {n} recorded tokens that exact match keeps"
        said.append(f"{f['arm']} is {f['speedup']['estimate']:.2f}x{lost}")
    said.append(f"the best lossless arm, {best['arm']}, is {best['speedup']['estimate']:.2f}x")
    if greedy:
        said.append("decoding greedily, tau >= .5 can only keep the target's own choice, so nothing is gained for it")
    return f"source presets: {'; '.join(said)}"


def across_workloads(results: Sequence[Mapping[str, Any]], cost: StepCost) -> dict[str, Any]:
    """One fixed draft length for everything against the recommended arms, on a mix of equal parts of all workloads.

    Equal parts mean equal time without speculation, so that speedups combine harmonically. Where a workload's recording
    says nothing of a length, none is found for all.
    """
    by_k: dict[int, list[tuple[str, float]]] = {}
    for result in results:
        for row in result["fixed"]:
            by_k.setdefault(row["k"], []).append((result["name"], row["speedup"]))
    recommended = [_recommended_speedup(result) for result in results]
    measured = {"speedup": _mix(recommended), "how": "measured"}
    mixes = {k: _mix([speedup for _, speedup in rows]) for k, rows in by_k.items() if len(rows) == len(results)}
    if not mixes:
        best = f"the recommended arms are {_mix(recommended):.2f}x (measured)"
        why = f"one fixed length for all: none was recorded on every workload; {best}"
        return {"fixed": {"k": None, "speedup": None, "how": "replayed"}, "recommended": measured, "why": why}
    k = max(mixes, key=lambda k: mixes[k])
    pays = [f"{name} ({s:.2f}x)" for name, s in by_k[k] if s > 1 + _PAYS]
    loses = [f"{name} ({s:.2f}x)" for name, s in by_k[k] if s < 1 - _PAYS]
    return {
        "fixed": {"k": k, "speedup": mixes[k], "how": "replayed"},
        "recommended": measured,
        "why": f"one fixed length for all: k = {k} pays on {', '.join(pays) or 'nothing'}; loses on "
        f"{', '.join(loses) or 'nothing'} (replayed): verifying {k + 1} tokens costs {_relative_cost(cost, k):.1f}x "
        f"one. On equal parts it is {mixes[k]:.2f}x, the recommended arms are {_mix(recommended):.2f}x (measured)",
    }


def _mix(speedups: Sequence[float]) -> float:
    return len(speedups) / sum(1 / s for s in speedups)


def _recommended_speedup(result: Mapping[str, Any]) -> float:
    arm = next(f for f in result["arms"] if f["arm"] == result["recommended"])
    speedup: float = arm["speedup"]["estimate"]
    return speedup
