"""Detectors of a rise in the mean of a stream: one update per observation, constant memory, restart-safe.

`Cusum` compares with a fixed level, `PageHinkley` with the stream's own past. Feed 1 for an invalid output and 0 for a
valid one to watch validity; negate a stream to watch for a fall. An update returns whether this observation raises the
alarm; the detector then starts afresh. `to_mapping` and `from_mapping` carry one over a restart.

How often they alarm without cause, and how late with one, is measured in docs/statistics.md, "Drift".

Sources: Page, "Continuous inspection schemes" (1954); Hinkley, "Inference about the change-point from cumulative sum
tests" (1971); Lorden, "Procedures for reacting to a change in distribution" (1971); Reynolds and Stoumbos, "A CUSUM
chart for monitoring a proportion when inspecting continuously" (1999).
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from draftgate.errors import ConfigError, TraceError, nearest
from draftgate.stats.sequence import open_unit

__all__ = ["Cusum", "PageHinkley", "require_fields"]


@dataclass(slots=True)
class Cusum:
    """Page's one-sided cumulative sum: sum = max(0, sum + x - reference), and an alarm above the threshold.

    Under a steady x above the reference, the alarm comes after threshold / (x - reference) observations.

    Attributes:
        reference: level between the accepted mean and the mean to be found.
        threshold: sum that has to be exceeded, positive, in the units of x.
        sum: state.

    >>> cusum = Cusum(reference=0.5, threshold=2.0)
    >>> [cusum.update(x) for x in (0, 0, 1, 1, 1, 1, 1, 0)]
    [False, False, False, False, False, False, True, False]
    """

    reference: float
    threshold: float
    sum: float = 0.0

    def __post_init__(self) -> None:
        _check(self)

    @classmethod
    def of_share(cls, accepted: float, alarming: float, false_alarm_every: float = 10_000) -> "Cusum":
        """The detector of a share of ones that is optimal for a jump from `accepted` to `alarming`.

        Sums the log likelihood ratio of the two shares, scaled so that a one adds 1 - reference. While the share is at
        most `accepted`, alarms are at least `false_alarm_every` observations apart on average (Lorden's theorem 2); at
        `alarming` the alarm takes about log(false_alarm_every) / KL(alarming, accepted) of them.

        Raises:
            ConfigError: not 0 < accepted < alarming < 1, or false_alarm_every not above 1.

        >>> Cusum.of_share(accepted=0.05, alarming=0.10)  # doctest: +ELLIPSIS
        Cusum(reference=0.0723..., threshold=12.32..., sum=0.0)
        """
        open_unit("accepted", accepted)
        open_unit("alarming", alarming)
        if not accepted < alarming:
            raise ConfigError(f"alarming must be above accepted, but got {alarming} and {accepted}")
        if not 1 < false_alarm_every < math.inf:
            raise ConfigError(f"false_alarm_every must be above 1, but got {false_alarm_every}")
        one, zero = math.log(alarming / accepted), math.log((1 - alarming) / (1 - accepted))
        return cls(reference=-zero / (one - zero), threshold=math.log(false_alarm_every) / (one - zero))

    def update(self, x: float) -> bool:
        """Take one observation.

        Raises:
            TraceError: x is NaN or infinite.
        """
        self.sum = max(0.0, self.sum + _finite(x) - self.reference)
        alarm = self.sum > self.threshold
        if alarm:
            self.sum = 0.0
        return alarm

    def to_mapping(self) -> dict[str, float]:
        """Settings and state, for JSON."""
        return asdict(self)

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any]) -> "Cusum":
        """What `to_mapping` wrote.

        Raises:
            ConfigError: fields are missing, unknown, or not numbers in range.
        """
        require_fields(cls.__name__, data, [f.name for f in fields(cls)])
        return cls(**data)


@dataclass(slots=True)
class PageHinkley:
    """Page-Hinkley test for a rise above the mean so far: a `Cusum` whose reference is that mean plus `delta`.

    The textbook form, the cumulated deviation minus its smallest value so far, is the same number. Of a rise by D after
    n observations, D n log(1 + t/n) - delta t is left after t more: as the mean follows, a rise that is small or comes
    early is taken for the new normal.

    Attributes:
        delta: rise that is tolerated, in the units of x.
        threshold: sum that has to be exceeded, positive.
        least_n: observations before the first alarm.
        n, mean, sum: state.

    >>> import random
    >>> rng, detector = random.Random(12345), PageHinkley(delta=0.005, threshold=50.0)
    >>> stream = rng.choices([0, 1], k=1000) + rng.choices(range(4, 8), k=1000)
    >>> [i for i, x in enumerate(stream) if detector.update(x)]
    [1006]
    """

    delta: float = 0.01
    threshold: float = 10.0
    least_n: int = 30
    n: int = 0
    mean: float = 0.0
    sum: float = 0.0

    def __post_init__(self) -> None:
        _check(self)

    def update(self, x: float) -> bool:
        """Take one observation.

        Raises:
            TraceError: x is NaN or infinite.
        """
        self.n += 1
        self.mean += (_finite(x) - self.mean) / self.n
        self.sum = max(0.0, self.sum + x - self.mean - self.delta)
        alarm = self.n >= self.least_n and self.sum > self.threshold
        if alarm:
            self.n, self.mean, self.sum = 0, 0.0, 0.0
        return alarm

    def to_mapping(self) -> dict[str, float]:
        """Settings and state, for JSON."""
        return asdict(self)

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any]) -> "PageHinkley":
        """What `to_mapping` wrote.

        Raises:
            ConfigError: fields are missing, unknown, or not numbers in range.
        """
        require_fields(cls.__name__, data, [f.name for f in fields(cls)])
        return cls(**data)


def require_fields(kind: str, data: Mapping[str, Any], names: Collection[str]) -> None:
    """Refuse a saved state that does not have exactly these fields.

    Raises:
        ConfigError: a field is missing or unknown.
    """
    if unknown := sorted(data.keys() - names):
        raise ConfigError(f"{kind} has no field {unknown[0]!r}; {nearest(unknown[0], names)}")
    if missing := [name for name in names if name not in data]:
        raise ConfigError(f"{kind}: {', '.join(missing)} missing from the saved state; delete it to start afresh")


def _finite(x: float) -> float:
    if not math.isfinite(x):
        raise TraceError(f"observation is {x}; leave failed measurements out")
    return x


def _check(detector: Cusum | PageHinkley) -> None:
    kind = type(detector).__name__
    for name, value in asdict(detector).items():
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise ConfigError(f"{kind}.{name} must be a finite number, but got {value!r}")
    if detector.threshold <= 0 or detector.sum < 0:
        raise ConfigError(f"{kind}: threshold must be positive and sum not negative, but got {detector}")
