"""A control loop's parts from plain options: which workloads, which controller, which guards."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from draftgate.control.baseline import Baseline
from draftgate.control.belief import StepTable
from draftgate.control.breaker import Breaker, Limits
from draftgate.control.compose import ALL
from draftgate.control.controller import Controller
from draftgate.control.goodput import Candidate, Goodput
from draftgate.control.guard import (
    Collapse,
    Drift,
    GoodputFloor,
    Guard,
    LatencySlo,
    Sane,
    Slower,
    Staleness,
    ValidityFloor,
)
from draftgate.control.lane import Lane
from draftgate.control.pid import ARTICLE_BOUNDS, CUT, PROFILES, TAU, K, Pid, PidArticle
from draftgate.control.schedule import Row, Schedule
from draftgate.control.setting import Setting
from draftgate.cost.steps import StepCost
from draftgate.errors import ConfigError, nearest
from draftgate.policy.policy import Policy
from draftgate.policy.policyset import PolicySet
from draftgate.policy.rules import RULES, Knob

__all__ = ["CONTROLLERS", "KNOBS", "Options", "lanes"]

CONTROLLERS = ("goodput", "pid", "pid-article", "schedule")
KNOBS = ("tau", "k", "cut")


@dataclass(frozen=True, slots=True)
class Options:
    """What an operator may choose.

    Attributes:
        cost: measured step costs; None when there are none.
        survival: share of drafting steps that keep position i, as recorded.
        candidates: further policies that goodput may choose from.
        rows: of the schedule.
        knob, target, gains, every: of pid.
        floor: least share of valid outputs; None does not guard it.
        slo_s: p95 target of seconds per output token; None does not guard it.
        stale_s: time without metrics after which speculation is switched off.
        breaker: how breakers act.
    """

    controller: str = "goodput"
    cost: StepCost | None = None
    survival: tuple[float, ...] = ()
    candidates: tuple[Policy, ...] = ()
    rows: tuple[Row, ...] = ()
    knob: str = "tau"
    target: float = 0.60
    gains: str = "stable"
    every: int = 1
    floor: float | None = None
    slo_s: float | None = None
    stale_s: float = 120.0
    breaker: Limits = field(default_factory=Limits)


def lanes(base: PolicySet, by_workload: bool, options: Options, rng: random.Random) -> list[Lane]:
    """A lane for each workload that the set names and drafts for, if metrics tell workloads, and one for the rest.

    Raises:
        ConfigError: no policy drafts, or an option does not fit the policies.
    """
    named = [w for w in base.workloads if base.of(w).drafts] if by_workload else []
    names = [*named, ALL] if base.of().drafts else named
    if not names:
        raise ConfigError(f"policy '{base.default}' drafts nothing, so there is nothing to control; give one that does")
    most = max(p.length.most for p in (*base.policies, *options.candidates))
    made = []
    for name in names:
        policy = base.of(None if name == ALL else name)
        table = None if options.cost is None else StepTable(options.cost, most)
        breaker = Breaker(options.breaker, random.Random(rng.random()))
        made.append(Lane(name, _controller(policy, options, rng), _guard(options), breaker, Baseline(table)))
    return made


def _controller(policy: Policy, options: Options, rng: random.Random) -> Controller:
    setting = Setting.of(policy)
    if options.controller == "goodput":
        if options.cost is None:
            raise ConfigError("goodput needs measured step costs: give --run DIR/WORKLOAD of 'draftgate tune'")
        candidates = _candidates(policy, options)
        return Goodput(candidates, options.cost, setting, random.Random(rng.random()))
    if options.controller == "schedule":
        if not options.rows:
            raise ConfigError("the schedule controller needs rows: give --schedule FILE")
        for row in options.rows:
            row.setting.applied_to(policy)
        return Schedule(options.rows, setting)
    if options.controller == "pid-article":
        return PidArticle(setting, options.target, PROFILES[options.gains], options.every)
    if options.controller == "pid":
        return _pid(policy, setting, options)
    raise ConfigError(f"no controller '{options.controller}'; {nearest(options.controller, CONTROLLERS)}")


def _candidates(policy: Policy, options: Options) -> list[Candidate]:
    """Every draft length up to the longest, in the ways of the policy and of the operator's candidates."""
    for other in options.candidates:
        if other.rule != policy.rule:
            raise ConfigError(f"candidate '{other.name}' has rule '{other.rule}', but the policy has '{policy.rule}'")
    settings: dict[Setting, None] = {}
    for way in map(Setting.of, (policy, *options.candidates)):
        settings |= dict.fromkeys(replace(way, k=k) for k in range(1, way.k + 1))
    return [Candidate(s, True, options.survival) for s in settings]


def _pid(policy: Policy, setting: Setting, options: Options) -> Pid:
    knobs: dict[str, tuple[Knob, tuple[float, float]]] = {
        "tau": (next((k for k in RULES[policy.rule].knobs if k.name == "tau"), TAU), ARTICLE_BOUNDS),
        "k": (K, (1, max(setting.k, 2))),
        "cut": (CUT, (0.0, 1.0)),
    }
    if options.knob not in knobs:
        raise ConfigError(f"pid has no knob '{options.knob}'; {nearest(options.knob, knobs)}")
    knob, bounds = knobs[options.knob]
    return Pid(setting, knob, options.target, PROFILES[options.gains], bounds, options.every)


def _guard(options: Options) -> Guard:
    holds_acceptance = options.controller.startswith("pid")  # and so lowers it on purpose
    optional: Sequence[Guard | None] = (
        None if holds_acceptance else Drift() & Slower(),
        None if options.floor is None else ValidityFloor(options.floor),
        None if options.slo_s is None else LatencySlo(options.slo_s) & Slower(),
    )
    guard = Sane() | Staleness(options.stale_s) | GoodputFloor() | Collapse()
    for further in optional:
        guard = guard if further is None else guard | further
    return guard
