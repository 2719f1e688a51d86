"""Calibrating draft length: how far evidence can be trusted, and what a step's time is worth."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from draftgate.cost.steps import StepCost
from draftgate.errors import require
from draftgate.policy.length import Calibration, Goodput
from draftgate.replay.trajectory import Trajectory, walk

__all__ = ["calibrate", "examples", "fit_goodput", "isotonic"]

_PRIOR = 2.0  # tokens of pooled acceptance added to each level: no bin of three may promise certainty
_ROUNDS = 8

Table = tuple[tuple[float, ...], tuple[float, ...]]


def examples(trajectories: Sequence[Trajectory]) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.uint8]]:
    """Proposed tokens whose predecessors in the draft were all right: evidence, whether right, and category."""
    evidence, right, category = [], [], []
    for t in trajectories:
        position = np.arange(t.category.shape[1])
        reached = (position <= t.confirmed[:, None]) & (position < t.available[:, None])
        evidence.append(t.evidence[reached])
        right.append((position < t.confirmed[:, None])[reached])
        category.append(t.category[reached])
    return np.concatenate(evidence), np.concatenate(right), np.concatenate(category)


def isotonic(evidence: NDArray[np.float64], right: NDArray[np.bool_]) -> Table:
    """Non-decreasing chance by evidence: pool-adjacent-violators, each level shrunk towards the mean.

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

    The rate that prices a step's time is the one the policy itself attains, found by iteration (Dinkelbach 1967); it
    starts at the rate of no speculation and does not fall.
    """
    if calibration is None:
        evidence, right, _ = examples(trajectories)
        calibration = calibrate(evidence, right)
    verify_s = tuple(cost.step_s(np.arange(most + 1)).tolist())
    length = Goodput(most, calibration, {1: verify_s}, {1: 1 / verify_s[0]})
    for _ in range(_ROUNDS):
        walked = [walk(t, length) for t in trajectories if len(t.match)]
        seconds = sum(float(cost.step_s(w.drafted).sum()) for w in walked)
        tokens = sum(int(w.committed.sum()) for w in walked)
        rate = max(1 / verify_s[0], tokens / seconds) if seconds else 1 / verify_s[0]
        if abs(rate / length.rate_tok_s[1] - 1) < 1e-3:
            break
        length = replace(length, rate_tok_s={1: rate})
    return length
