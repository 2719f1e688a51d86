"""Guards: small judges that name a reason for switching speculation off, or None.

A guard sees one `Seen` at a time and combines with others: `a | b` trips when either does, `a & b` when both do.

    guard = GoodputFloor() | ValidityFloor(0.95) | LatencySlo(0.05) & Slower()

Several guards remember earlier windows: give each workload its own, show it every window, and call `reset` when what it
remembers is no longer about what is in force.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from draftgate.control.window import Window
from draftgate.errors import ConfigError
from draftgate.stats.drift import Cusum, PageHinkley

__all__ = [
    "Both",
    "Collapse",
    "Drift",
    "Either",
    "GoodputFloor",
    "Guard",
    "LatencySlo",
    "Sane",
    "Seen",
    "Slower",
    "Staleness",
    "ValidityFloor",
]


@dataclass(frozen=True, slots=True)
class Seen:
    """What a guard judges.

    Attributes:
        window: the newest window of the workload; None when only time has passed.
        baseline_tok_s: tokens per engine second without speculation at this batch size; None when not known.
        age_s: seconds since metrics last arrived.
        trying: the window ran under a setting that is being tried, whose cost the controller has budgeted.
    """

    window: Window | None
    baseline_tok_s: float | None = None
    age_s: float = 0.0
    trying: bool = False


class Guard(ABC):
    """Names a reason to switch off, or None."""

    def __call__(self, seen: Seen) -> str | None:
        """Judge; to be called once for each window."""
        return self._reason(seen)

    @abstractmethod
    def _reason(self, seen: Seen) -> str | None: ...

    def reset(self) -> None:
        """Forget earlier windows."""
        return

    def __or__(self, other: "Guard") -> "Guard":
        return Either(self, other)

    def __and__(self, other: "Guard") -> "Guard":
        return Both(self, other)


class Either(Guard):
    """Trips when one of two does."""

    def __init__(self, first: Guard, second: Guard) -> None:
        self._both = first, second

    def _reason(self, seen: Seen) -> str | None:
        first, second = (guard(seen) for guard in self._both)  # both must see every window
        return first or second

    def reset(self) -> None:
        """Forget earlier windows."""
        for guard in self._both:
            guard.reset()


class Both(Either):
    """Trips when two do."""

    def _reason(self, seen: Seen) -> str | None:
        first, second = (guard(seen) for guard in self._both)
        return f"{first}; {second}" if first and second else None


class Sane(Guard):
    """Trips on figures that cannot be true."""

    def _reason(self, seen: Seen) -> str | None:
        flaw = None if seen.window is None else seen.window.flaw()
        return flaw and f"the metrics make no sense: {flaw}"


class Staleness(Guard):
    """Trips when no metrics arrived for `limit_s`: what cannot be watched is not left on."""

    def __init__(self, limit_s: float) -> None:
        if not limit_s > 0:
            raise ConfigError(f"staleness limit must be positive but got {limit_s} s")
        self._limit_s = limit_s

    def _reason(self, seen: Seen) -> str | None:
        stale = seen.age_s > self._limit_s
        return f"no metrics for {seen.age_s:.0f} s (limit {self._limit_s:g} s)" if stale else None


class GoodputFloor(Guard):
    """Trips when valid tokens per second stay below a share of what no speculation gives.

    A cumulative sum of log(baseline / goodput), so that a gross loss trips at once, a small one after some windows, and
    noise of a paying setting never: with the defaults 20% trips in one window, 5% in four.
    """

    def __init__(self, share: float = 0.98, patience: float = 0.12, least_steps: int = 200) -> None:
        """Set the floor.

        Args:
            share: of the baseline, that must be kept.
            patience: log loss beyond the share that has to add up.
            least_steps: smaller windows are not judged.
        """
        if not 0 < share <= 1:
            raise ConfigError(f"goodput floor must be a share in (0, 1] but got {share}")
        self._share, self._least_steps = share, least_steps
        self._loss = Cusum(reference=-math.log(share), threshold=patience)

    def _reason(self, seen: Seen) -> str | None:
        w = seen.window
        if w is None or seen.trying or w.steps < self._least_steps or not w.goodput or not seen.baseline_tok_s:
            return None
        if not self._loss.update(math.log(seen.baseline_tok_s / w.goodput)):
            return None
        return (
            f"goodput {w.goodput:.4g}/s is below {self._share:.0%} of {seen.baseline_tok_s:.4g}/s without speculation"
        )

    def reset(self) -> None:
        """Forget losses so far."""
        self._loss.sum = 0.0


class Slower(Guard):
    """Trips unless the window is known to be at least as fast as no speculation; to be combined with others."""

    def _reason(self, seen: Seen) -> str | None:
        w = seen.window
        if w is None:
            return None
        if w.goodput is None or seen.baseline_tok_s is None:
            return "and whether speculation pays is not known"
        return "and speculation does not pay" if w.goodput < seen.baseline_tok_s else None


class ValidityFloor(Guard):
    """Trips when outputs are valid less often than a floor, with evidence.

    The CUSUM of the share of invalid outputs that is optimal for a rise to twice what the floor allows; while the floor
    is kept, false alarms are at least 10,000 judged outputs apart (`stats.drift.Cusum.of_share`). Outputs of a window
    are added at once, which never alarms earlier than one by one.
    """

    def __init__(self, floor: float) -> None:
        if not 0.5 < floor < 1:
            raise ConfigError(f"validity floor must be above 0.5 and below 1, but got {floor}")
        self._floor = floor
        self._invalid = Cusum.of_share(1 - floor, 2 * (1 - floor))

    def _reason(self, seen: Seen) -> str | None:
        w = seen.window
        if w is None or not w.judged:
            return None
        excess = (w.judged - w.valid) - w.judged * self._invalid.reference
        if not self._invalid.update(excess + self._invalid.reference):
            return None
        return f"{w.validity:.1%} of {w.judged} judged outputs are valid, the floor is {self._floor:.1%}"

    def reset(self) -> None:
        """Forget outputs so far."""
        self._invalid.sum = 0.0


class Collapse(Guard):
    """Trips when the acceptance rate falls far below its slow average, as when a draft model was swapped."""

    def __init__(self, drop: float = 0.5, windows: float = 20.0, least_drafted: int = 500) -> None:
        """Set the fall.

        Args:
            drop: relative fall that trips.
            windows: over which the average forgets half.
            least_drafted: tokens that a window must have drafted to be judged.
        """
        if not 0 < drop < 1 or not windows > 0:
            raise ConfigError(f"collapse needs a drop in (0, 1) and windows above 0 but got {drop} and {windows}")
        self._drop, self._weight, self._least_drafted = drop, 1 - 0.5 ** (1 / windows), least_drafted
        self._mean: float | None = None

    def _reason(self, seen: Seen) -> str | None:
        w = seen.window
        if w is None or w.acceptance_rate is None or w.drafted < self._least_drafted:
            return None
        mean = w.acceptance_rate if self._mean is None else self._mean
        if w.acceptance_rate < (1 - self._drop) * mean:
            return f"acceptance fell to {w.acceptance_rate:.0%} from {mean:.0%}"
        self._mean = mean + self._weight * (w.acceptance_rate - mean)
        return None

    def reset(self) -> None:
        """Forget the average."""
        self._mean = None


class LatencySlo(Guard):
    """Trips when p95 seconds per output token stay above a target for some windows in a row.

    Latency has many causes, and at small batches speculation lowers it. So combine it: `LatencySlo(0.05) & Slower()`.
    """

    def __init__(self, slo_s: float, windows: int = 2) -> None:
        if not slo_s > 0 or windows < 1:
            raise ConfigError(f"latency target must be positive, of 1 window or more, but got {slo_s} s and {windows}")
        self._slo_s, self._windows, self._missed = slo_s, windows, 0

    def _reason(self, seen: Seen) -> str | None:
        if seen.window is None or seen.window.latency_s is None:
            return None
        late = seen.window.latency_s > self._slo_s
        self._missed = self._missed + 1 if late else 0
        if self._missed < self._windows:
            return None
        return f"p95 is {1e3 * seen.window.latency_s:.3g} ms a token, the target is {1e3 * self._slo_s:.3g} ms"

    def reset(self) -> None:
        """Forget windows that missed the target."""
        self._missed = 0


class Drift(Guard):
    """Trips when acceptance falls against its own past by a Page-Hinkley test: slower falls than `Collapse` sees."""

    def __init__(self, delta: float = 0.02, threshold: float = 0.3, least_windows: int = 10) -> None:
        """Set the test; see `stats.drift.PageHinkley`, in units of the acceptance rate."""
        self._settings = delta, threshold, least_windows
        self._falling = PageHinkley(*self._settings)

    def _reason(self, seen: Seen) -> str | None:
        rate = None if seen.window is None else seen.window.acceptance_rate
        fell = rate is not None and self._falling.update(-rate)
        return f"acceptance has drifted down to {rate:.0%}" if fell else None

    def reset(self) -> None:
        """Forget the past."""
        self._falling = PageHinkley(*self._settings)
