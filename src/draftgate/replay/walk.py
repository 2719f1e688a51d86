"""The renewal estimator: what a recorded draft says about other rules and shorter drafts.

The target scored every drafted position on the draft's own prefix, so within a step any rule's outcome is known. A policy
that drafts k' < k tokens would have met the same text in pieces: its first step drafts positions 0..k'-1; if all are kept
and the bonus token is the one that the recording drafted at position k', its next step starts at position k'+1 of the same
recorded draft. Truncating every recorded draft instead forgets those good continuations and comes out too low.

A piece that runs into the end of its recorded draft is right-censored. The chance of reaching each position is therefore
the product-limit estimate (Kaplan and Meier 1958) over all pieces, and committed tokens per step are 1 + its sum.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Pieces", "walk_fixed", "walk_varied"]

Mask = NDArray[np.bool_]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Pieces:
    """Counts over pieces, by request; each piece is one step of the policy in question.

    Attributes:
        at_risk: pieces that reached draft position c with a known outcome there, [R, k].
        passed: those whose token at c was kept, [R, k].
        drafted: pieces by draft length 0..k, [R, k + 1].
        lossy: kept tokens that the lossless test would have rejected, [R].
        given_up: sum over those of the log-probability lost against the target's first choice, in nats, [R].
    """

    at_risk: Ints
    passed: Ints
    drafted: Ints
    lossy: Ints
    given_up: NDArray[np.float64]

    def reach(self) -> NDArray[np.float64]:
        """Chance of keeping at least c + 1 tokens, [k], over all requests."""
        return product_limit(self.at_risk.sum(axis=0), self.passed.sum(axis=0))


def product_limit(at_risk: NDArray[Any], passed: NDArray[Any]) -> NDArray[np.float64]:
    """Cumulative product of passed / at_risk along the last axis; 0 from the first position nobody reached."""
    ratio = np.divide(passed, at_risk, out=np.zeros(at_risk.shape), where=at_risk > 0)
    return ratio.cumprod(axis=-1)


class _Tally:
    """Sums over the steps of each request, which lie next to each other."""

    def __init__(self, request: NDArray[np.int32], n_requests: int, k: int) -> None:
        self._starts = np.flatnonzero(np.diff(request, prepend=-1))
        self._rows = request[self._starts]
        self.at_risk, self.passed = np.zeros((2, n_requests, k), np.int64)
        self.drafted = np.zeros((n_requests, k + 1), np.int64)
        self.lossy = np.zeros(n_requests, np.int64)
        self.given_up = np.zeros(n_requests)

    def add(self, to: NDArray[Any], values: NDArray[Any]) -> None:
        """Add per-step values [S] to a per-request array [R]."""
        if len(self._starts):
            dtype = np.float64 if to.dtype.kind == "f" else np.int64
            np.add.at(to, self._rows, np.add.reduceat(values, self._starts, dtype=dtype))

    def pieces(self) -> Pieces:
        """The sums so far."""
        return Pieces(self.at_risk, self.passed, self.drafted, self.lossy, self.given_up)


def walk_fixed(
    kept: Mask,
    exact: Mask,
    margin: NDArray[np.float32],
    drafted_n: NDArray[np.int32],
    request: NDArray[np.int32],
    n_requests: int,
    k: int,
) -> Pieces:
    """Pieces of drafts of exactly k tokens.

    Args:
        kept: the rule's outcome at each recorded position [K, S], whatever came before it.
        exact: the lossless test's outcome [K, S].
        margin: nats below the target's first choice [K, S].
        drafted_n: recorded draft lengths [S]; 0 is a step without a draft in any policy.
        request: request of each step [S], not decreasing.
        k: draft length, 1..K.
    """
    tally = _Tally(request, n_requests, k)
    alive = drafted_n > 0
    tally.add(tally.drafted[:, 0], ~alive)
    tally.add(tally.at_risk[:, 0], ~alive)
    for j in range(len(kept)):
        at = j % (k + 1)
        alive = alive & (drafted_n > j)
        if at == k:  # the bonus token: the target's own, equal to the recorded draft or not
            alive = alive & exact[j]
            continue
        if at == 0:
            tally.add(tally.drafted[:, k], alive)
        tally.add(tally.at_risk[:, at], alive)
        alive = alive & kept[j]
        tally.add(tally.passed[:, at], alive)
        lossy = alive & ~exact[j]
        if lossy.any():
            tally.add(tally.lossy, lossy)
            tally.add(tally.given_up, margin[j] * lossy)
    return tally.pieces()


def walk_varied(
    kept: Mask,
    exact: Mask,
    margin: NDArray[np.float32],
    drafted_n: NDArray[np.int32],
    request: NDArray[np.int32],
    n_requests: int,
    length: NDArray[Any],
    k: int,
) -> Pieces:
    """Pieces of drafts whose length depends on where they start.

    Args:
        length: draft length, 0..k, of a piece that starts at recorded position j, [K + 1, S]; other arguments as in
            `walk_fixed`.
    """
    tally = _Tally(request, n_requests, k)
    alive = np.ones(len(drafted_n), bool)
    at, end = np.zeros((2, len(drafted_n)), np.int64)
    for j in range(len(kept) + 1):
        starts = alive & (at == 0)
        end[starts] = length[j, starts]
        known = drafted_n > j
        for n in range(k + 1):
            # A first piece always counts; a later one only where the recorded draft goes on.
            tally.add(tally.drafted[:, n], starts & (end == n) & (known | (j == 0)))
        ends = alive & (at == end)
        for c in range(k):
            tally.add(tally.at_risk[:, c], ends & (at == c) & (known | (j == 0)))
        if j == len(kept):
            break
        tests = alive & ~ends & known
        passes = tests & kept[j]
        for c in range(k):
            here = tests & (at == c)
            tally.add(tally.at_risk[:, c], here)
            tally.add(tally.passed[:, c], here & kept[j])
        lossy = passes & ~exact[j]
        tally.add(tally.lossy, lossy)
        tally.add(tally.given_up, margin[j] * lossy)
        at = np.where(passes, at + 1, 0)
        alive = passes | (ends & known & exact[j])
    return tally.pieces()
