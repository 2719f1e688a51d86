"""How many tokens a step drafts: a fixed number, a cut by confidence, or as many as are expected to pay.

Evidence is what a drafter knows about a proposed token before the target sees it: for lookup drafts the strength of the
match (`lookup.SuffixLookup.strength`, drafted tokens included), for a draft model the probability it gave the token.
`choose` takes one proposal or many at once: evidence and category [..., K], available [...], and returns the tokens to
keep, [...].
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftgate.policy.category import GROUPS, Category

__all__ = ["Calibration", "Cut", "Fixed", "Goodput", "Length"]

Floats = NDArray[np.floating[Any]]
Counts = NDArray[np.integer[Any]] | int
_Table = tuple[Floats, Floats]  # edges, chance


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always `k` tokens, or as many as the drafter has."""

    k: int

    @property
    def most(self) -> int:
        """The longest draft this can ask for."""
        return self.k

    def choose(self, evidence: Floats, category: NDArray[np.uint8], available: Counts, batch: int = 1) -> NDArray[Any]:
        """Tokens to keep of each proposal."""
        kept: NDArray[Any] = np.minimum(self.k, available)
        return kept


@dataclass(frozen=True, slots=True)
class Cut:
    """At most `k` tokens, ending before the first whose evidence is below `least`."""

    k: int
    least: float

    @property
    def most(self) -> int:
        """The longest draft this can ask for."""
        return self.k

    def choose(self, evidence: Floats, category: NDArray[np.uint8], available: Counts, batch: int = 1) -> NDArray[Any]:
        """Tokens to keep of each proposal."""
        strong = np.logical_and.accumulate(evidence[..., : self.k] >= self.least, axis=-1).sum(axis=-1)
        kept: NDArray[Any] = np.minimum(strong, available)
        return kept


@dataclass(frozen=True)
class Calibration:
    """Chance that a proposed token is kept, given that all before it were, by evidence and token group.

    Each group holds a non-decreasing step function: `edges[i] <= evidence < edges[i + 1]` gives `chance[i]`. The group
    "*" serves every group that has none of its own.
    """

    groups: Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]]

    @cached_property
    def best(self) -> float:
        """The greatest chance of any evidence in any group."""
        return max(chance[-1] for _, chance in self.groups.values())

    @cached_property
    def _by_category(self) -> tuple[_Table, ...]:
        pooled = self.groups["*"]
        tables = (self.groups.get(GROUPS[category], pooled) for category in Category)
        return tuple((np.asarray(edges), np.asarray(chance)) for edges, chance in tables)

    def chance(self, evidence: Floats, category: NDArray[np.uint8]) -> Floats:
        """Conditional acceptance of each token, shaped as `evidence`; evidence below the first edge counts as there."""
        if len(self.groups) == 1:
            return _look_up(self._by_category[0], evidence)
        out = np.empty(evidence.shape)
        for value in np.unique(category):
            here = category == value
            out[here] = _look_up(self._by_category[value], evidence[here])
        return out


def _look_up(table: _Table, evidence: Floats) -> Floats:
    edges, chance = table
    found: Floats = chance[edges.searchsorted(evidence, side="right").clip(1) - 1]
    return found


@dataclass(frozen=True)
class Goodput:
    """The draft length that is expected to pay most at this step; lossless, and zero when nothing pays.

    A step that drafts k tokens commits 1 + sum_i prod_{j<=i} chance_j tokens in expectation and takes verify_s[k + 1].
    Maximising long-run tokens per second is a renewal-reward problem: with `rate_tok_s` the rate attained overall, the
    best k maximises committed - rate_tok_s * seconds at each step (Dinkelbach 1967). The measured curve need not be
    smooth or even monotone, so every k is compared, not just the next.

    Attributes:
        k: the longest draft.
        verify_s: per batch size, seconds of verifying m tokens for each sequence, at index m - 1, m = 1..k + 1.
        draft_s: seconds to draft one token (0 for lookup).
        rate_tok_s: tokens per second against which a step's time is priced, per batch size.
    """

    k: int
    calibration: Calibration
    verify_s: Mapping[int, tuple[float, ...]]
    rate_tok_s: Mapping[int, float]
    draft_s: float = 0.0
    _price: dict[int, Floats] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def most(self) -> int:
        """The longest draft this can ask for."""
        return self.k

    def price_tok(self, batch: int) -> Floats:
        """Tokens that a step of k = 0..self.k drafts must earn, [k + 1]; the nearest measured batch size serves."""
        if batch not in self._price:
            near = min(self.verify_s, key=lambda b: (abs(b - batch), b))
            seconds = np.asarray(self.verify_s[near]) + self.draft_s * np.arange(self.k + 1)
            self._price[batch] = seconds * self.rate_tok_s[near]
        return self._price[batch]

    def choose(self, evidence: Floats, category: NDArray[np.uint8], available: Counts, batch: int = 1) -> NDArray[Any]:
        """Tokens to keep of each proposal: the shortest of the best lengths, 0 when none pays."""
        n = min(self.k, evidence.shape[-1])
        if n == 0:
            return np.zeros(evidence.shape[:-1], np.intp)
        chance = self.calibration.chance(evidence[..., :n], category[..., :n])
        price = self.price_tok(batch)
        gain = chance.cumprod(axis=-1).cumsum(axis=-1) - (price[1 : n + 1] - price[0])
        # Where the curve falls, a longer step is cheaper; what the drafter does not have cannot be chosen for that.
        gain = np.where(np.arange(n) < np.expand_dims(available, -1), gain, -np.inf)
        return np.where(gain.max(axis=-1) > 0, gain.argmax(axis=-1) + 1, 0)

    def continues(self, evidence: Floats, category: NDArray[np.uint8], batch: int = 1) -> bool:
        """Whether drafting on can still pay, after the tokens drafted so far: evidence and category [n].

        The evidence of the next tokens is unknown, so each is given the best chance seen in calibration. Hence this
        never stops short of what `choose` would keep of the whole draft.
        """
        n = len(evidence)
        price = self.price_tok(batch)
        reached = self.calibration.chance(evidence, category).prod()
        gain = reached * (self.calibration.best ** np.arange(1, self.k - n + 1)).cumsum()
        return bool((gain > price[n + 1 :] - price[n]).any())


Length = Fixed | Cut | Goodput
