"""Hold an acceptance rate by moving one knob: a PID controller with the right sign, and the source article's law.

The article adds kp * (target - observed) + ... to a threshold tau after every window. Raising a target-side threshold
lowers acceptance, so when too little is accepted that law raises tau and even less is: positive feedback, which runs to
a bound. `PidArticle` is that law, to be looked at. `Pid` takes the sign from the knob.

Acceptance by itself is no aim: a stricter draft can raise it and lose tokens per second. `goodput.Goodput` is the
default; this mode serves those who must hold a rate.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from draftgate.control.controller import Change, Foresight
from draftgate.control.setting import Setting
from draftgate.control.window import Window
from draftgate.errors import ConfigError
from draftgate.policy.rules import Knob
from draftgate.stats.drift import require_fields

__all__ = ["ARTICLE_BOUNDS", "CUT", "PROFILES", "TAU", "Gains", "K", "Pid", "PidArticle"]

TAU = Knob("tau", "target", -1, 0.0, 1.0)
K = Knob("k", "length", -1, 1, 64)  # late positions are accepted less, so longer drafts lower the rate
CUT = Knob("cut", "draft", 1, 0.0, 1.0)  # drops the drafts that the drafter itself doubts

ARTICLE_BOUNDS = (0.50, 0.90)
_ARTICLE_RANGE = ARTICLE_BOUNDS[1] - ARTICLE_BOUNDS[0]


@dataclass(frozen=True, slots=True)
class Gains:
    """Knob units per unit of acceptance error and window, for a knob whose range is the article's .50 to .90."""

    kp: float
    ki: float
    kd: float


# The article's figures; where it gives a range, its middle.
PROFILES: Mapping[str, Gains] = {"stable": Gains(0.1, 0.01, 0.05), "variable": Gains(0.25, 0.01, 0.055)}


def _with(setting: Setting, knob: str, value: float) -> Setting:
    if knob == "tau":
        return replace(setting, tau=value)
    return replace(setting, cut=value) if knob == "cut" else replace(setting, k=round(value))


class _Hold:
    """What both laws share: the knob's value in `setting`, and windows pooled before each move."""

    def __init__(self, setting: Setting, knob: Knob, target: float, gains: Gains, every: int) -> None:
        self.setting = setting
        self._knob, self._target, self._gains, self._every = knob, target, gains, every
        self._value = float(getattr(setting, knob.name))
        self._pool: list[Window] = []

    @property
    def trying(self) -> bool:
        """Never: it only goes on from where it is."""
        return False

    def give_up(self, window: Window) -> None:
        """Nothing is tried."""

    def foresee(self, shadow: Window) -> Foresight:
        """Nothing: it knows no times."""
        return Foresight()

    def _observed(self, window: Window) -> float | None:
        """Acceptance over the pooled windows; None while there are too few, or nothing was drafted."""
        if window.acceptance_rate is None:
            return None
        self._pool.append(window)
        if len(self._pool) < self._every:
            return None
        rate = sum(w.accepted for w in self._pool) / sum(w.drafted for w in self._pool)
        self._pool.clear()
        return rate

    def _moved(self, value: float, observed: float) -> Change | None:
        self._value = value
        was, self.setting = self.setting, _with(self.setting, self._knob.name, value)
        if was == self.setting:
            return None
        return Change(self.setting, f"acceptance {observed:.3f}, target {self._target:g}: {was} -> {self.setting}")


class Pid(_Hold):
    """Velocity-form PID on windowed acceptance: the knob moves by kp e + ki sum(e) - kd d(observed) a window.

    - The move is multiplied by the knob's effect, so acceptance below the target always loosens.
    - Conditional integration: the sum stands still while the knob is at a bound or at its greatest step.
    - Derivative on the measurement, through a first-order filter, so that a new target makes no kick.
    - Inside the deadband nothing moves and the sum decays: noise of a window is not an error.
    - Gear: the gains fit a plant whose acceptance moves about as much as the knob. Three errors of one sign that hardly
      shrink double the gear; one that changes its sign halves it, so that no oscillation is sustained.
    """

    _GEARS = (1 / 16, 4.0)
    _SAME = 3  # windows of one sign before the gear goes up

    def __init__(
        self,
        setting: Setting,
        knob: Knob = TAU,
        target: float = 0.60,
        gains: Gains = PROFILES["stable"],
        bounds: tuple[float, float] = ARTICLE_BOUNDS,
        every: int = 1,
        deadband: float = 0.02,
        slew: float = 0.05,
        smooth: float = 0.5,
    ) -> None:
        """Start at the setting's value of the knob, moved into the bounds.

        Args:
            every: windows pooled before each move: 1 is online, more is batched.
            deadband: acceptance error that is left alone.
            slew: greatest move of a window, as a share of the knob's range.
            smooth: weight of the newest derivative in its filter, in (0, 1].

        Raises:
            ConfigError: a value is out of range, or the setting has no value for the knob.
        """
        low, high = bounds
        if not (knob.low <= low < high <= knob.high):
            raise ConfigError(f"{knob.name}: bounds must be in [{knob.low:g}, {knob.high:g}] but got {list(bounds)}")
        if not 0 < target < 1 or every < 1 or deadband < 0 or not slew > 0 or not 0 < smooth <= 1:
            raise ConfigError("pid: target and smooth must be in (0, 1), every >= 1, deadband >= 0 and slew > 0")
        if getattr(setting, knob.name) is None:
            raise ConfigError(f"pid moves '{knob.name}', and the policy has none; give one that has, or another knob")
        super().__init__(setting, knob, target, gains, every)
        self._low, self._high, self._deadband, self._smooth = low, high, deadband, smooth
        self._scale, self._slew = (high - low) / _ARTICLE_RANGE, slew * (high - low)
        self._value = min(max(self._value, low), high)
        self._sum = self._slope = 0.0
        self._last: float | None = None
        self._gear, self._same, self._error = 1.0, 0, 0.0

    def update(self, window: Window) -> Change | None:
        """Move the knob by what the window's acceptance asks for."""
        observed = self._observed(window)
        if observed is None:
            return None
        error = self._target - observed
        if self._last is not None:
            self._slope += self._smooth * (observed - self._last - self._slope)
        self._last = observed
        if abs(error) <= self._deadband:
            self._sum /= 2
            self._same = 0
            return None
        self._shift(error)
        return self._moved(self._step(error), observed)

    def _shift(self, error: float) -> None:
        """Choose the gear by how errors outside the deadband follow each other."""
        low, high = self._GEARS
        if error * self._error < 0:
            self._gear, self._same, self._sum, self._error = max(self._gear / 2, low), 0, 0.0, error
            return
        self._same += 1
        if self._same >= self._SAME:
            if abs(error) > 0.8 * abs(self._error):
                self._gear = min(self._gear * 2, high)
            self._same, self._error = 0, error

    def _step(self, error: float) -> float:
        g = self._gains
        push = g.kp * error + g.ki * (self._sum + error) - g.kd * self._slope
        wanted = self._knob.effect * self._scale * self._gear * push
        step = min(max(wanted, -self._slew), self._slew)
        value = min(max(self._value + step, self._low), self._high)
        if value == self._value + wanted:
            self._sum += error
        return value

    def to_mapping(self) -> dict[str, Any]:
        """What it has learned: the knob's value, the sum and the gear."""
        return {"value": self._value, "sum": self._sum, "gear": self._gear}

    def restore(self, data: Mapping[str, Any]) -> None:
        """Go on from what `to_mapping` gave."""
        value, total, gear = _numbers("Pid", data, ("value", "sum", "gear"))
        self._sum, self._gear = total, min(max(gear, self._GEARS[0]), self._GEARS[1])
        self._moved(min(max(value, self._low), self._high), self._target)


class PidArticle(_Hold):
    """The source article's law, word for word: tau += kp e + ki sum(e) + kd (e - e before), then clipped to .50 to .90.

    On a target-side threshold it drives acceptance away from the target, until tau stands at a bound.
    """

    def __init__(
        self, setting: Setting, target: float = 0.60, gains: Gains = PROFILES["stable"], every: int = 1
    ) -> None:
        """Start at the setting's tau."""
        if setting.tau is None:
            raise ConfigError("pid-article moves tau, and the policy has none; use a rule with a threshold")
        super().__init__(setting, TAU, target, gains, every)
        self._sum = self._before = 0.0

    def update(self, window: Window) -> Change | None:
        """Apply the law."""
        observed = self._observed(window)
        if observed is None:
            return None
        error = self._target - observed
        self._sum += error
        g = self._gains
        tau = self._value + g.kp * error + g.ki * self._sum + g.kd * (error - self._before)
        self._before = error
        return self._moved(min(max(tau, ARTICLE_BOUNDS[0]), ARTICLE_BOUNDS[1]), observed)

    def to_mapping(self) -> dict[str, Any]:
        """The threshold, the sum of errors and the last error."""
        return {"value": self._value, "sum": self._sum, "before": self._before}

    def restore(self, data: Mapping[str, Any]) -> None:
        """Go on from what `to_mapping` gave."""
        value, self._sum, self._before = _numbers("PidArticle", data, ("value", "sum", "before"))
        self._moved(min(max(value, ARTICLE_BOUNDS[0]), ARTICLE_BOUNDS[1]), self._target)


def _numbers(kind: str, data: Mapping[str, Any], names: tuple[str, ...]) -> list[float]:
    require_fields(kind, data, names)
    numbers = [data[name] for name in names]
    if not all(isinstance(x, int | float) and math.isfinite(x) for x in numbers):
        raise ConfigError(f"{kind}: saved state must be finite numbers but got {dict(data)}; delete it to start afresh")
    return [float(x) for x in numbers]
