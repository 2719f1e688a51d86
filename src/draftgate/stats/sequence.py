"""Intervals for a mean that stay valid however often they are looked at.

A fixed-n t interval covers 95% of the time at one n chosen beforehand. Someone who looks after every prompt and stops
at the first good look is wrong far more often. The bounds here hold at all n at once: the probability that the mean is
outside at any n is at most alpha.

Where they come from. Put a prior N(0, 1/phi) on the standardised effect (mean - mean0) / sigma and the scale-free
prior 1/sigma on sigma; integrate both hypotheses; their ratio after n observations, with t the one-sample t statistic
of mean0 and nu = n - 1, is

    B_n = sqrt(c) * ((1 + c t^2/nu) / (1 + t^2/nu))^(-n/2),    c = phi / (phi + n).

Under a Gaussian with mean mean0 and any sigma, B_n is a martingale that starts at 1, so it ever reaches 1/alpha with
probability at most alpha (Ville). The interval is every mean0 with B_n < 1/alpha; with K = (alpha^2 c)^(-1/n) that is

    t^2/nu < (K - 1) / (1 - K c),    or every mean0 while K c >= 1.

Sources: Lindon, Ham, Tingley, Bojinov, "Anytime-Valid Linear Models and Regression Adjusted Causal Inference in
Randomized Experiments" (2022); Wang and Ramdas, "Anytime-valid t-tests and confidence sequences for Gaussian means with
unknown variance" (2023).
"""

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from draftgate.errors import ConfigError, TraceError

__all__ = ["PHI", "Interval", "MeanSequence", "mean_sequence", "open_unit", "running"]

PHI = 4.0
"""Default prior precision of the standardised effect; docs/statistics.md says how it was chosen."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and the bounds that `n` observations support; None is "not known yet", never 0.

    Attributes:
        estimate: point estimate, None without observations.
        low: lower bound, None while there is none.
        high: upper bound, None while there is none.
        n: number of independent units behind it (prompts, requests, outputs).
        confidence: coverage the bounds were built for, in (0, 1).
        null: the value that means "no difference": 0 on a difference scale, 1 on a ratio scale, None for a quantity
            that compares nothing.
    """

    estimate: float | None
    low: float | None
    high: float | None
    n: int
    confidence: float
    null: float | None = 0.0


def mean_sequence(x: NDArray[np.float64], alpha: float = 0.05, phi: float = PHI) -> Interval:
    """Anytime-valid interval of the mean of i.i.d. observations `x[n]`, as it stands after the last one.

    `phi` has to be fixed before the data is seen. The bounds are None until n is large enough to exclude any mean at
    all (n = 7 at the defaults). Stopping at any n chosen while looking is fine.

    Raises:
        ConfigError: alpha outside (0, 1), phi not positive.
        TraceError: x is not one-dimensional or holds NaN or infinity.

    >>> mean_sequence(np.array([0.1, 0.3, 0.2, 0.2, 0.1, 0.3, 0.2, 0.2]))  # doctest: +ELLIPSIS
    Interval(estimate=0.2, low=0.0069..., high=0.3930..., n=8, confidence=0.95, null=0.0)
    """
    x = _observations(x)
    if x.ndim != 1:
        raise TraceError(f"observations must be one-dimensional, but got shape {x.shape}; pass one value per prompt")
    if not x.size:
        return _interval(0, 0.0, 0.0, alpha, phi)
    mean = float(x.mean())
    return _interval(x.size, mean, float(np.square(x - mean).sum()), alpha, phi)


def running(
    x: NDArray[np.float64], alpha: float = 0.05, phi: float = PHI, first_look: int = 1
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Bounds after each prefix of `x[..., n]`, intersected with all earlier ones: (low[..., n], high[..., n]).

    Bounds not reached yet are -inf and inf. Intersecting costs no coverage, because all bounds hold together; low >
    high then means that the observations do not share one mean (drift), wrongly so with probability at most alpha.
    Prefixes shorter than `first_look` give no bound: skewed observations need 24 or so before the promise holds.

    Raises:
        ConfigError: alpha outside (0, 1), phi not positive, first_look below 1.
        TraceError: x is a scalar or holds NaN or infinity.
    """
    if first_look < 1:
        raise ConfigError(f"first_look must be at least 1, but got {first_look}")
    x = _observations(x)
    n = np.arange(1, x.shape[-1] + 1, dtype=np.float64)
    first = x[..., :1]
    shifted = x - first  # equal observations give exactly equal means, so rounding cannot cross the bounds
    mean = shifted.cumsum(axis=-1) / n
    before = np.zeros_like(mean)
    before[..., 1:] = mean[..., :-1]
    sum_sq = (np.square(shifted - before) * (n - 1) / n).cumsum(axis=-1)  # Welford's update, all prefixes at once
    half = _half_width(n, sum_sq, alpha, phi)
    half[..., : first_look - 1] = np.inf
    low = np.maximum.accumulate(first + mean - half, axis=-1)
    high = np.minimum.accumulate(first + mean + half, axis=-1)
    return low, high


@dataclass(slots=True)
class MeanSequence:
    """`mean_sequence` for observations that arrive one at a time, in constant memory.

    >>> sequence = MeanSequence(alpha=0.05)
    >>> for value in (0.1, 0.3, 0.2):
    ...     sequence.add(value)
    >>> sequence.n, round(sequence.mean, 3), sequence.interval().low
    (3, 0.2, None)
    """

    alpha: float = 0.05
    phi: float = PHI
    n: int = field(default=0, init=False)
    mean: float = field(default=0.0, init=False)
    sum_sq: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        _check_settings(self.alpha, self.phi)

    def add(self, x: float) -> None:
        """Take one observation (Welford, "Note on a method for calculating corrected sums", 1962).

        Raises:
            TraceError: x is NaN or infinite.
        """
        if not math.isfinite(x):
            raise TraceError(f"observation {self.n} is {x}; leave failed measurements out before comparing")
        self.n += 1
        step = x - self.mean
        self.mean += step / self.n
        self.sum_sq += step * (x - self.mean)

    def interval(self) -> Interval:
        """The interval after what was added so far: the same as `mean_sequence` of all of it."""
        return _interval(self.n, self.mean, self.sum_sq, self.alpha, self.phi)


def open_unit(name: str, value: float) -> float:
    """`value` if it lies strictly between 0 and 1.

    Raises:
        ConfigError: it does not.
    """
    if not 0 < value < 1:
        raise ConfigError(f"{name} must be between 0 and 1 (exclusive), but got {value}")
    return value


def _observations(x: NDArray[np.float64]) -> NDArray[np.float64]:
    x = np.asarray(x, dtype=np.float64)
    if x.ndim == 0:
        raise TraceError("observations must be an array, but got a single number")
    if not np.isfinite(x).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(x))[0])
        raise TraceError(f"observation {where} is {x[where]}; leave failed measurements out before comparing")
    return x


def _check_settings(alpha: float, phi: float) -> None:
    open_unit("alpha", alpha)
    if not 0 < phi < math.inf:
        raise ConfigError(f"phi must be a positive number, but got {phi}")


def _half_width(
    n: NDArray[np.float64] | int, sum_sq: NDArray[np.float64] | float, alpha: float, phi: float
) -> NDArray[np.float64]:
    """Half width of the interval from n >= 1 and the sum of squared deviations, inf while nothing is excluded."""
    _check_settings(alpha, phi)
    log_c = -np.log1p(np.divide(n, phi))
    log_k = -(2 * math.log(alpha) + log_c) / n
    room = -np.expm1(log_k + log_c)  # 1 - K c
    half = np.full(np.shape(sum_sq), np.inf)
    np.divide(sum_sq * np.expm1(log_k), n * room, out=half, where=room > 0)
    np.sqrt(half, out=half)
    return half


def _interval(n: int, mean: float, sum_sq: float, alpha: float, phi: float) -> Interval:
    _check_settings(alpha, phi)
    if n == 0:
        return Interval(None, None, None, 0, 1 - alpha)
    half = float(_half_width(n, sum_sq, alpha, phi))
    bounded = math.isfinite(half)
    return Interval(mean, mean - half if bounded else None, mean + half if bounded else None, n, 1 - alpha)
