"""One workload under control: its controller, guard, breaker and baseline, and what they decide together."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from draftgate.control.baseline import Baseline
from draftgate.control.breaker import Breaker, Phase
from draftgate.control.controller import Controller
from draftgate.control.guard import Guard, Seen
from draftgate.control.setting import OFF, Setting
from draftgate.control.trust import Trust
from draftgate.control.window import Window
from draftgate.stats.drift import require_fields

__all__ = ["Decision", "Lane"]

_MIXED = 2  # looks at most whose windows are passed over after a change; more would be a clock that is wrong


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided on one workload, and why.

    Attributes:
        action: hold, change, open, half-open or close.
        phase: of the breaker, after it.
        setting: in words, after it.
        acceptance, tokens_per_s, baseline_tok_s: what the window showed; None without.
    """

    time_s: float
    workload: str
    action: str
    reason: str
    phase: str
    setting: str
    acceptance: float | None = None
    tokens_per_s: float | None = None
    baseline_tok_s: float | None = None


class Lane:
    """Steers one workload.

    Attributes:
        name: the workload.
        controller: chooses the setting while the breaker lets it.
    """

    def __init__(self, name: str, controller: Controller, guard: Guard, breaker: Breaker, baseline: Baseline) -> None:
        self.name, self.controller, self.breaker = name, controller, breaker
        self._guard, self._baseline = guard, baseline
        self._trust, self._hopeless = Trust(), False  # of shadows
        self._changed_s: float | None = None  # since when the setting is what it is; None once no window is mixed
        self._looks = 0  # since then
        self._since_s = 0.0  # since when it is, in any case

    @property
    def setting(self) -> Setting:
        """What is wanted in force."""
        return self.controller.setting if self.breaker.on else OFF

    def take(self, window: Window, now_s: float) -> Decision:
        """Judge one window and decide."""
        baseline = self._baseline.at(window.batch)
        if window.shadow:
            return self._decided(now_s, *self._foresee(window, now_s), None, baseline)
        # What came with a probe is part off, so whatever is wrong in it is the probe's.
        mixed, probing = self._is_mixed(window), self.breaker.phase is Phase.HALF_OPEN
        if mixed and not probing:
            return self._decided(now_s, "hold", "the window began before the last change", window, baseline)
        reason = self._guard(Seen(window, baseline, 0.0, self.controller.trying))
        flaw = window.flaw()
        if not flaw and not mixed:
            self._trust.check(window, self.setting.k)
        saved_s = 0.0 if flaw else _saved_s(window, baseline)
        self.breaker.count(0.0 if flaw else window.seconds, saved_s)
        if flaw and not reason:
            return self._decided(now_s, "hold", f"the metrics make no sense: {flaw}", window, baseline)
        if reason and self.breaker.on and self.setting.on:
            return self._open(reason, now_s, window, baseline, slow=saved_s < 0)
        if mixed:
            return self._decided(now_s, "hold", "the window began before the probe", window, baseline)
        if not flaw:
            self._baseline.learn(window)
        action, why = self._steer(window, now_s)
        return self._decided(now_s, action, why, window, baseline)

    def wait(self, now_s: float, age_s: float) -> Decision | None:
        """End a look, let time pass: metrics may have gone stale, or an open breaker may be due for a probe."""
        self._looks += 1
        self._since_s = min(self._since_s, now_s)  # a clock that was set back
        reason = self._guard(Seen(None, None, age_s))
        if reason and self.breaker.on and self.setting.on:
            return self._open(reason, now_s, None, None)
        if reason or not self.breaker.wait(now_s, self._hopeless):
            return None
        self._probes(now_s)
        return self._decided(now_s, "half-open", f"on probation after: {self.breaker.reason}", None, None)

    def open(self, reason: str, now_s: float) -> Decision:
        """Switch off for a reason from outside."""
        return self._open(reason, now_s, None, None)

    def _open(
        self, reason: str, now_s: float, window: Window | None, baseline: float | None, slow: bool = False
    ) -> Decision:
        self.breaker.open(reason, now_s, slow)
        if window is not None and not window.flaw():
            self.controller.give_up(window)
        self._switched(now_s)
        return self._decided(now_s, "open", reason, window, baseline)

    def _steer(self, window: Window, now_s: float) -> tuple[str, str]:
        if self.breaker.phase is Phase.OPEN:
            return "hold", f"off since: {self.breaker.reason}"
        if self.breaker.passed(window.steps):
            return "close", f"{self.breaker.limits.probes} good windows on probation"
        if self.breaker.phase is Phase.HALF_OPEN:
            return "hold", f"on probation, {self.breaker.good} good windows of {self.breaker.limits.probes}"
        change = self.controller.update(window)
        if change is None:
            return "hold", "the setting is as good as any known"
        self._switched(now_s)
        return "change", change.reason

    def _foresee(self, shadow: Window, now_s: float) -> tuple[str, str]:
        """While off: come back if drafts would surely pay for the texts that were written meanwhile."""
        self._hopeless = False
        if flaw := shadow.flaw():
            return "hold", f"the metrics make no sense: {flaw}"
        if self.setting.on or shadow.start_s < self._since_s:
            return "hold", "this shadow is from before the last change"
        self._trust.learn(shadow)
        if not self._trust.held:
            return "hold", "drafts last kept far less than their shadows had"
        if self.breaker.phase is not Phase.CLOSED and not self.breaker.may_hurry:
            return "hold", f"off since: {self.breaker.reason}"
        foresight = self.controller.foresee(shadow)
        self._hopeless = foresight.hopeless
        if foresight.change is None:
            return "hold", f"drafts would {'' if self._hopeless else 'perhaps '}not pay"
        if self.breaker.phase is Phase.CLOSED:
            self._switched(now_s)
            return "change", foresight.change.reason
        self.breaker.hurry()
        self._probes(now_s)
        return "half-open", f"on probation early: {foresight.change.reason}"

    def _probes(self, now_s: float) -> None:
        self._guard.reset()
        self._switched(now_s)

    def _switched(self, now_s: float) -> None:
        self._changed_s, self._looks, self._hopeless = now_s, 0, False
        self._since_s = now_s

    def _is_mixed(self, window: Window) -> bool:
        """Whether the window began under an earlier setting; what came with the same look as a change did."""
        if self._changed_s is None:
            return False
        if self._looks == 0 or (window.start_s < self._changed_s and self._looks <= _MIXED):
            return True
        self._changed_s = None
        return False

    def revert(self, setting: Setting) -> None:
        """Take the last change as not made: in a dry run the next window does not run under it."""
        self.controller.setting, self._changed_s = setting, None

    def _decided(self, now_s: float, action: str, reason: str, w: Window | None, baseline: float | None) -> Decision:
        shown = (None, None) if w is None or w.flaw() else (w.acceptance_rate, w.tokens_per_s)
        return Decision(now_s, self.name, action, reason, str(self.breaker.phase), str(self.setting), *shown, baseline)

    def to_mapping(self) -> dict[str, Any]:
        """What must not be forgotten."""
        return {
            "breaker": self.breaker.to_mapping(),
            "controller": self.controller.to_mapping(),
            "baseline": self._baseline.to_mapping(),
        }

    def restore(self, data: Mapping[str, Any]) -> None:
        """Go on from what `to_mapping` gave.

        Raises:
            ConfigError: it is not that.
        """
        require_fields("Lane", data, ("breaker", "controller", "baseline"))
        self.breaker.restore(data["breaker"])
        self.controller.restore(data["controller"])
        self._baseline.restore(data["baseline"])


def _saved_s(window: Window, baseline: float | None) -> float:
    """Engine seconds that its tokens would have taken more without speculation; 0 when that is not known."""
    return window.committed / baseline - window.seconds if baseline and window.covered and window.seconds else 0.0
