"""Run a scenario: under the control loop, and under fixed settings to compare with."""

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from draftgate.control.assemble import Options, lanes
from draftgate.control.counters import CounterWindows
from draftgate.control.loop import Loop
from draftgate.control.setting import OFF, Setting
from draftgate.policy.policyset import PolicySet
from draftgate.simulate.engine import Engine, Took
from draftgate.simulate.plant import Plant
from draftgate.simulate.scenario import Now, Scenario

__all__ = ["Delays", "Outcome", "Pace", "compared", "controlled", "fixed"]


@dataclass(frozen=True, slots=True)
class Pace:
    """How often things happen, and what there is to see.

    Attributes:
        period: requests after which a scenario repeats.
        interval_s: seconds between looks of the loop.
        size, most_s: requests and seconds of a window.
        shadows: whether the engine scores drafts on finished texts while off.
    """

    period: int = 30_000
    interval_s: float = 10.0
    size: int = 300
    most_s: float = 60.0
    shadows: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run came to.

    Attributes:
        requests, tokens: served.
        seconds: engine seconds they took.
        oracle_s: engine seconds that the best setting of each moment would have taken.
        actions: decisions by action; empty without a loop.
        windows: windows that the loop saw.
    """

    requests: int
    tokens: int
    seconds: float
    oracle_s: float
    windows: int = 0
    actions: Mapping[str, int] = field(default_factory=dict)

    @property
    def token_s(self) -> float:
        """Engine seconds of a token."""
        return self.seconds / self.tokens

    @property
    def regret(self) -> float:
        """Share of its time that the oracle would have saved."""
        return 1 - self.oracle_s / self.seconds

    def to_mapping(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self) | {"regret": self.regret}


class Delays:
    """Seconds from a draft going wrong to the first step without drafts, each time that happened while on."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._since_s: float | None = None
        self._armed = True

    def __call__(self, engine: Engine, now: Now, begun_s: float) -> None:
        """Take a stretch of requests; to be given to `controlled` as `took`."""
        if now.under.wrong < 1:
            self._since_s, self._armed = None, True
        elif engine.setting.on:
            self._since_s = begun_s if self._since_s is None else self._since_s
        else:
            if self._armed and self._since_s is not None:
                self.seconds.append(begun_s - self._since_s)
            self._armed = False


def _unseen(engine: Engine, now: Now, begun_s: float) -> None:
    return


def _engine(plant: Plant, scenario: Scenario, setting: Setting, pace: Pace, seed: int, took: Took) -> Engine:
    windows = CounterWindows(size=pace.size, most_s=pace.most_s)
    rng, shadows = np.random.default_rng(seed), pace.size if pace.shadows else 0
    return Engine(plant, scenario, setting, pace.period, rng, windows, took, shadows)


def fixed(
    plant: Plant, scenario: Scenario, setting: Setting, n: int, pace: Pace, seed: int, took: Took = _unseen
) -> Outcome:
    """Serve n requests under one setting throughout."""
    engine = _engine(plant, scenario, setting, pace, seed, took)
    while engine.served < n:
        engine.advance(pace.interval_s)
    return Outcome(engine.served, engine.tokens, engine.busy_s, engine.oracle_s)


def controlled(
    plant: Plant,
    scenario: Scenario,
    options: Options,
    n: int,
    pace: Pace,
    seed: int,
    state: Path,
    took: Took = _unseen,
    say: Callable[[Mapping[str, Any]], None] = lambda line: None,
) -> Outcome:
    """Serve n requests under the control loop, which starts from the plant's policy and writes its state to a file."""
    base = PolicySet((plant.policy,), plant.policy.name)
    engine = _engine(plant, scenario, Setting.of(plant.policy), pace, seed, took)
    loop = Loop(
        base, engine, engine, lanes(base, False, options, random.Random(seed)), state, None, say, lambda: engine.now_s
    )
    actions: Counter[str] = Counter()
    while engine.served < n:
        engine.advance(pace.interval_s)
        actions.update(d.action for d in loop.tick())
    windows = sum(actions[a] for a in ("hold", "change", "open", "close"))
    return Outcome(engine.served, engine.tokens, engine.busy_s, engine.oracle_s, windows, dict(actions))


def compared(
    plant: Plant,
    scenario: Scenario,
    options: Options,
    n: int,
    pace: Pace,
    seed: int,
    state: Path,
    took: Took = _unseen,
) -> dict[str, Outcome]:
    """The loop, always off, and always on as the policy says; a scenario that reacts does so to each by itself."""
    return {
        "controlled": controlled(plant, scenario, options, n, pace, seed, state, took),
        "off": fixed(plant, scenario, OFF, n, pace, seed),
        "on": fixed(plant, scenario, Setting.of(plant.policy), n, pace, seed),
    }
