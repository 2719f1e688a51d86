"""From paired measurements to a verdict. "Inconclusive" is a result: it says the data does not carry the claim yet."""

import math
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from draftgate.errors import ConfigError, TraceError
from draftgate.stats.sequence import Interval, mean_sequence

__all__ = ["Verdict", "compare", "speedup"]


class Verdict(StrEnum):
    """What an interval shows about an arm against the baseline."""

    BETTER = "better"
    WORSE = "worse"
    NOT_WORSE = "not_worse"
    INCONCLUSIVE = "inconclusive"


def compare(interval: Interval, margin: float = 0.0) -> Verdict:
    """The strongest claim that every value inside the interval supports; positive differences are good.

    With d the distance from `interval.null` (0 for differences, 1 for ratios such as a speedup):

    - BETTER: d > 0 everywhere in the interval
    - WORSE: d < -margin everywhere, a loss larger than one agreed to accept
    - NOT_WORSE: d > -margin everywhere, but not all of it above 0 (so only with a positive margin)
    - INCONCLUSIVE: anything else; a bound that only touches its limit does not count

    `margin` is in the units of the interval: 0.02 is two points of valid-output rate, or a speedup of 0.98. It has to
    be fixed before the data is seen.

    Raises:
        ConfigError: negative or non-finite margin, or an interval that compares nothing (null is None).

    >>> compare(Interval(0.04, 0.01, 0.07, n=60, confidence=0.95))
    <Verdict.BETTER: 'better'>
    >>> compare(Interval(0.99, 0.985, 1.01, n=60, confidence=0.95, null=1.0), margin=0.02)
    <Verdict.NOT_WORSE: 'not_worse'>
    """
    if not 0 <= margin < math.inf:
        raise ConfigError(f"margin must be 0 or a positive number, but got {margin}")
    if interval.null is None:
        raise ConfigError("this interval compares nothing (its null is None); compare a difference or a speedup")
    low = -math.inf if interval.low is None else interval.low
    high = math.inf if interval.high is None else interval.high
    if low > interval.null:
        return Verdict.BETTER
    if high < interval.null - margin:
        return Verdict.WORSE
    return Verdict.NOT_WORSE if low > interval.null - margin else Verdict.INCONCLUSIVE


def speedup(none_s: NDArray[np.float64], arm_s: NDArray[np.float64], alpha: float = 0.05, arms: int = 1) -> Interval:
    """Anytime-valid interval of an arm's geometric-mean speedup over no speculation; 1 is no difference.

    `none_s[n]` and `arm_s[n]` are seconds per committed token of the same n prompts; prompts are the independent units,
    so average repeats of a prompt first. The estimand is exp(mean of log(none_s / arm_s)).

    `alpha` is shared by `arms` arms compared with the same baseline (Bonferroni): all intervals hold together.

    Raises:
        ConfigError: alpha outside (0, 1), arms below 1.
        TraceError: not one-dimensional arrays of one length, or values that are not positive and finite.

    >>> round(speedup(np.array([0.020, 0.022]), np.array([0.010, 0.011])).estimate, 6)
    2.0
    """
    if arms < 1:
        raise ConfigError(f"arms must be at least 1, but got {arms}")
    none_s, arm_s = _seconds("none_s", none_s), _seconds("arm_s", arm_s)
    if none_s.shape != arm_s.shape:
        raise TraceError(f"none_s has shape {none_s.shape} and arm_s {arm_s.shape}; pair the same prompts in both")
    log_ratio = mean_sequence(np.log(none_s) - np.log(arm_s), alpha / arms)
    return Interval(
        _exp(log_ratio.estimate), _exp(log_ratio.low), _exp(log_ratio.high), log_ratio.n, log_ratio.confidence, null=1.0
    )


def _seconds(name: str, seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    seconds = np.asarray(seconds, dtype=np.float64)
    if not np.all((seconds > 0) & np.isfinite(seconds)):
        raise TraceError(f"{name} must be positive and finite in every place; leave failed requests out of both arms")
    return seconds


def _exp(value: float | None) -> float | None:
    try:
        return None if value is None else math.exp(value)
    except OverflowError:  # a bound beyond 1e308 bounds nothing
        return None
