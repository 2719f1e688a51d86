"""Calibrating draft length: how far evidence can be trusted, and what a step's time is worth."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from draftgate.cost.steps import StepCost
from draftgate.errors import require
from draftgate.policy.category import GROUPS, Category
from draftgate.policy.length import Calibration, Goodput
from draftgate.policy.policy import Policy
from draftgate.replay.accept import Replayable
from draftgate.replay.predict import predict
from draftgate.replay.trajectory import Trajectory, walk

__all__ = ["Examples", "calibrate", "examples", "examples_of_trace", "fit_goodput", "fit_goodput_trace", "isotonic"]

_PRIOR = 2.0  # tokens of pooled acceptance added to each level: no bin of three may promise certainty
_ROUNDS = 8
_LEAST_EXAMPLES = 60  # of a token group, before it gets a table of its own
_FOLDS = 4
_CLEARLY = 0.98  # groups must surprise less than the pool by this factor

Table = tuple[tuple[float, ...], tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Examples:
    """Proposed tokens whose predecessors in the draft were all right, [N].

    Attributes:
        evidence: what the drafter knew of each.
        right: whether it was kept.
        request: number of its request.
        category: token category; None when it is not known.
    """

    evidence: NDArray[np.float64]
    right: NDArray[np.bool_]
    request: NDArray[np.int64]
    category: NDArray[np.uint8] | None = None

    def of(self, mask: NDArray[np.bool_]) -> "Examples":
        """Those that a mask [N] picks."""
        category = None if self.category is None else self.category[mask]
        return Examples(self.evidence[mask], self.right[mask], self.request[mask], category)


def examples(trajectories: Sequence[Trajectory]) -> Examples:
    """Of lookup drafts at every output position; categories are not known there."""
    evidence, right, request = [np.zeros(0)], [np.zeros(0, bool)], [np.zeros(0, np.int64)]
    for i, t in enumerate(trajectories):
        position = np.arange(t.most)
        reached = (position <= t.confirmed[:, None]) & (position < t.available[:, None])
        evidence.append(t.evidence[reached])
        right.append((position < t.confirmed[:, None])[reached])
        request.append(np.full(int(reached.sum()), i))
    return Examples(np.concatenate(evidence), np.concatenate(right), np.concatenate(request))


def examples_of_trace(replayable: Replayable) -> Examples:
    """Of the recorded drafts themselves, with categories."""
    columns = replayable.columns
    kept = np.logical_and.accumulate(replayable.exact & columns.valid, axis=0)
    reached = columns.valid.copy()
    reached[1:] &= kept[:-1]
    request = np.broadcast_to(columns.request, reached.shape)[reached].astype(np.int64)
    return Examples(columns.evidence[reached].astype(np.float64), kept[reached], request, columns.category[reached])


def isotonic(evidence: NDArray[np.float64], right: NDArray[np.bool_]) -> Table:
    """Non-decreasing chance by evidence: pool-adjacent-violators, each level shrunk towards the mean.

    Args:
        evidence: of each example, [N], N >= 1.
        right: whether it was kept, [N].

    Returns:
        (edges, chance): the chance from each edge up to the next.
    """
    optimize = require("scipy.optimize", "tune")
    edges, where = np.unique(evidence, return_inverse=True)
    n = np.bincount(where).astype(float)
    hits = np.bincount(where, weights=right)
    level = optimize.isotonic_regression(hits / n, weights=n).x
    starts = np.flatnonzero(np.diff(level, prepend=-1.0))
    n, hits = np.add.reduceat(n, starts), np.add.reduceat(hits, starts)
    shrunk = (hits + _PRIOR * right.mean()) / (n + _PRIOR)
    chance = optimize.isotonic_regression(shrunk, weights=n).x
    return tuple(edges[starts].tolist()), tuple(chance.tolist())


def calibrate(known: Examples) -> Calibration:
    """Chance by evidence, and by token group as well where that tells unseen requests better.

    Groups pay in structured text, where a bracket is as good as certain and a value is not; on little data of free text
    they only fit noise (docs/log.md). Without examples nothing is ever expected to be kept.
    """
    if not len(known.right):
        return Calibration({"*": ((0.0,), (0.0,))})
    pooled = _pooled(known)
    if known.category is None or len(grouped := _grouped(known).groups) < 2:
        return pooled
    return Calibration(grouped) if _surprise(_grouped, known) < _CLEARLY * _surprise(_pooled, known) else pooled


def _pooled(known: Examples) -> Calibration:
    return Calibration({"*": isotonic(known.evidence, known.right)})


def _grouped(known: Examples) -> Calibration:
    """A table for every group with enough examples, beside the pooled one."""
    group = np.array([GROUPS[c] for c in Category])[known.category]
    rows = {name: group == name for name in sorted(set(GROUPS.values()))}
    own = {n: isotonic(known.evidence[m], known.right[m]) for n, m in rows.items() if m.sum() >= _LEAST_EXAMPLES}
    return Calibration({**_pooled(known).groups, **own})


def _surprise(fit: Callable[[Examples], Calibration], known: Examples) -> float:
    """Mean negative log-likelihood on requests that were left out of the fit; infinite when there is only one."""
    total, fold = 0.0, known.request % _FOLDS
    for left_out in np.unique(fold):
        seen, unseen = known.of(fold != left_out), known.of(fold == left_out)
        if not len(seen.right):
            return np.inf
        category = np.zeros(len(unseen.right), np.uint8) if unseen.category is None else unseen.category
        chance = fit(seen).chance(unseen.evidence, category).clip(1e-3, 1 - 1e-3)
        total -= float(np.log(np.where(unseen.right, chance, 1 - chance)).sum())
    return total / len(known.right)


def fit_goodput(
    trajectories: Sequence[Trajectory], cost: StepCost, most: int, calibration: Calibration | None = None
) -> Goodput:
    """A goodput draft length for lookup drafts at batch 1, calibrated on trajectories.

    The rate that prices a step's time is the one the policy itself attains, at least that of no speculation.
    """

    def rate_of(length: Goodput) -> float:
        walked = [walk(t, length) for t in trajectories if len(t.match)]
        seconds = sum(float(cost.step_s(w.drafted).sum()) for w in walked)
        return sum(int(w.committed.sum()) for w in walked) / seconds if seconds else 0.0

    return _priced(calibration or calibrate(examples(trajectories)), cost, most, rate_of)


def fit_goodput_trace(
    replayable: Replayable, cost: StepCost, most: int, calibration: Calibration | None = None
) -> Goodput:
    """A goodput draft length at batch 1, calibrated on recorded drafts and priced by replay."""

    def rate_of(length: Goodput) -> float:
        return predict(replayable, Policy("goodput", "lossless", length=length), cost, 0).tokens_per_s or 0.0

    return _priced(calibration or calibrate(examples_of_trace(replayable)), cost, most, rate_of)


def _priced(calibration: Calibration, cost: StepCost, most: int, rate_of: Callable[[Goodput], float]) -> Goodput:
    """Iterate the rate that prices time to the one the policy attains (Dinkelbach 1967).

    Returns:
        The fastest length seen; one that expects nothing to be kept if no other was faster than no speculation.
    """
    curve_s = cost.curve(1).at(np.arange(1, most + 2)) + cost.overhead_s
    rate = 1 / float(curve_s[0])
    never = Goodput(most, Calibration({"*": ((0.0,), (0.0,))}), {1: tuple(curve_s.tolist())}, {1: rate}, cost.draft_s)
    best, length = never, replace(never, calibration=calibration)
    for _ in range(_ROUNDS):
        attained = rate_of(length)
        if attained >= rate:
            best, rate = length, attained
        if rate / length.rate_tok_s[1] - 1 < 1e-3:
            break
        length = replace(length, rate_tok_s={1: rate})
    return best
