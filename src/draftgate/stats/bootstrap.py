"""How sure a ratio of sums over requests is, such as accepted / drafted tokens.

Tokens of one request rise and fall together, so they are not independent evidence: the request is the unit that is
resampled (cluster bootstrap; Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, ch. 8 and 13).
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from draftgate.errors import ConfigError, TraceError
from draftgate.stats.sequence import Interval, open_unit

__all__ = ["ratio_interval"]

_DRAWS_PER_CHUNK = 1 << 20
"""Bounds the memory of the resampling weights, 8 bytes each."""


def ratio_interval(
    numerator: ArrayLike,
    denominator: ArrayLike,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """Percentile interval of sum(numerator[R]) / sum(denominator[R]) over R requests.

    Holds for one look, and roughly: below about 30 requests it is too narrow (docs/statistics.md has the figures). The
    bounds are None with fewer than two requests; everything is None when the denominators add up to 0. A resample that
    happens to hold no denominator has no ratio and is left out.

    Raises:
        ConfigError: confidence outside (0, 1), resamples below 1.
        TraceError: the arrays are not one-dimensional and of one length, not finite, or a denominator is negative.

    >>> ratio_interval([6, 7, 5], [10, 10, 10]).estimate
    0.6
    """
    open_unit("confidence", confidence)
    if resamples < 1:
        raise ConfigError(f"resamples must be at least 1, but got {resamples}")
    totals = _pairs(numerator, denominator)
    n = len(totals)
    top, bottom = totals.sum(axis=0)
    if bottom == 0:
        return Interval(None, None, None, n, confidence, null=None)
    estimate = float(top / bottom)
    if n < 2:
        return Interval(estimate, None, None, n, confidence, null=None)
    sums = _resampled_sums(totals, resamples, np.random.default_rng(seed))
    kept = sums[sums[:, 1] > 0]
    low, high = np.quantile(kept[:, 0] / kept[:, 1], [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(estimate, min(float(low), estimate), max(float(high), estimate), n, confidence, null=None)


def _pairs(numerator: ArrayLike, denominator: ArrayLike) -> NDArray[np.float64]:
    """Checked totals[R, 2]."""
    top, bottom = np.asarray(numerator, dtype=np.float64), np.asarray(denominator, dtype=np.float64)
    if top.ndim != 1 or top.shape != bottom.shape:
        raise TraceError(f"need one numerator and one denominator per request, but got {top.shape} and {bottom.shape}")
    if not (np.isfinite(top).all() and np.isfinite(bottom).all() and (bottom >= 0).all()):
        raise TraceError("numerators must be finite, and denominators finite and not negative, in every request")
    return np.stack([top, bottom], axis=1)


def _resampled_sums(totals: NDArray[np.float64], resamples: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Sums[resamples, 2] of R requests drawn with replacement, as multinomial weights times totals."""
    n = len(totals)
    rows = max(1, _DRAWS_PER_CHUNK // n)
    chunks = [_weights(n, min(rows, resamples - done), rng) @ totals for done in range(0, resamples, rows)]
    return np.concatenate(chunks)


def _weights(n: int, rows: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Weights[rows, n]: how often each of n requests was drawn; counting draws is faster than rng.multinomial."""
    draws = rng.integers(0, n, size=(rows, n), dtype=np.int32) + np.arange(0, rows * n, n, dtype=np.int32)[:, None]
    return np.bincount(draws.ravel(), minlength=rows * n).reshape(rows, n).astype(np.float64)
