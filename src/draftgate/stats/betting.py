"""Anytime-valid evidence about the mean of bounded observations, such as valid (1) or not (0), or their difference.

No distribution is assumed, only that every observation lies in a known range and has the same mean given the ones
before it. Validity rates need this: nearly all pairs agree, so the variance seen is often 0 and a t statistic is void.

Where it comes from. Scale the range to [0, 1]. A gambler who thinks that the mean exceeds m keeps the fraction g of her
money in a stock that pays x / m, the rest in cash; after n observations she has

    W_n(g) = product of (1 - g + g x_i / m).

If the mean is at most m this does not gain on average, nor does any mixture over g that was fixed beforehand, so it
ever reaches 1/alpha with probability at most alpha (Ville). The mixture is Cover's universal portfolio of the two
assets: equal money at the Chebyshev nodes of g, a discrete arcsine law. The lower bound of the mean is the smallest m
that the gambler does not refute; the upper bound is the same for 1 - x.

For 0/1 observations this is a one-sided arcsine mixture of binomial likelihood ratios. For differences -1, 0, 1 against
a mean of 0, ties pay exactly 1: a sequential sign test on the discordant pairs.

Sources: Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting" (2023); Orabona and Jun,
"Tight concentrations and confidence sequences from the regret of universal portfolio" (2023); Cover, "Universal
portfolios" (1991).
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from draftgate.errors import TraceError
from draftgate.stats.sequence import Interval, open_unit

__all__ = ["Tally"]

Floats = NDArray[np.float64]

_ACCOUNTS = 32
_STAKE = (1 - np.cos((2 * np.arange(1, _ACCOUNTS + 1) - 1) * np.pi / (2 * _ACCOUNTS))) / 2
_HALVINGS = 50


@dataclass(frozen=True, slots=True)
class Tally:
    """How often each value was observed.

    Order does not matter to the evidence, so counts are all there is to keep. `counts` may have leading axes, one tally
    for each run or look; the evidence then has them too.

    Attributes:
        values: distinct values[V], each in [low, high].
        counts: counts[..., V], not negative; fractions are allowed when projecting.
        low, high: the range, known before the data is seen.

    >>> pairs = Tally.of([0.0] * 97 + [-1.0, 1.0, 0.0], low=-1.0)
    >>> bool(pairs.log_e_above(-0.05) > np.log(20)), bool(pairs.log_e_below(0.0) > np.log(20))
    (False, False)
    """

    values: Floats
    counts: Floats
    low: float = 0.0
    high: float = 1.0

    @classmethod
    def of(cls, x: ArrayLike, low: float = 0.0, high: float = 1.0) -> "Tally":
        """Count observations x[n].

        Raises:
            TraceError: x is not one-dimensional, or a value is NaN or outside [low, high].
        """
        observed = np.asarray(x, dtype=np.float64)
        if observed.ndim != 1:
            raise TraceError(f"observations must be one-dimensional, but got shape {observed.shape}")
        outside = observed[~((observed >= low) & (observed <= high))]
        if outside.size:
            raise TraceError(f"observations must lie between {low:g} and {high:g}, but one is {outside[0]}")
        values, counts = np.unique(observed, return_counts=True)
        return cls(values, counts.astype(np.float64), low, high)

    @property
    def n(self) -> Floats:
        """Observations[...]."""
        total: Floats = self.counts.sum(axis=-1)
        return total

    @property
    def mean(self) -> Floats:
        """Mean[...], NaN without observations."""
        n = self.n
        mean: Floats = np.divide(self.counts @ self.values, n, out=np.full(n.shape, np.nan), where=n > 0)
        return mean

    def times(self, factor: ArrayLike) -> "Tally":
        """The tally after `factor[...]` times as many observations at the same shares; the factor's axes lead."""
        return replace(self, counts=np.multiply.outer(np.asarray(factor, dtype=np.float64), self.counts))

    def log_e_above(self, mean: float) -> Floats:
        """Log of the e-value[...] against "the true mean is at most `mean`", for low < mean < high.

        Reaching log(1 / alpha) at any look refutes it at level alpha.
        """
        return _log_wealth(self._scaled(self.values), self.counts, self._scaled(mean))

    def log_e_below(self, mean: float) -> Floats:
        """Log of the e-value[...] against "the true mean is at least `mean`", for low < mean < high."""
        return _log_wealth(1 - self._scaled(self.values), self.counts, 1 - self._scaled(mean))

    def interval(self, alpha: float = 0.05, null: float | None = None) -> Interval:
        """Anytime-valid two-sided interval of the true mean, alpha / 2 on each side, of one tally (counts[V]).

        It leaves out what `log_e_above` and `log_e_below` refute at log(2 / alpha). All None without observations.

        Raises:
            ConfigError: alpha outside (0, 1).

        >>> Tally.of([1.0] * 100).interval()  # doctest: +ELLIPSIS
        Interval(estimate=1.0, low=0.951..., high=1.0, n=100, confidence=0.95, null=None)
        """
        open_unit("alpha", alpha)
        n = round(float(self.n))
        if n == 0:
            return Interval(None, None, None, 0, 1 - alpha, null)
        limit = math.log(2 / alpha)
        x, span = self._scaled(self.values), self.high - self.low
        low = self.low + span * _least_mean(x, self.counts, limit)
        high = self.high - span * _least_mean(1 - x, self.counts, limit)
        return Interval(float(self.mean), low, high, n, 1 - alpha, null)

    def _scaled(self, x: ArrayLike) -> Floats:
        return (np.asarray(x, dtype=np.float64) - self.low) / (self.high - self.low)


def _log_wealth(x: Floats, counts: Floats, mean: Floats | float) -> Floats:
    """Log of the mixture's wealth[...] from values x[V] in [0, 1] seen counts[..., V] times, against mean in (0, 1)."""
    by_account = counts @ np.log1p(_STAKE * (x[:, None] / mean - 1))
    richest: Floats = by_account.max(axis=-1, keepdims=True)
    wealth: Floats = richest[..., 0] + np.log(np.exp(by_account - richest).mean(axis=-1))
    return wealth


def _least_mean(x: Floats, counts: Floats, limit: float) -> float:
    """Smallest mean against which wealth stays below exp(limit); wealth falls with it, to at most 1 at the average."""
    refuted, kept = 0.0, float(counts @ x / counts.sum())
    for _ in range(_HALVINGS if kept > 0 else 0):
        middle = (refuted + kept) / 2
        if _log_wealth(x, counts, middle) >= limit:
            refuted = middle
        else:
            kept = middle
    return refuted
