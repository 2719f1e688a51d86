"""The renewal estimator: what recorded drafts say about other rules and shorter drafts.

The target scored every drafted position on the draft's own prefix, so within a step any rule's outcome is known. A
policy that drafts k' < k tokens would have met the same text in pieces, each a step of its own: the first drafts
positions 0..k'-1; if all are kept and the bonus token is the one that the recording drafted at position k', the next
piece starts at position k'+1 of the same recorded draft. So it does after a rejection whose replacement is the drafted
token itself, as under thresholds stricter than exact match. Truncating every recorded draft instead forgets these good
continuations and comes out too low.

Tokens per step is then a ratio of sums (renewal-reward): tokens of all pieces over pieces. A piece that runs into the
end of its recorded draft with everything kept counts as the share of a full piece that was seen, tokens over k' + 1.
That keeps long runs of kept tokens at their true weight; counting such pieces whole, or as right-censored in a
product-limit estimate, was tried and is wrong by 2-10% (docs/log.md).
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Drafts", "Pieces", "walk"]

Mask = NDArray[np.bool_]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Drafts:
    """Recorded drafts of S steps, up to K positions each.

    Attributes:
        drafted_n: recorded draft lengths [S]; one below K was cut by the request's room or by an end token, so any
            other policy would have met the same cut.
        ended: the last drafted token was kept and ended the text, so that no bonus token followed [S].
        request: request of each step [S], in 0..n_requests - 1.
        n_requests: R.
    """

    drafted_n: NDArray[np.int32]
    ended: Mask
    request: NDArray[np.int32]
    n_requests: int

    def as_one(self) -> "Drafts":
        """The same drafts, counted as one request."""
        return Drafts(self.drafted_n, self.ended, np.zeros_like(self.request), 1)


@dataclass(frozen=True, slots=True)
class Pieces:
    """Sums over pieces, by request.

    Attributes:
        tokens: committed tokens [R].
        accepted: kept draft tokens [R].
        by_length: pieces by draft length 0..k, cut ones as shares [R, k + 1].
        lossy: kept tokens that the lossless test would have rejected [R].
        given_up: log-probability lost by those against the target's first choice, in nats [R].
    """

    tokens: Floats
    accepted: Floats
    by_length: Floats
    lossy: Floats
    given_up: Floats


def walk(
    kept: Mask,
    exact: Mask,
    margin: NDArray[np.float32],
    drafts: Drafts,
    k: int,
    length: NDArray[Any] | None = None,
    same: Mask | None = None,
) -> Pieces:
    """Walk recorded drafts in the pieces of another policy.

    Args:
        kept: the rule's outcome at each recorded position [K, S], whatever came before it; `exact` itself for a
            lossless rule.
        exact: the lossless test's outcome [K, S].
        margin: nats below the target's first choice [K, S].
        k: longest draft, 0..K.
        length: draft length of a piece that starts at each recorded position [K + 1, S]; None drafts k, or what the
            recording had.
        same: positions whose replacement after a rejection would be the drafted token itself [K, S]; None for a rule
            that keeps all of `exact`, where there are none.
    """
    if length is None and same is None and k:
        return _walk_runs(kept, exact, margin, drafts, k)
    length = np.full((len(kept) + 1, len(drafts.drafted_n)), k) if length is None else length
    return _walk_steps(kept, exact, margin, drafts, k, length, np.zeros_like(exact) if same is None else same)


def _walk_runs(kept: Mask, exact: Mask, margin: NDArray[np.float32], drafts: Drafts, k: int) -> Pieces:
    """Pieces of equal length that end at the first miss: they depend only on how many positions come before it."""
    most, steps = kept.shape
    alive = np.ones(steps, bool)
    run = np.zeros(steps, np.int64)
    lossy, given_up = np.zeros((2, drafts.n_requests))
    for j in range(most):
        alive &= drafts.drafted_n > j
        alive &= exact[j] if j % (k + 1) == k else kept[j]  # a bonus token is the target's own
        run += alive
        if kept is not exact and j % (k + 1) < k:
            _count_lossy(alive & ~exact[j], margin[j], drafts.request, lossy, given_up)
    table = _run_table(most, k)
    cell = (run * (most + 1) + drafts.drafted_n) * 2 + (drafts.ended & (run == drafts.drafted_n))
    size = len(table)
    counts = np.bincount(drafts.request * size + cell, minlength=drafts.n_requests * size)
    sums = counts.reshape(drafts.n_requests, size) @ table
    return Pieces(sums[:, 0], sums[:, 1], sums[:, 2:], lossy, given_up)


@lru_cache(maxsize=256)
def _run_table(most: int, k: int) -> Floats:
    """[run x drafted x ended, 2 + k + 1]: tokens, accepted tokens and pieces by length of one recorded draft."""
    rows = [_run_pieces(run, n, bool(e), most, k) for run in range(most + 1) for n in range(most + 1) for e in (0, 1)]
    return np.array(rows)


def _run_pieces(run: int, n: int, ended: bool, most: int, k: int) -> list[float]:
    """The pieces of a recorded draft of n tokens whose first miss is at position `run` (n when there is none)."""
    tokens = accepted = 0.0
    by_length = [0.0] * (k + 1)
    start = 0
    while start <= run:
        kept = min(k, run - start)
        cut = kept < k and run == n  # it ran into the end of the draft: all known positions are kept
        if ended and start + kept == n and start + kept > 0:
            if kept:  # the text ended with a drafted token
                tokens, accepted = tokens + kept, accepted + kept
                by_length[kept] += 1
            break
        share = (kept + 1) / (k + 1) if cut and n == most else 1.0
        tokens, accepted = tokens + kept + 1, accepted + kept
        by_length[kept if cut and n < most else k] += share
        if cut or start + kept >= n or kept < k:
            break
        start += k + 1
    return [tokens, accepted, *by_length]


def _count_lossy(
    steps: Mask, margin: NDArray[np.float32], request: NDArray[np.int32], lossy: Floats, given_up: Floats
) -> None:
    at = np.flatnonzero(steps)
    lossy += np.bincount(request[at], minlength=len(lossy))
    given_up += np.bincount(request[at], margin[at], len(lossy))


class _Sums:
    """Sums over closed pieces."""

    def __init__(self, drafts: Drafts, k: int) -> None:
        self._request, n = drafts.request, drafts.n_requests
        self.tokens, self.accepted, self.lossy, self.given_up = np.zeros((4, n))
        self.by_length = np.zeros((n, k + 1))

    def close(self, steps: Mask, kept: NDArray[np.int64], length: NDArray[np.int64], bonus: Any, share: Any) -> None:
        """Add the current piece of some steps [S]: kept + bonus tokens, as `share` of a step that drafted `length`."""
        at = np.flatnonzero(steps)
        if not len(at):
            return
        request, n = self._request[at], len(self.tokens)
        bonus, share = (np.broadcast_to(value, steps.shape)[at] for value in (bonus, share))
        self.tokens += np.bincount(request, kept[at] + bonus, n)
        self.accepted += np.bincount(request, kept[at], n)
        width = self.by_length.shape[1]
        self.by_length += np.bincount(request * width + length[at], share, n * width).reshape(n, width)


def _walk_steps(
    kept: Mask,
    exact: Mask,
    margin: NDArray[np.float32],
    drafts: Drafts,
    k: int,
    length: NDArray[Any],
    same: Mask,
) -> Pieces:
    """As `walk`, with a state for each step: kept tokens and draft length of its current piece."""
    most, n = len(kept), drafts.drafted_n
    sums = _Sums(drafts, k)
    alive, fresh = np.ones((2, len(n)), bool)
    at, end = np.zeros((2, len(n)), np.int64)
    full = n == most
    for j in range(most + 1):
        np.copyto(end, length[j], where=fresh, casting="unsafe")
        over = alive & (n == j)
        text_ended = over & drafts.ended
        sums.close(text_ended & (at > 0), at, np.minimum(end, at), 0, 1.0)
        cut = over & ~text_ended
        sums.close(cut & ~full, at, np.minimum(end, at), 1, 1.0)
        sums.close(cut & full, at, end, 1, (at + 1) / (end + 1))
        if j == most:
            break
        alive &= ~over
        bonus = alive & (at == end)
        passes = alive & ~bonus & kept[j]
        fails = alive & ~bonus & ~kept[j]
        sums.close(bonus | fails, at, end, 1, 1.0)
        if kept is not exact:
            _count_lossy(passes & ~exact[j], margin[j], drafts.request, sums.lossy, sums.given_up)
        fresh = (bonus & exact[j]) | (fails & same[j])
        alive = passes | fresh
        at = (at + 1) * passes
    return Pieces(sums.tokens, sums.accepted, sums.by_length, sums.lossy, sums.given_up)
