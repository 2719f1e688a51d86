"""The default controller: the setting with the most tokens per second at the batch size of the moment.

Throughput of a setting = committed tokens a step / seconds a step. The first comes from windows (survival by position,
exponentially forgotten), the second from the measured step costs, and both together are corrected by what windows under
that setting really showed. Off is always a candidate and wins ties.

What is not used is not seen: positions beyond the present k, other thresholds, "off" while on, "on" while off. So now
and then a window runs under another setting. A budget bounds what that costs: a share of all time, and to find back
from off also a share of what drafts saved lately, so that traffic that changes back is soon noticed. A setting that
could not pay even if every one of its tokens were accepted is not tried at all. Where a source has shadow windows,
finding back from off costs nothing.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftgate.control.belief import Acceptance, Bias, StepTable, committed, conditional_of
from draftgate.control.controller import Change, Foresight
from draftgate.control.setting import OFF, Setting
from draftgate.control.window import Window
from draftgate.cost.steps import StepCost
from draftgate.errors import ConfigError

__all__ = ["Candidate", "Goodput"]

_OPTIMISM = 2.0  # standard errors
_UNLIKE = 0.25  # relative standard deviation of off against all that drafts: drafting may cost other than measured
_TRIES = 0.1  # of the windows in which something is worth trying
_STAKE = 0.1  # of lately saved time, that finding back from off may cost
_DOUBT = 1.0  # standard errors, of every position at once
_SHADOWED = 50  # steps of a shadow window that is judged: requests differ more than their steps do
_GRACE = 0.5  # windows that trying may cost before the budget has grown: at first nothing is known
_LATELY = 20.0  # windows after which saved time has lost half its weight
_SECONDS = ("explored_s", "seen_s", "saved_s")
_OFF = 0  # among the settings
_Way = tuple[float | None, float | None]  # tau, cut

Floats = NDArray[np.float64]


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
        saved_s: engine seconds that drafts saved lately.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        cost: StepCost,
        setting: Setting,
        rng: random.Random,
        memory: float = 5.0,
        hysteresis: float = 0.02,
        explore: float = 0.005,
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
        self.explored_s = self.seen_s = self.saved_s = 0.0
        self._settings = [OFF, *(c.setting for c in allowed)]
        self._names = [str(s) for s in self._settings]
        most = max(s.k for s in (*self._settings, setting))
        self._table = StepTable(cost, most)
        self._ways: dict[_Way, Acceptance] = {}
        for c in allowed:
            self._ways.setdefault((c.setting.tau, c.setting.cut), Acceptance(conditional_of(c.survival, most)))
        ways = list(self._ways)
        # Off is no draft in any way.
        self._way = np.array([0, *(ways.index((c.setting.tau, c.setting.cut)) for c in allowed)])
        self._k = np.array([s.k for s in self._settings])
        self._bias = Bias({str(OFF): _UNLIKE})
        self._rng, self._keep = rng, 0.5 ** (1 / memory)
        self._hysteresis, self._explore, self._least_steps = hysteresis, explore, least_steps
        self._home: int | None = None  # where to return after a window of exploration
        self._risky = False

    @property
    def trying(self) -> bool:
        """Whether the present setting is tried for a window and may well be slower than off."""
        return self._home is not None and self._risky

    def update(self, window: Window) -> Change | None:
        """Learn from a window that ran under `setting`, and choose."""
        if window.steps < self._least_steps:
            return None
        at = self._settings.index(self.setting) if self.setting in self._settings else None
        rates = self._learned(window, at)
        self._book(window, rates, at)
        chosen = self._choose(rates, at if self._home is None else self._home)
        tried = None if self._home is not None else self._try(window, rates, chosen)
        self._home = None if tried is None else chosen
        self._risky = tried is not None and bool(rates[tried] < rates[_OFF])
        return self._changed(at, chosen if tried is None else tried, rates, chosen)

    def give_up(self, window: Window) -> None:
        """Go back from a setting that is only tried; how fast it was is remembered."""
        if self._home is None:
            return
        at, self.setting = self._settings.index(self.setting), self._settings[self._home]
        rates = self._compared(window, at, self._modelled(window.batch))
        self._book(window, rates, at)
        self._home = None

    def foresee(self, shadow: Window) -> Foresight:
        """While off: try a setting that would be faster even if drafts kept less than in this shadow window, by chance.

        Nothing older says as much about drafts for the present traffic: the window replaces what was known of them.
        """
        full = (None, None)  # a shadow is of lossless drafts of full length
        if full not in self._ways or shadow.steps < _SHADOWED:
            return Foresight()
        known, self._ways[full] = self._ways[full], Acceptance(self._ways[full].prior)
        self._ways[full].learn(shadow, len(shadow.kept))
        low, high = (self._modelled(shadow.batch, z) * self._bias.factors(self._names) for z in (-_DOUBT, _DOUBT))
        pays = float(low[_OFF]) * (1 + self._hysteresis)
        best = int(low.argmax())
        if low[best] <= pays:
            self._ways[full] = known
            return Foresight(hopeless=bool(high.max() <= pays))
        self._risky = not self.setting.on  # else it is a breaker that is off, and does the trying
        self._home, self.setting = _OFF if self._risky else None, self._settings[best]
        gain = float(low[best] / low[_OFF]) - 1
        return Foresight(Change(self.setting, f"{self.setting} would give {gain:+.1%} tokens/s at least"))

    def _choose(self, rates: Floats, at: int | None) -> int:
        """The fastest, or the present one if it is nearly as fast. Off wins ties: to be on must pay visibly."""
        best = int(rates.argmax())
        if at is not None and rates[best] <= rates[at] * (1 + self._hysteresis):
            best = at
        pays = rates[_OFF] * (1 + self._hysteresis * (0.5 if best == at else 1.0))
        return best if rates[best] > pays else _OFF

    def _learned(self, window: Window, at: int | None) -> Floats:
        """Take the window in; tokens per second and sequence of every candidate, as known then."""
        for acceptance in self._ways.values():
            acceptance.forget(self._keep)
        way = (self.setting.tau, self.setting.cut)
        if self.setting.on and way in self._ways:
            self._ways[way].learn(window, self.setting.k)
        if not self.seen_s:
            self.explored_s = -_GRACE * window.seconds
        self.seen_s += window.seconds
        return self._compared(window, at, self._modelled(window.batch))

    def _compared(self, window: Window, at: int | None, modelled: Floats) -> Floats:
        """What is modelled, corrected by what windows really showed, this one included."""
        if at is not None and (measured := window.tokens_per_s):
            per_sequence = measured / (window.batch or 1.0)
            self._bias.learn(self._names[at], per_sequence, float(modelled[at]))
        return modelled * self._bias.factors(self._names)

    def _modelled(self, batch: float | None, optimism: float = 0.0) -> Floats:
        """Tokens per second and sequence of every candidate, by acceptance and step costs alone."""
        step_s, ways = self._table.step_s(batch), list(self._ways.values())
        extra_s = (np.array([way.shares() for way in ways]) * np.diff(step_s)).cumsum(axis=1)
        seconds = step_s[0] + np.pad(extra_s, ((0, 0), (1, 0)))
        rates: Floats = (committed(ways, optimism) / seconds)[self._way, self._k]
        return rates

    def _book(self, window: Window, rates: Floats, at: int | None) -> None:
        """Book what the window saved, and what it cost if it was one of exploration, by what is known now."""
        rate = 0.0 if at is None else float(rates[at])
        self.saved_s *= 0.5 ** (1 / _LATELY)
        self.saved_s += max(rate / float(rates[_OFF]) - 1, 0.0) * window.seconds
        if self._home is not None:
            lost_s = max(1 - rate / float(rates.max()), 0.0) * window.seconds
            staked_s = min(lost_s, self._stake_s(self._home))
            self.saved_s -= staked_s / _STAKE
            self.explored_s += lost_s - staked_s

    def _stake_s(self, home: int) -> float:
        """Seconds that finding back from off may cost in one window, because more were saved."""
        return _STAKE * self.saved_s if home == _OFF else 0.0

    def _try(self, window: Window, rates: Floats, chosen: int) -> int | None:
        """A setting worth one window because it may be better than the chosen one, if the budget allows."""
        if self._explore == 0 or not window.seconds:  # without its seconds, what a window costs is not known
            return None
        hopes = self._hopes(window.batch) / rates[chosen] - 1
        hopes[chosen] = -np.inf
        costs_s = (rates[chosen] / rates - 1) * window.seconds  # a window is so much work: a slower one takes longer
        credit_s = self._explore * self.seen_s - self.explored_s + self._stake_s(chosen)
        hopes[costs_s > credit_s] = -np.inf
        best = int(hopes.argmax())
        if hopes[best] <= self._hysteresis:
            return None
        # By chance, so that the members of a fleet do not all try at the same time; sooner where more is to be won.
        return best if self._rng.random() < max(_TRIES, hopes[best]) else None

    def _hopes(self, batch: float | None) -> Floats:
        """What settings may reach: the optimistic model, and a bias that is less known the less it was seen."""
        unknown = _OPTIMISM * self._bias.spreads(self._names)
        hopes: Floats = self._modelled(batch, _OPTIMISM) * self._bias.factors(self._names) * (1 + unknown)
        return hopes

    def _changed(self, at: int | None, to: int, rates: Floats, chosen: int) -> Change | None:
        if to == at:
            return None
        was, self.setting = self.setting, self._settings[to]
        expected = "" if at is None else f", {rates[to] / rates[at] - 1:+.1%} tokens/s expected"
        why = f"trying {self.setting} for a window" if to != chosen else f"{was} -> {self.setting}"
        return Change(self.setting, why + expected)

    def to_mapping(self) -> dict[str, Any]:
        """What it has learned."""
        ways = [{"tau": t, "cut": c, "seen": a.to_mapping()} for (t, c), a in self._ways.items()]
        bias = {name: list(pair) for name, pair in self._bias.seen.items()}
        home = str(self.setting) if self._home is None else self._names[self._home]
        seconds = {name: getattr(self, name) for name in _SECONDS}
        return {"at": home, "ways": ways, "bias": bias} | seconds

    def restore(self, data: Mapping[str, Any]) -> None:
        """Go on from what `to_mapping` gave; candidates that are new start from their prior."""
        try:
            for row in data["ways"]:
                if (way := (row["tau"], row["cut"])) in self._ways:
                    self._ways[way].restore(row["seen"])
            self._bias.seen = {str(s): (float(n), float(t)) for s, (n, t) in data["bias"].items()}
            self.explored_s, self.seen_s, self.saved_s = (float(data[name]) for name in _SECONDS)
            if data["at"] in self._names:
                self.setting = self._settings[self._names.index(data["at"])]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"saved goodput state cannot be read: {error!r}; delete it to start afresh") from None
