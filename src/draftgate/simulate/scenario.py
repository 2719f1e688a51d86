"""Drift scenarios: what traffic, machine and metrics are like from request to request.

A scenario is a function of the moment, so that it can react to what is in force. Most repeat every `period` requests:
a controller meets each change many times.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from draftgate.errors import ConfigError, nearest
from draftgate.simulate.plant import Conditions

__all__ = ["SCENARIOS", "Moment", "Now", "Scenario", "scenario_named"]


@dataclass(frozen=True, slots=True)
class Moment:
    """Where a simulation stands.

    Attributes:
        request: requests served so far.
        period: requests after which scenarios repeat.
        on: whether drafts are made.
        since: requests served since that last changed.
        names: recorded workloads, in their order.
    """

    request: int
    period: int
    on: bool
    since: int
    names: tuple[str, ...]

    @property
    def part(self) -> float:
        """Share of the present period that is over, in [0, 1)."""
        return self.request % self.period / self.period


@dataclass(frozen=True, slots=True)
class Now:
    """What the world is like at a moment.

    Attributes:
        under: traffic and machine.
        lost: metrics cannot be read.
        delay_s: metrics show what was so long ago.
        bare: gauges and histograms are missing; only what cannot be done without is there.
        event: happens when it first shows: the engine's process restarts, or its counters start again at 0.
    """

    under: Conditions
    lost: bool = False
    delay_s: float = 0.0
    bare: bool = False
    event: Literal["restart", "reset"] | None = None


Scenario = Callable[[Moment], Now]


def _only(workload: str, **fields: float) -> Now:
    return Now(Conditions(((workload, 1.0),), **fields))


def _good(at: Moment) -> Now:
    return _only(at.names[0])


def _steady(at: Moment) -> Now:
    """The first workload, unchanged."""
    return _good(at)


def _phased(at: Moment) -> Now:
    """First workload, last, first again, a third of the period each."""
    return _only(at.names[0 if int(3 * at.part) % 2 == 0 else -1])


def _step(at: Moment) -> Now:
    """From the first workload to the last at half of the period."""
    return _only(at.names[0 if at.part < 0.5 else -1])


def _ramp(at: Moment) -> Now:
    """Gradually from the first workload to the last and back."""
    return _mixed(at, 1 - abs(2 * at.part - 1))


def _diurnal(at: Moment) -> Now:
    """As the hours of a day: the workloads' shares follow a sine, and the batch grows to 8 in its middle."""
    wave = (1 - math.cos(2 * math.pi * at.part)) / 2
    now = _mixed(at, wave)
    return replace(now, under=replace(now.under, batch=2.0 ** round(3 * wave)))


def _mixed(at: Moment, share: float) -> Now:
    share = round(20 * share) / 20  # few different conditions, whose chances are computed once
    return Now(Conditions(((at.names[0], 1 - share), (at.names[-1], share))))


def _burst(at: Moment) -> Now:
    """Ten short bursts of the last workload in a period, a tenth of the time each."""
    return _only(at.names[-1 if 10 * at.part % 1 < 0.1 else 0])


def _draft_swap(at: Moment) -> Now:
    """A wrong draft model from two fifths to four fifths of the period: hardly a token survives."""
    return _only(at.names[0], wrong=float(0.4 <= at.part < 0.8))


def _adversarial(at: Moment) -> Now:
    """The draft is wrong whenever it is used, and right as long as it is not."""
    return _only(at.names[0], wrong=float(at.on))


def _patient_adversary(at: Moment) -> Now:
    """The draft is right for a twentieth of a period after it was switched on, then wrong until it is switched off."""
    return _only(at.names[0], wrong=float(at.on and at.since > at.period / 20))


def _creeping_adversary(at: Moment) -> Now:
    """While drafts are made, ever more of them are wrong; while none are made, they recover."""
    wrong = min(at.since / at.period * 5, 0.6) if at.on else 0.0
    return _only(at.names[0], wrong=round(wrong * 40) / 40)


def _engine_restart(at: Moment) -> Now:
    """The engine restarts ten times in a period: counters start at 0, with another start time."""
    return replace(_good(at), event="restart" if 10 * at.part % 1 > 0.95 else None)


def _counter_reset(at: Moment) -> Now:
    """Counters start again at 0 ten times in a period, without a restart."""
    return replace(_good(at), event="reset" if 10 * at.part % 1 > 0.95 else None)


def _late_metrics(at: Moment) -> Now:
    """Metrics are 20 s old throughout, and the draft is wrong for a fifth of the period."""
    return replace(_only(at.names[0], wrong=float(0.6 <= at.part < 0.8)), delay_s=20.0)


def _missing_metrics(at: Moment) -> Now:
    """No metrics for a tenth of the period and for every other moment of another; gauges missing for a third."""
    lost = 0.1 <= at.part < 0.2 or (0.3 <= at.part < 0.4 and 100 * at.part % 1 < 0.5)
    return replace(_step(at), lost=lost, bare=at.part > 0.66)


def _long_context(at: Moment) -> Now:
    """A customer with long prompts takes the second half: each verified token costs a third of a plain step more."""
    return _only(at.names[0], context=0.33 * (at.part >= 0.5))


def _batch_size(at: Moment) -> Now:
    """Batches of 1, 8, 2 and 4 sequences, a quarter of the period each."""
    return _only(at.names[0], batch=(1.0, 8.0, 2.0, 4.0)[int(4 * at.part)])


def _throttled(at: Moment) -> Now:
    """The machine is 40% slower in the second half, whatever is in force."""
    return _only(at.names[0], clock=1.4 if at.part >= 0.5 else 1.0)


def _hopeless(at: Moment) -> Now:
    """The last workload, unchanged."""
    return _only(at.names[-1])


SCENARIOS: Mapping[str, Scenario] = {
    "steady": _steady,
    "hopeless": _hopeless,
    "phased": _phased,
    "step": _step,
    "ramp": _ramp,
    "burst": _burst,
    "diurnal": _diurnal,
    "draft-swap": _draft_swap,
    "adversarial": _adversarial,
    "patient-adversary": _patient_adversary,
    "creeping-adversary": _creeping_adversary,
    "engine-restart": _engine_restart,
    "counter-reset": _counter_reset,
    "late-metrics": _late_metrics,
    "missing-metrics": _missing_metrics,
    "long-context": _long_context,
    "batch-size": _batch_size,
    "throttled": _throttled,
}
"""Scenarios by name; docstrings say what happens. Where they speak of a last workload, the first should pay."""


def scenario_named(name: str) -> Scenario:
    """The scenario of a name.

    Raises:
        ConfigError: there is none.
    """
    if name not in SCENARIOS:
        raise ConfigError(f"no scenario '{name}'; {nearest(name, SCENARIOS)}")
    return SCENARIOS[name]
