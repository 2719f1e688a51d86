"""Draft by lookup: continue the longest suffix of the text that occurred before.

The index is a suffix automaton of prompt plus output (Blumer et al. 1985), grown one token at a time: amortised
constant time and at most two states a token, so a step costs the same at 1k and at 32k tokens, and the length of the
match is exact with no cap on n-gram order.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from draftgate.errors import ConfigError

__all__ = ["SuffixLookup"]

# Suffixes whose occurrence is refreshed per token. A bound on the work: shorter ones may point further back.
_REFRESH = 4


class SuffixLookup:
    """Proposes the tokens that followed an earlier occurrence of the longest repeated suffix, as a rule a recent one.

    >>> lookup = SuffixLookup([5, 6, 7, 8, 5, 6])
    >>> lookup.propose(3)
    ([7, 8, 5], 2)
    >>> lookup.extend([9])
    >>> lookup.propose(3)
    ([], 0)
    """

    def __init__(self, tokens: Iterable[int] = (), least: int = 1) -> None:
        """Index `tokens`; matches shorter than `least` tokens propose nothing.

        Raises:
            ConfigError: `least` is below 1: an empty match says nothing about what follows.
        """
        if least < 1:
            raise ConfigError(f"the least match of a lookup draft must be >= 1 token but got {least}")
        self.least = least
        self.tokens: list[int] = []
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]
        self._end = [-1]  # index just past an earlier occurrence of the state's strings
        self._last = 0
        self._match = (0, 0)  # (length of the longest repeated suffix, end of an earlier occurrence)
        self.extend(tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """Add committed tokens."""
        for token in tokens:
            self._add(token)

    def _add(self, token: int) -> None:
        """One extension of the automaton; `_match` becomes the longest suffix that also ends earlier."""
        following, link, length = self._next, self._link, self._length
        self.tokens.append(token)
        end = len(self.tokens)
        state = self._new(length[self._last] + 1, {}, end)
        p = self._last
        while p >= 0 and token not in following[p]:
            following[p][token] = state
            p = link[p]
        if p >= 0:
            q = following[p][token]
            if length[q] != length[p] + 1:
                q = self._split(p, q, token)
            link[state] = q
        else:
            link[state] = 0
        self._last = state
        suffix = link[state]
        self._match = (length[suffix], self._end[suffix])
        for _ in range(_REFRESH):
            if suffix <= 0:
                break
            self._end[suffix] = end
            suffix = link[suffix]

    def _new(self, length: int, following: dict[int, int], end: int) -> int:
        self._next.append(following)
        self._link.append(0)
        self._length.append(length)
        self._end.append(end)
        return len(self._length) - 1

    def _split(self, p: int, q: int, token: int) -> int:
        """Clone q for its shorter strings, those that are also suffixes of the new text."""
        following, link = self._next, self._link
        clone = self._new(self._length[p] + 1, dict(following[q]), self._end[q])
        link[clone] = link[q]
        link[q] = clone
        while p >= 0 and following[p].get(token) == q:
            following[p][token] = clone
            p = link[p]
        return clone

    def propose(self, k: int) -> tuple[list[int], int]:
        """Up to `k` tokens and the length of the matching context in tokens; ([], 0) when nothing matches.

        The copy wraps: when it reaches the end of the text it goes on from its own start, as repeating text does.
        """
        match, end = self._match
        if match < self.least or k <= 0:
            return [], 0
        tokens = self.tokens
        found = tokens[end : end + k]
        period = len(tokens) - end
        while len(found) < k:
            found.extend(found[len(found) - period : len(found) - period + k - len(found)])
        return found, match

    @property
    def strength(self) -> float:
        """How far the proposal can be trusted: the match in tokens over the different tokens that followed it so far.

        Length alone is a worse guide: a long context that went on in several ways says little (docs/log.md).
        """
        suffix = self._link[self._last]
        return self._length[suffix] / len(self._next[suffix]) if suffix > 0 else 0.0

    @staticmethod
    def evidence(strength: float, n: int) -> NDArray[np.float64]:
        """Evidence of each of n proposed tokens, [n]: every drafted token before it lengthens its context by one."""
        return strength + np.arange(n, dtype=np.float64)
