"""The renewal estimator: what a recorded draft says about other rules and shorter drafts.

The target scored every drafted position on the draft's own prefix, so within a step any rule's outcome is known. A
policy that drafts k' < k tokens would have met the same text in pieces: its first step drafts positions 0..k'-1; if all
are kept and the bonus token is the one that the recording drafted at position k', its next step starts at position k'+1
of the same recorded draft. Truncating every recorded draft instead forgets those good continuations and comes out too
low.

A piece that runs into the end of its recorded draft is right-censored. The chance of reaching each position is
therefore the product-limit estimate (Kaplan and Meier, J. Am. Stat. Assoc. 53, 1958) over all pieces, and committed
tokens per step are 1 + its sum. Draft lengths that depend on evidence are censored, and estimated, likewise.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Pieces", "product_limit", "walk_fixed", "walk_varied"]

Mask = NDArray[np.bool_]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Pieces:
    """Counts over pieces, by request; each piece is one step of the policy in question.

    Attributes:
        at_risk: pieces that reached draft position c with a known outcome there, [R, k].
        passed: those whose token at c was kept, [R, k].
        drafted: pieces by draft length 0..k, [R, k + 1].
        open_end: pieces of which only the least draft length 0..k is known: they wanted all that was recorded, and may
            have wanted more, [R, k + 1].
        lossy: kept tokens that the lossless test would have rejected, [R].
        given_up: sum over those of the log-probability lost against the target's first choice, in nats, [R].
    """

    at_risk: Ints
    passed: Ints
    drafted: Ints
    open_end: Ints
    lossy: Ints
    given_up: NDArray[np.float64]

    def stepped(self) -> Mask:
        """Requests that took steps, [R]."""
        stepped: Mask = (self.drafted + self.open_end).sum(axis=1) > 0
        return stepped

    def reach(self, weights: NDArray[Any] | None = None) -> NDArray[np.float64]:
        """Chance of keeping at least c + 1 tokens, [..., k], over requests with weights [..., R], by default all 1."""
        w = np.ones(len(self.lossy)) if weights is None else weights
        return product_limit(w @ self.at_risk, w @ self.passed)

    def lengths(self, weights: NDArray[Any] | None = None) -> NDArray[np.float64]:
        """Share of steps that draft 0..k tokens, [..., k + 1], over requests with weights as in `reach`."""
        w = np.ones(len(self.lossy)) if weights is None else weights
        known, more = _at_least(w @ self.drafted), _at_least(w @ self.open_end)[..., 1:]
        beyond = product_limit(known[..., :-1] + more, known[..., 1:] + more)
        return -np.diff(beyond, axis=-1, prepend=1.0, append=0.0)


def product_limit(at_risk: NDArray[Any], passed: NDArray[Any]) -> NDArray[np.float64]:
    """Cumulative product of passed / at_risk along the last axis; 0 from the first position that nothing reached."""
    ratio = np.divide(passed, at_risk, out=np.zeros(at_risk.shape), where=at_risk > 0)
    chance: NDArray[np.float64] = ratio.cumprod(axis=-1)
    return chance


def _at_least(counts: NDArray[Any]) -> NDArray[Any]:
    """Sums from each place of the last axis to its end."""
    return counts[..., ::-1].cumsum(axis=-1)[..., ::-1]


class _Tally:
    """Sums over the steps of each request, which should lie next to each other, for speed only."""

    def __init__(self, request: NDArray[np.int32], n_requests: int, k: int) -> None:
        first = np.flatnonzero(request[1:] != request[:-1]) + 1
        self._starts = np.concatenate([[0], first]) if len(request) else first
        self._request = request
        self.at_risk, self.passed = np.zeros((2, n_requests, k), np.int64)
        self.drafted, self.open_end = np.zeros((2, n_requests, k + 1), np.int64)
        self._lossy, self._given_up = np.zeros(n_requests, np.int64), np.zeros(n_requests)

    def add(self, to: Ints, steps: Mask) -> None:
        """Count `steps` [S] in an array [R]."""
        if len(to) == 1:
            to += np.count_nonzero(steps)
        elif len(self._starts):
            counts = np.add.reduceat(steps, self._starts, dtype=np.int64)
            np.add.at(to, self._request[self._starts], counts)

    def add_at(self, to: Ints, steps: Mask, column: NDArray[np.int16]) -> None:
        """Count `steps` [S] in an array [R, m], each in its own column."""
        at = np.flatnonzero(steps)
        cell = column[at] if len(to) == 1 else self._request[at] * np.int64(to.shape[1]) + column[at]
        to += np.bincount(cell, minlength=to.size).reshape(to.shape)

    def add_lossy(self, steps: Mask, margin: NDArray[np.float32]) -> None:
        """Count lossy tokens at `steps` [S], which are few, and what they gave up."""
        at = np.flatnonzero(steps)
        request, n = self._request[at], len(self._lossy)
        self._lossy += np.bincount(request, minlength=n)
        self._given_up += np.bincount(request, margin[at], n)

    def pieces(self) -> Pieces:
        """The sums so far."""
        return Pieces(self.at_risk, self.passed, self.drafted, self.open_end, self._lossy, self._given_up)


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

    A step without a recorded draft is a piece of length 0 that fails at position 0, under any policy.

    Args:
        kept: the rule's outcome at each recorded position [K, S], whatever came before it; `exact` itself for a rule
            that is lossless.
        exact: the lossless test's outcome [K, S].
        margin: nats below the target's first choice [K, S].
        drafted_n: recorded draft lengths [S].
        request: request of each step [S].
        n_requests: R; requests without steps are rows of zeros.
        k: draft length, 1..K.
    """
    tally = _Tally(request, n_requests, k)
    lossy = kept is not exact
    alive = drafted_n > 0
    tally.add(tally.drafted[:, 0], ~alive)
    tally.add(tally.at_risk[:, 0], ~alive)
    for j in range(len(kept)):
        at = j % (k + 1)
        alive = alive & (drafted_n > j)
        if at == k:  # the bonus token: the target's own, equal to the recorded draft or not
            alive &= exact[j]
            continue
        if at == 0:
            tally.add(tally.drafted[:, k], alive)
        tally.add(tally.at_risk[:, at], alive)
        alive &= kept[j]
        tally.add(tally.passed[:, at], alive)
        if lossy:
            tally.add_lossy(alive & ~exact[j], margin[j])
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

    A piece of n < k tokens, all kept, fails at position n if that position was recorded, and then its bonus token may
    lead to the next piece. A piece that starts inside a recorded draft and asks for exactly what is left of it counts
    as `open_end`; the first piece of a step had the whole draft to choose from.

    Args:
        length: draft length, 0..k, of a piece that starts at recorded position j, [K + 1, S]; 0 at j = 0 of a step
            without a draft; other arguments as in `walk_fixed`.
    """
    tally = _Tally(request, n_requests, k)
    lossy = kept is not exact
    alive = np.ones(len(drafted_n), bool)
    at, end = np.zeros((2, len(drafted_n)), np.int16)
    for j in range(len(kept) + 1):
        known = drafted_n > j
        alive &= known | (j == 0)  # a first piece always counts; a later one only where the recorded draft goes on
        starts = alive & (at == 0)
        np.copyto(end, length[j], where=starts, casting="same_kind")
        is_open = starts & (end < k) & (end == drafted_n - j) & (j > 0)
        tally.add_at(tally.open_end, is_open, end)
        tally.add_at(tally.drafted, starts & ~is_open, end)
        tally.add_at(tally.at_risk, alive & (at < k), at)
        if j == len(kept):
            break
        ends = alive & (at == end)
        passes = alive & ~ends & known & kept[j]
        tally.add_at(tally.passed, passes, at)
        if lossy:
            tally.add_lossy(passes & ~exact[j], margin[j])
        at = (at + 1) * passes
        alive = passes | (ends & known & exact[j])
    return tally.pieces()
