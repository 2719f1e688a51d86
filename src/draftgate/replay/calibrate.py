"""Calibrating draft length: how far evidence can be trusted, and what a step's time is worth."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from draftgate.cost.steps import StepCost
from draftgate.errors import require
from draftgate.policy.length import Calibration, Goodput
from draftgate.policy.policy import Policy
from draftgate.replay.accept import Replayable
from draftgate.replay.predict import predict
from draftgate.replay.trajectory import Trajectory, walk

__all__ = ["calibrate", "examples", "examples_of_trace", "fit_goodput", "fit_goodput_trace", "isotonic"]

_PRIOR = 2.0  # tokens of pooled acceptance added to each level: no bin of three may promise certainty
_ROUNDS = 8

Table = tuple[tuple[float, ...], tuple[float, ...]]


def examples(trajectories: Sequence[Trajectory]) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.uint8]]:
    """Proposed tokens whose predecessors in the draft were all right: evidence, right or not, category, all [N]."""
    evidence, right, category = [np.zeros(0)], [np.zeros(0, bool)], [np.zeros(0, np.uint8)]
    for t in trajectories:
        position = np.arange(t.category.shape[1])
        reached = (position <= t.confirmed[:, None]) & (position < t.available[:, None])
        evidence.append(t.evidence[reached])
        right.append((position < t.confirmed[:, None])[reached])
        category.append(t.category[reached])
    return np.concatenate(evidence), np.concatenate(right), np.concatenate(category)


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


def calibrate(evidence: NDArray[np.float64], right: NDArray[np.bool_]) -> Calibration:
    """A calibration of one pooled group; without examples nothing is ever expected to be kept."""
    return Calibration({"*": isotonic(evidence, right) if len(right) else ((0.0,), (0.0,))})


def fit_goodput(
    trajectories: Sequence[Trajectory], cost: StepCost, most: int, calibration: Calibration | None = None
) -> Goodput:
    """A goodput draft length for lookup drafts at batch 1, calibrated on trajectories.

    The rate that prices a step's time is the one the policy itself attains, at least that of no speculation.
    """
    if calibration is None:
        evidence, right, _ = examples(trajectories)
        calibration = calibrate(evidence, right)

    def rate_of(length: Goodput) -> float:
        walked = [walk(t, length) for t in trajectories if len(t.match)]
        seconds = sum(float(cost.step_s(w.drafted).sum()) for w in walked)
        return sum(int(w.committed.sum()) for w in walked) / seconds if seconds else 0.0

    return _priced(calibration, cost, most, rate_of)


def _priced(calibration: Calibration, cost: StepCost, most: int, rate_of: Callable[[Goodput], float]) -> Goodput:
    """Iterate the rate that prices time to the one the policy attains (Dinkelbach 1967).

    Returns:
        The fastest length seen; one that expects nothing to be kept if no other was faster than no speculation.
    """
    curve_s = cost.curve(1).at(np.arange(1, most + 2)) + cost.overhead_s
    rate = 1 / float(curve_s[0])
    never = Goodput(
        most, calibrate(np.zeros(0), np.zeros(0, bool)), {1: tuple(curve_s.tolist())}, {1: rate}, cost.draft_s
    )
    best, length = never, replace(never, calibration=calibration)
    for _ in range(_ROUNDS):
        attained = rate_of(length)
        if attained >= rate:
            best, rate = length, attained
        if rate / length.rate_tok_s[1] - 1 < 1e-3:
            break
        length = replace(length, rate_tok_s={1: rate})
    return best


def examples_of_trace(replayable: Replayable) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """As `examples`, from the recorded drafts themselves: for draft models."""
    columns = replayable.columns
    kept = np.logical_and.accumulate(replayable.exact & columns.valid, axis=0)
    reached = columns.valid.copy()
    reached[1:] &= kept[:-1]
    return columns.evidence[reached].astype(np.float64), kept[reached]


def fit_goodput_trace(replayable: Replayable, cost: StepCost, most: int) -> Goodput:
    """A goodput draft length for a draft model at batch 1, calibrated on recorded drafts and priced by replay."""
    calibration = calibrate(*examples_of_trace(replayable))

    def rate_of(length: Goodput) -> float:
        return predict(replayable, Policy("goodput", "lossless", length=length), cost, 0).tokens_per_s or 0.0

    return _priced(calibration, cost, most, rate_of)
