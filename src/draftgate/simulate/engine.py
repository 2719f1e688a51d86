"""A simulated engine as a control loop meets it: counters to scrape, a place for policies, a clock that it moves."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import zip_longest

import numpy as np

from draftgate.control.counters import CounterWindows, Snapshot
from draftgate.control.fetch import SourceError
from draftgate.control.setting import Setting
from draftgate.control.window import Window
from draftgate.policy.policyset import PolicySet
from draftgate.simulate.plant import Done, Plant
from draftgate.simulate.scenario import Moment, Now, Scenario

__all__ = ["Engine", "Took"]

_BEGAN_S = 1.7e9
_TAKES_S = 2.0  # from a policy being written to its first step
_STRETCHES = 100  # of a period, in which the world stays as it is


@dataclass(slots=True)
class _Totals:
    """What an engine counted since its process started, or of shadows since it last showed a window of them."""

    started_s: float
    requests: int = 0
    steps: int = 0
    tokens: int = 0
    offered: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()
    sequence_s: float = 0.0

    def add(self, done: Done, batch: float) -> None:
        """Count some requests."""
        self.requests += done.requests
        self.steps += done.steps
        self.tokens += done.tokens
        self.offered = _added(self.offered, done.offered)
        self.kept = _added(self.kept, done.kept)
        self.sequence_s += done.seconds * batch

    def snapshot(self, time_s: float, batch: float, bare: bool) -> Snapshot:
        """As a scrape shows them; bare without what an engine may lack."""
        return Snapshot(
            time_s,
            drafts=self.offered[0] if self.offered else 0,
            drafted=sum(self.offered),
            accepted=sum(self.kept),
            generated=self.tokens + self.requests,  # the prefill chooses a request's first token
            kept=self.kept,
            first_tok=self.requests,
            requests=self.requests,
            steps=None if bare else self.steps,
            sequence_s=0.0 if bare else self.sequence_s,
            running=None if bare else batch,
            started_s=self.started_s,
        )

    def shadow(self, policy: str, now_s: float, batch: float) -> Window:
        """As a window of drafts that did not run."""
        reached = tuple(map(min, self.offered, (self.offered[0], *self.kept)))
        return Window(
            "*", policy, self.started_s, now_s, self.requests, self.steps, self.offered[0], sum(self.offered),
            sum(self.kept), self.tokens, self.kept, reached, self.offered, seconds=0.0, batch=batch, judged=0, valid=0,
            latency_s=None, errors=0, shadow=True,
        )  # fmt: skip


def _added(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(x + y for x, y in zip_longest(a, b, fillvalue=0))


@dataclass
class Engine:
    """Serves requests under what is in force; a `Source` and a `Target` of a control loop, with one clock.

    Attributes:
        plant: what it is made of.
        scenario: what happens to it.
        setting: what it runs.
        period: requests after which the scenario repeats.
        windows: cuts scrapes into windows.
        shadows: requests of a shadow window, as an engine shows them that drafts from the text so far; 0 for none.
        now_s: seconds since 1970.
        served, tokens: requests and tokens so far.
        busy_s: engine seconds so far.
        oracle_s: engine seconds of the same tokens, each under the setting that was best at its moment.
        took: called after each stretch of requests under one setting, with the world as it was and when it began.
    """

    plant: Plant
    scenario: Scenario
    setting: Setting
    period: int
    rng: np.random.Generator
    windows: CounterWindows
    took: "Took" = lambda engine, now, begun_s: None
    shadows: int = 0
    now_s: float = _BEGAN_S
    served: int = 0
    tokens: int = 0
    busy_s: float = 0.0
    oracle_s: float = 0.0
    _totals: _Totals = field(init=False, repr=False)
    _digest: str | None = field(default=None, init=False, repr=False)
    _coming: tuple[float, PolicySet] | None = field(default=None, init=False, repr=False)
    _scrapes: deque[Snapshot] = field(default_factory=lambda: deque(maxlen=64), init=False, repr=False)
    _shadow: _Totals | None = field(default=None, init=False, repr=False)
    _flipped: int = field(default=0, init=False, repr=False)
    _event: str | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self._totals = _Totals(self.now_s)
        self._now = self._look()

    def advance(self, seconds: float) -> None:
        """Serve whole requests for about so long, and at least one."""
        end_s, before = self.now_s + seconds, self.served
        if self._coming is not None:
            self._serve(self._coming[0])
            self._take(self._coming[1])
        self._serve(end_s)
        if self.served == before:
            self._stretch(1)

    def restart(self, started_s: float) -> None:
        """Count from 0 again, as a process that started then; what is in force stays."""
        self._totals = _Totals(started_s)

    def _serve(self, until_s: float) -> None:
        while (n := round((until_s - self.now_s) / self.plant.request_s(self.setting, self._look().under))) > 0:
            self._stretch(n)

    def _stretch(self, n: int) -> None:
        """Serve n requests, or as many as the world stays as it is for."""
        self._now, begun_s = self._look(), self.now_s
        now, n = self._now, min(n, max(self.period // _STRETCHES, 1))
        if now.event and now.event != self._event:
            self.restart(self.now_s if now.event == "restart" else self._totals.started_s)
        self._event = now.event
        done = self.plant.run(n, self.setting, now.under, self.rng)
        self._totals.add(done, now.under.batch)
        if self.shadows and not self.setting.on:
            right = replace(now.under, wrong=0.0)  # a text does not tell that the engine's drafts would be wrong
            self._shadow = self._shadow or _Totals(begun_s)
            self._shadow.add(self.plant.run(n, Setting.of(self.plant.policy), right, self.rng), now.under.batch)
        self.now_s += done.seconds
        self.busy_s += done.seconds
        self.served += n
        self.tokens += done.tokens
        self.oracle_s += done.tokens / self.plant.rate(self.plant.best(now.under), now.under)
        self.took(self, now, begun_s)

    def _look(self) -> Now:
        names = tuple(self.plant.workloads)
        return self.scenario(Moment(self.served, self.period, self.setting.on, self.served - self._flipped, names))

    def _take(self, policies: PolicySet) -> None:
        setting = Setting.of(policies.of())
        if setting.on != self.setting.on:
            self._flipped = self.served
        self.setting, self._digest, self._coming = setting, policies.digest(), None

    def scrape(self) -> Snapshot:
        """Totals as they stand."""
        return self._totals.snapshot(self.now_s, self._now.under.batch, self._now.bare)

    @property
    def left_out(self) -> str | None:
        """Nothing is, that a loop should say."""
        return None

    def poll(self) -> list[Window]:
        """Scrape: the windows that this completes, at most one and a shadow."""
        now = self._now
        self._scrapes.append(self.scrape())
        if now.lost:
            raise SourceError("metrics are lost")
        seen = [s for s in self._scrapes if s.time_s <= self.now_s - now.delay_s]
        window = self.windows.add(seen[-1]) if seen else None
        return [*([] if window is None else [window]), *self._shown(now)]

    def _shown(self, now: Now) -> list[Window]:
        shadow = self._shadow
        if shadow is None or shadow.requests < self.shadows:
            return []
        self._shadow = None
        return [shadow.shadow(self.plant.policy.name, self.now_s, now.under.batch)]

    def write(self, policies: PolicySet) -> None:
        """Take policies a moment later."""
        self._coming = (self.now_s + _TAKES_S, policies)

    def in_force(self) -> str | None:
        """Digest of what it runs; None before anything was written."""
        return self._digest


Took = Callable[[Engine, Now, float], None]
