"""How varied a language's tokens are, and the threshold offset that follows from it."""

from collections.abc import Mapping
from math import exp, hypot, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftgate.errors import ConfigError, WorkloadError

__all__ = ["MIN_TOKENS", "language_offsets", "token_spread"]

MIN_TOKENS = 200  # a shorter sample says more about itself than about its language
_STANDARD_ERRORS = 2.0  # a smaller difference in entropy is no difference


def token_spread(tokens: NDArray[np.integer[Any]]) -> float:
    """Spread of a token sample [n]: the number of equally likely tokens that would be as varied, at least 1.

    exp(H), H being the entropy of the unigram distribution in nats, plus (m - 1) / 2n for m distinct tokens, the first
    order of what a finite sample misses (Miller 1955; discussed in Paninski, Neural Computation 15, 2003). While most
    tokens of a language are unseen, spread still grows with n: compare samples of one size only.

    >>> round(token_spread(np.arange(100_000) % 50), 1)
    50.0

    Raises:
        WorkloadError: no tokens.
    """
    if np.size(tokens) == 0:
        raise WorkloadError("token spread needs at least one token, got none")
    return exp(_entropy(tokens)[0])


def language_offsets(
    samples: Mapping[str, NDArray[np.integer[Any]]], low: float = 0.05, high: float = 0.10, min_tokens: int = MIN_TOKENS
) -> dict[str, float | None]:
    """What to add to tau for each language: more for those with more varied tokens.

    The least varied language gets 0, and so does any within two standard errors of its entropy. The others get low +
    (high - low) x gap / largest gap, the gap being entropy (the log of the spread) above the least. So offsets rank the
    languages of one workload: the most varied gets `high`, however varied it is. All samples are thinned evenly to the
    size of the smallest that counts, because spread depends on size.

    Args:
        samples: tokens of each language [n], all from one tokenizer.
        low: least offset of a language that is more varied than the least; thresholds are probabilities.
        high: offset of the most varied language.
        min_tokens: a language with fewer gets None: nothing is known about it.

    Raises:
        ConfigError: not 0 <= low <= high, or `min_tokens` below 1.
    """
    if not 0 <= low <= high:
        raise ConfigError(f"language offsets must satisfy 0 <= low <= high, got low={low}, high={high}")
    if min_tokens < 1:
        raise ConfigError(f"min_tokens must be at least 1, got {min_tokens}")
    enough = {name: tokens for name, tokens in samples.items() if len(tokens) >= min_tokens}
    size = min(map(len, enough.values()), default=0)
    entropies = {name: _entropy(_thinned(tokens, size)) for name, tokens in enough.items()}
    least, least_error = min(entropies.values(), default=(0.0, 0.0))
    largest_gap = max((value - least for value, _ in entropies.values()), default=0.0)

    def offset(value: float, error: float) -> float:
        gap = value - least
        return low + (high - low) * gap / largest_gap if gap > _STANDARD_ERRORS * hypot(error, least_error) else 0.0

    return {name: offset(*entropies[name]) if name in entropies else None for name in samples}


def _thinned(tokens: NDArray[np.integer[Any]], size: int) -> NDArray[np.integer[Any]]:
    return tokens[np.arange(size) * len(tokens) // size]


def _entropy(tokens: NDArray[np.integer[Any]]) -> tuple[float, float]:
    """Corrected unigram entropy of at least one token, and its standard error, as if tokens were independent; nats."""
    counts = np.unique_counts(tokens).counts
    n = int(counts.sum())
    p = counts / n
    surprise = -np.log(p)
    plain = float(p @ surprise)
    variance = max(float(p @ surprise**2) - plain**2, 0.0) / n
    return plain + (len(p) - 1) / (2 * n), sqrt(variance)
