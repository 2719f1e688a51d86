"""How sure a share of successes is: Wilson's score interval, and how many outputs a promise needs.

Wilson's interval keeps its coverage at rates near 1, where "rate +- z * standard error" collapses to a point: 100
valid outputs of 100 do not show 100%, they show more than 96%. Source: Wilson, "Probable inference, the law of
succession, and statistical inference", Journal of the American Statistical Association 22 (1927).
"""

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from draftgate.errors import ConfigError, TraceError
from draftgate.stats.sequence import Interval, open_unit

__all__ = ["needed", "wilson", "wilson_interval"]


def wilson(
    successes: ArrayLike, n: ArrayLike, confidence: float = 0.95
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Two-sided Wilson bounds (low, high) of a share, for arrays that broadcast; NaN where n is 0.

    For one n fixed beforehand: looking again and again needs `mean_sequence`.

    Raises:
        ConfigError: confidence outside (0, 1).
        TraceError: a count is negative, NaN or infinite, or there are more successes than trials.

    >>> low, high = wilson([100, 98], 100)
    >>> low.round(4).tolist(), high.round(4).tolist()
    ([0.963, 0.93], [1.0, 0.9945])
    """
    k, n = np.broadcast_arrays(np.asarray(successes, dtype=np.float64), np.asarray(n, dtype=np.float64))
    if not np.all((k >= 0) & (k <= n) & np.isfinite(n)):
        raise TraceError("successes and n must be finite counts with 0 <= successes <= n in every place")
    z_sq = _z(confidence) ** 2
    rate = np.divide(k, n, out=np.full(n.shape, np.nan), where=n > 0)
    centre = (k + z_sq / 2) / (n + z_sq)
    half = np.sqrt(z_sq * (n * rate * (1 - rate) + z_sq / 4)) / (n + z_sq)
    return np.clip(centre - half, 0, rate), np.clip(centre + half, rate, 1)  # rounding must not pass the rate itself


def wilson_interval(successes: int, n: int, confidence: float = 0.95) -> Interval:
    """`wilson` of one share; all None when n is 0.

    Raises:
        ConfigError: confidence outside (0, 1).
        TraceError: negative counts, or more successes than trials.
    """
    low, high = wilson(successes, n, confidence)
    if n == 0:
        return Interval(None, None, None, 0, confidence, null=None)
    return Interval(successes / n, float(low), float(high), n, confidence, null=None)


def needed(p: float, floor: float, confidence: float = 0.95) -> int | None:
    """Fewest outputs at which an observed share `p` puts Wilson's two-sided lower bound at or above `floor`.

    Solves the score equation for n: low >= floor iff p - floor >= z * sqrt(floor * (1 - floor) / n). `p` is held as it
    is, not rounded to a whole number of successes. None when p does not exceed the floor: no n is enough.

    Raises:
        ConfigError: p or floor outside [0, 1], confidence outside (0, 1).

    >>> needed(1.0, 0.98), needed(0.99, 0.98), needed(0.97, 0.98)
    (189, 753, None)
    """
    for name, share in (("p", p), ("floor", floor)):
        if not 0 <= share <= 1:
            raise ConfigError(f"{name} must be a share between 0 and 1, but got {share}")
    z = _z(confidence)
    return max(1, math.ceil(floor * (1 - floor) * (z / (p - floor)) ** 2)) if p > floor else None


def _z(confidence: float) -> float:
    return NormalDist().inv_cdf((1 + open_unit("confidence", confidence)) / 2)
