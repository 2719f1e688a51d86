"""The default controller: the setting with the most tokens per second at the batch size of the moment.

Throughput of a setting = committed tokens a step / seconds a step. The first comes from windows (survival by position,
exponentially forgotten), the second from the measured step costs, and both together are corrected by what windows under
that setting really showed. Off is always a candidate and wins ties.

What is not used is not seen: positions beyond the present k, other thresholds, "off" while on, "on" while off. So now
and then a window runs under another setting. A budget bounds what that costs, and a setting that could not pay even if
every one of its tokens were accepted is not tried at all.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from draftgate.control.belief import Acceptance, Bias, StepTable, conditional_of
from draftgate.control.controller import Change
from draftgate.control.setting import OFF, Setting
from draftgate.control.window import Window
from draftgate.cost.steps import StepCost
from draftgate.errors import ConfigError

__all__ = ["Candidate", "Goodput"]

_OPTIMISM = 2.0  # standard errors
_SPREAD = 0.05  # relative standard deviation of a window's throughput
_TRIES = 0.1  # of the windows in which something is worth trying
_Way = tuple[float | None, float | None]  # tau, cut


@dataclass(frozen=True, slots=True)
class Candidate:
    """A setting that may be chosen.

    Attributes:
        allowed: whether the quality gate lets it serve: it is lossless, or was proven not to harm outputs.
        survival: share of drafting steps that keep position i, as far as known beforehand.
    """

    setting: Setting
    allowed: bool
    survival: tuple[float, ...] = ()


class Goodput:
    """Chooses among candidates.

    Attributes:
        setting: what is in force.
        explored_s, seen_s: engine seconds lost to trying other settings, and all seconds seen.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        cost: StepCost,
        setting: Setting,
        rng: random.Random,
        memory: float = 5.0,
        hysteresis: float = 0.02,
        explore: float = 0.01,
        least_steps: int = 200,
    ) -> None:
        """Start at a setting.

        Args:
            memory: windows after which evidence has lost half its weight.
            hysteresis: gain below which the setting is kept.
            explore: share of the time that trying other settings may cost.
            least_steps: smaller windows decide nothing.

        Raises:
            ConfigError: no candidate that drafts is allowed, or a value is out of range.
        """
        allowed = [c for c in candidates if c.allowed and c.setting.on]
        if not allowed:
            raise ConfigError(
                "goodput: no candidate that drafts passed the quality gate, so there is nothing to choose"
            )
        if not memory > 0 or not 0 <= explore < 1 or not 0 <= hysteresis < 1:
            raise ConfigError("goodput: memory must be positive, explore and hysteresis in [0, 1)")
        self.setting = setting
        self.explored_s = self.seen_s = 0.0
        self._settings = [OFF, *(c.setting for c in allowed)]
        most = max(s.k for s in (*self._settings, setting))
        self._table = StepTable(cost, most)
        self._ways: dict[_Way, Acceptance] = {}
        for c in allowed:
            self._ways.setdefault((c.setting.tau, c.setting.cut), Acceptance(conditional_of(c.survival, most)))
        self._bias = Bias()
        self._rng, self._keep = rng, 0.5 ** (1 / memory)
        self._hysteresis, self._explore, self._least_steps = hysteresis, explore, least_steps
        self._home: Setting | None = None  # where to return after a window of exploration

    @property
    def trying(self) -> bool:
        """Whether the present setting is tried for a window."""
        return self._home is not None

    def update(self, window: Window) -> Change | None:
        """Learn from a window that ran under `setting`, and choose."""
        if window.steps < self._least_steps:
            return None
        rates = self._learned(window)
        if self._home is not None:
            self._charge(window, rates)
        chosen = self._choose(rates)
        tried = self._try(window, rates, chosen)
        self._home = None if tried is None else chosen
        return self._changed(tried or chosen, rates, chosen)

    def _choose(self, rates: Mapping[Setting, float]) -> Setting:
        """The fastest, or the present one if it is nearly as fast. Off wins ties: to be on must pay visibly."""
        best = max(self._settings, key=rates.__getitem__)
        at = self._home or self.setting
        if at in rates and rates[best] <= rates[at] * (1 + self._hysteresis):
            best = at
        pays = rates[OFF] * (1 + self._hysteresis * (0.5 if best == at else 1.0))
        return best if rates[best] > pays else OFF

    def _learned(self, window: Window) -> dict[Setting, float]:
        """Take the window in; tokens per second and sequence of every candidate, as known then."""
        for acceptance in self._ways.values():
            acceptance.forget(self._keep)
        way = (self.setting.tau, self.setting.cut)
        if self.setting.on and way in self._ways:
            self._ways[way].learn(window, self.setting.k)
        self.seen_s += window.seconds
        modelled = self._modelled(window.batch)
        if self.setting in modelled and (measured := window.tokens_per_s):
            per_sequence = measured / (window.batch or 1.0)
            self._bias.learn(str(self.setting), per_sequence, modelled[self.setting], self._keep)
        return {s: rate * self._bias.factor(str(s)) for s, rate in modelled.items()}

    def _modelled(self, batch: float | None, optimism: float = 0.0) -> dict[Setting, float]:
        """Tokens per second and sequence of every candidate, by acceptance and step costs alone."""
        step_s = self._table.step_s(batch)
        extra_s = np.diff(step_s)
        by_way = {}
        for way, acceptance in self._ways.items():
            seconds = step_s[0] + np.concatenate(([0.0], (acceptance.shares() * extra_s).cumsum()))
            by_way[way] = acceptance.committed(optimism) / seconds
        rates = {s: float(by_way[s.tau, s.cut][s.k]) for s in self._settings if s.on}
        return rates | {OFF: float(1 / step_s[0])}

    def _charge(self, window: Window, rates: Mapping[Setting, float]) -> None:
        """Book what the window of exploration that just ended cost, by what is known now."""
        lost = 1 - rates.get(self.setting, 0.0) / max(rates.values())
        self.explored_s += max(lost, 0.0) * window.seconds

    def _try(self, window: Window, rates: Mapping[Setting, float], chosen: Setting) -> Setting | None:
        """A setting worth one window because it may be better than the chosen one, if the budget allows."""
        if self._home is not None or self._explore == 0:
            return None
        credit_s = self._explore * self.seen_s - self.explored_s
        modelled = self._modelled(window.batch, _OPTIMISM)
        hopes = {
            s: self._hope(s, modelled[s]) / rates[chosen] - 1
            for s in self._settings
            if s != chosen and (1 - rates[s] / rates[chosen]) * window.seconds <= credit_s
        }
        best = max(hopes, key=hopes.__getitem__, default=chosen)
        if best == chosen or hopes[best] <= self._hysteresis:
            return None
        # By chance, so that the members of a fleet do not all try at the same time; sooner where more is to be won.
        return best if self._rng.random() < max(_TRIES, hopes[best]) else None

    def _hope(self, setting: Setting, modelled: float) -> float:
        """What a setting may reach: the optimistic model, and a bias that is less known the less it was seen."""
        n, _ = self._bias.seen.get(str(setting), (0.0, 0.0))
        return modelled * self._bias.factor(str(setting)) * (1 + _OPTIMISM * _SPREAD / math.sqrt(n + 0.25))

    def _changed(self, setting: Setting, rates: Mapping[Setting, float], chosen: Setting) -> Change | None:
        if setting == self.setting:
            return None
        was, self.setting = self.setting, setting
        gain = rates[setting] / rates[was] - 1 if was in rates else None
        expected = "" if gain is None else f", {gain:+.1%} tokens/s expected"
        why = f"trying {setting} for a window" if setting != chosen else f"{was} -> {setting}"
        return Change(setting, why + expected)

    def to_mapping(self) -> dict[str, Any]:
        """What it has learned."""
        ways = [{"tau": t, "cut": c, "seen": a.to_mapping()} for (t, c), a in self._ways.items()]
        bias = {name: list(pair) for name, pair in self._bias.seen.items()}
        home = str(self._home or self.setting)
        return {"at": home, "ways": ways, "bias": bias, "explored_s": self.explored_s, "seen_s": self.seen_s}

    def restore(self, data: Mapping[str, Any]) -> None:
        """Go on from what `to_mapping` gave; candidates that are new start from their prior."""
        try:
            for row in data["ways"]:
                if (way := (row["tau"], row["cut"])) in self._ways:
                    self._ways[way].restore(row["seen"])
            self._bias.seen = {str(s): (float(n), float(t)) for s, (n, t) in data["bias"].items()}
            self.explored_s, self.seen_s = float(data["explored_s"]), float(data["seen_s"])
            self.setting = next((s for s in self._settings if str(s) == data["at"]), self.setting)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"saved goodput state cannot be read: {error!r}; delete it to start afresh") from None
