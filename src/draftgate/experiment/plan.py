"""Which arms to prove live, from what a recording predicts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftgate.engines.base import Capabilities
from draftgate.experiment.arms import BASELINE, Arm, require_distinct
from draftgate.experiment.oracle import ENGINE_DEFAULTS, Oracle
from draftgate.experiment.watch import Watch
from draftgate.policy.language import language_offsets
from draftgate.policy.length import Cut, Fixed, Goodput, Length
from draftgate.policy.policy import Policy
from draftgate.policy.presets import preset, source_presets
from draftgate.policy.rules import RULES
from draftgate.replay.predict import Prediction
from draftgate.replay.summary import rejected_by
from draftgate.search.session import Session
from draftgate.search.space import Space, label

__all__ = ["LOSSY_NATS", "Plan", "make_plan"]

LOSSY_NATS = 0.05
"""Most log-probability per token that the lossy candidate may give up against the target's first choice."""

_SEARCHED = 4000


@dataclass(frozen=True, slots=True)
class Plan:
    """What replay found.

    Attributes:
        arms: what to run live.
        pareto: the front of predicted speedup against divergence.
        searched: policies that were scored.
        fixed: predicted speedup of every fixed lossless draft length.
        rejected: by source preset, how many recorded tokens the lossless test keeps, and the share it rejects of them.
    """

    arms: list[Arm]
    pareto: list[dict[str, Any]]
    searched: int
    fixed: list[dict[str, Any]]
    rejected: dict[str, dict[str, Any]]

    def to_mapping(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {f.name: getattr(self, f.name) for f in fields(self)} | {"arms": [arm.to_mapping() for arm in self.arms]}

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any]) -> "Plan":
        """What `to_mapping` wrote.

        Raises:
            KeyError, TypeError, ConfigError: it was not written by this version.
        """
        return cls(**{**data, "arms": [Arm.from_mapping(row) for row in data["arms"]]})


def make_plan(
    oracle: Oracle,
    able: Capabilities,
    workload: str,
    greedy: bool,
    most: int,
    seed: int,
    watch: Watch,
    given: Sequence[Policy] = (),
) -> Plan:
    """Search offline, and choose what to prove live.

    The arms are none, the engine's default, the best fixed draft length and the best hand-set cut, the goodput length,
    the source article's presets for this workload, the fastest policy that gives up little (lossy), and what the user
    gave. A policy that comes up twice is one arm; one that the engine cannot run is none.
    """
    session = _search(oracle, able, workload, greedy, seed, watch)
    rule = "exact" if greedy else "lossless"
    length = oracle.goodput(most) if able.evidence else None
    fixed = [
        (k, policy, oracle(policy))
        for k in range(1, most + 1)
        if oracle.can(policy := Policy(f"{rule}-k{k}", rule, length=Fixed(k)))
    ]
    presets = [*source_presets(workload), *_by_language(oracle.outputs)]
    candidates = [Arm(policy, "given") for policy in given]
    candidates += [Arm(Policy("engine-default", rule, length=_default(oracle, able)), "engine default")]
    candidates += [Arm(Policy("goodput", rule, length=length), "lossless")] if length else []
    candidates += [Arm(max(fixed, key=lambda row: row[2].speedup or 0.0)[1], "lossless")] if fixed else []
    candidates += [Arm(policy, "lossless") for policy in _best_cut(session)]
    candidates += [Arm(policy, "source preset") for policy in presets]
    candidates += _lossy(session, oracle, length)
    candidates += [] if greedy else _controls(candidates)
    arms = [BASELINE, *(_predicted(arm, oracle) for arm in _without_repeats(candidates) if _can_run(able, arm))]
    require_distinct(arms)
    return Plan(
        arms=arms,
        pareto=[_point(policy, p) for policy, p in session.front()],
        searched=len(session),
        fixed=[
            {"k": k, "speedup": p.speedup, "acceptance_length": p.acceptance_length, "estimator": p.estimator}
            for k, _, p in fixed
        ],
        rejected={policy.name: rejected_by(oracle.replayable, policy) for policy in presets},
    )


def _default(oracle: Oracle, able: Capabilities) -> Length:
    """What the engine does when nobody tunes it; a server drafts as many tokens as it was started with."""
    return ENGINE_DEFAULTS[oracle.trajectories is not None] if able.evidence else Fixed(able.max_draft)


def _can_run(able: Capabilities, arm: Arm) -> bool:
    policy = arm.policy
    fits = policy.rule in able.rules and policy.length.most <= able.max_draft
    return fits and (able.truncates or not policy.truncate)


def _by_language(outputs: Mapping[str, Sequence[NDArray[np.int32]]]) -> list[Policy]:
    """The article's code preset with an offset for languages with more distinct tokens, where enough was recorded."""
    offsets = language_offsets({name: np.concatenate(tokens) for name, tokens in outputs.items()})
    wider = {name: offset for name, offset in offsets.items() if offset}
    return [replace(preset("code"), name="code-by-language", language=wider)] if wider else []


def _search(oracle: Oracle, able: Capabilities, workload: str, greedy: bool, seed: int, watch: Watch) -> Session:
    session = Session(_space(oracle, able, greedy), seed)
    watch.phase(f"{workload}: search", _SEARCHED)
    while len(session) < _SEARCHED and (asked := session.ask(200)):
        session.tell((policy, oracle(policy)) for policy in asked)
        watch.advance(len(asked), f"{len(session)} policies")
    return session


def _without_repeats(arms: Sequence[Arm]) -> list[Arm]:
    """The first of all arms that do the same under other names."""
    kept: list[Arm] = []
    for arm in arms:
        if not any(replace(arm.policy, name=other.name) == other.policy for other in kept):
            kept.append(arm)
    return kept


def _predicted(arm: Arm, oracle: Oracle) -> Arm:
    can = arm.policy.drafts and oracle.can(arm.policy)
    return replace(arm, prediction=oracle(arm.policy, 1000).to_mapping()) if can else arm


def _space(oracle: Oracle, able: Capabilities, greedy: bool) -> Space:
    cuts = (2.0, 3.0, 4.0, 6.0, 8.0) if oracle.trajectories is not None else (0.2, 0.4, 0.6, 0.8)
    return Space(oracle.recorded_k, cuts if able.evidence else (), greedy, able.rules)


def _best_cut(session: Session) -> list[Policy]:
    """The fastest lossless policy with a hand-set cut."""
    cuts = [
        (p.speedup or 0.0, policy) for policy, p in session.told if policy.lossless and isinstance(policy.length, Cut)
    ]
    return [max(cuts, key=lambda pair: pair[0])[1]] if cuts else []


def _lossy(session: Session, oracle: Oracle, length: Goodput | None) -> list[Arm]:
    """The fastest policy within the divergence limit, also with the goodput length, if lossy ones are faster at all."""
    best = session.best(LOSSY_NATS)
    if best is None or best[0].lossless:
        return []
    policy, prediction = best
    if length is not None:
        with_goodput = replace(policy, length=_shortened(length, oracle.recorded_k))
        if (oracle(with_goodput).speedup or 0.0) > (prediction.speedup or 0.0):
            policy = with_goodput
    return [Arm(replace(policy, name=f"lossy-{policy.rule}-{label(policy.length)}"), "search")]


def _controls(arms: Sequence[Arm]) -> list[Arm]:
    """No speculation under the cut of each truncating rule: what the cut alone does to outputs."""
    cutting = [arm.policy for arm in arms if RULES[arm.policy.rule].truncates and not arm.policy.category]
    return [
        Arm(replace(p, name=f"none-as-{p.name}", truncate=True, length=Fixed(0)), "truncation control") for p in cutting
    ]


def _shortened(length: Goodput, k: int) -> Goodput:
    return replace(length, k=min(length.k, k), verify_s={b: v[: k + 1] for b, v in length.verify_s.items()})


def _point(policy: Policy, p: Prediction) -> dict[str, Any]:
    return {
        "policy": policy.name,
        "lossless": policy.lossless,
        "speedup": p.speedup,
        "given_up_nats": p.given_up_nats,
        "lossy_share": p.lossy_share,
        "estimator": p.estimator,
    }
