"""What each recorded draft turns into under another setting: steps, tokens, and positions offered and kept.

The same walk as `replay.walk`, but it keeps positions apart, which windows need, and drafts, so that they can be drawn
anew. A piece that runs into the end of its recorded draft counts as a share of a whole one, so counts are not integers.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftgate.errors import ConfigError, TraceError
from draftgate.policy.length import Goodput, Length
from draftgate.policy.policy import Policy
from draftgate.replay.accept import Replayable

__all__ = ["STEPS", "TOKENS", "kept_at", "offered_at", "outcomes"]

STEPS, TOKENS = 0, 1  # columns of `outcomes`; offered by position and kept by position follow

Mask = NDArray[np.bool_]
Floats = NDArray[np.float64]


def offered_at(most: int) -> slice:
    """Columns of steps whose draft had position i."""
    return slice(2, 2 + most)


def kept_at(most: int) -> slice:
    """Columns of steps whose draft kept position i."""
    return slice(2 + most, 2 + 2 * most)


def outcomes(replayable: Replayable, policy: Policy, missed: Mask | None = None) -> Floats:
    """Steps, tokens, offered and kept positions of each recorded draft, [S, 2 + 2 K].

    Args:
        replayable: the trace; K is its longest draft.
        policy: with a fixed length, or one that is cut by evidence.
        missed: positions at which another draft would have been wrong [K, S]; None keeps the recorded draft.

    Raises:
        TraceError: the policy drafts more than was recorded, or the trace holds no steps.
        ConfigError: its draft length depends on expected goodput.
    """
    columns, most = replayable.columns, replayable.columns.shape[0]
    if not columns.shape[1]:
        raise TraceError("the trace holds no steps to replay; record longer outputs")
    if policy.length.most > most:
        raise TraceError(f"policy '{policy.name}' drafts up to {policy.length.most} tokens but {most} were recorded")
    kept, exact = replayable.kept(policy), replayable.exact
    if missed is not None:
        kept, exact = kept & ~missed, exact & ~missed
    return _walk(kept, exact, replayable, _lengths(replayable, policy.length))


def _lengths(replayable: Replayable, length: Length) -> NDArray[np.int64]:
    """Draft length of a piece that starts at each recorded position, [K + 1, S]; as `replay.predict` counts it."""
    if isinstance(length, Goodput):
        raise ConfigError("a draft length by expected goodput cannot be simulated; use a fixed one, or a cut")
    columns, most = replayable.columns, replayable.columns.shape[0]
    out = np.full((most + 1, columns.shape[1]), length.most)
    for j in range(most):
        left = (columns.drafted_n - j).clip(0)
        wanted = length.choose(columns.evidence.T[:, j:], columns.category.T[:, j:], left)
        uncut = (columns.drafted_n == most) & (wanted == left)
        out[j] = np.where(uncut, length.most, wanted) if j else wanted
    return out


@dataclass(slots=True)
class _Piece:
    """The piece that each recorded draft is in: kept tokens so far, and its draft length, both [S]."""

    rows: Floats
    at: NDArray[np.int64] = field(init=False)
    end: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        self.at, self.end = np.zeros((2, len(self.rows)), np.int64)

    def close(self, where: Mask, kept: Any, length: Any, bonus: int, share: Any = 1.0) -> None:
        """End it for some drafts: kept + bonus tokens in a step that drafted `length`, counted as `share` of one."""
        rows, most = self.rows[where], (self.rows.shape[1] - 2) // 2
        kept, length, share = (np.broadcast_to(x, where.shape)[where] for x in (kept, length, share))
        rows[:, STEPS] += share
        rows[:, TOKENS] += share * (kept + bonus)
        rows[:, offered_at(most)] += share[:, None] * (np.arange(most) < length[:, None])
        rows[:, kept_at(most)] += share[:, None] * (np.arange(most) < kept[:, None])
        self.rows[where] = rows


def _walk(kept: Mask, exact: Mask, replayable: Replayable, length: NDArray[np.int64]) -> Floats:
    most, steps = kept.shape
    n, ended = replayable.drafts.drafted_n, replayable.drafts.ended
    # A greedy replacement is the drafted token itself where a strict rule rejected the target's first choice.
    same = exact if replayable.columns.greedy else np.zeros_like(exact)
    piece = _Piece(np.zeros((steps, 2 + 2 * most)))
    alive, fresh = np.ones((2, steps), bool)
    for j in range(most + 1):
        np.copyto(piece.end, length[j], where=fresh)
        over = alive & (n == j)
        piece.close(over & ended & (piece.at > 0), piece.at, piece.at, 0)
        piece.close(over & ~ended & (n < most), piece.at, np.minimum(piece.end, piece.at), 1)
        share = (piece.at + 1) / (piece.end + 1)
        piece.close(over & ~ended & (n == most), piece.end, piece.end, 1, share)
        if j == most:
            break
        alive &= ~over
        bonus = alive & (piece.at == piece.end)
        passes, fails = alive & ~bonus & kept[j], alive & ~bonus & ~kept[j]
        piece.close(bonus | fails, piece.at, piece.end, 1)
        fresh = (bonus & exact[j]) | (fails & same[j])
        alive = passes | fresh
        piece.at = (piece.at + 1) * passes
    return piece.rows
