"""The main job: record, search offline, prove live, recommend, for each workload."""

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import draftgate
from draftgate.cost.model import all_accepted_speedup, break_even
from draftgate.cost.steps import StepCost
from draftgate.engines.base import Capabilities, Engine, Request, Sampling
from draftgate.errors import ConfigError, TraceError
from draftgate.experiment.compare import arm_figures, decide, text_differences
from draftgate.experiment.judging import GateSettings, make_judge
from draftgate.experiment.live import Block, run_blocks
from draftgate.experiment.oracle import Oracle
from draftgate.experiment.plan import Plan, make_plan
from draftgate.experiment.record import record, recording_policies
from draftgate.experiment.rundir import BlockLog, RunDirectory, read_cost, read_json, write_json
from draftgate.experiment.watch import Watch
from draftgate.experiment.why import across_workloads, mechanism, preset_sentence
from draftgate.policy.file import dump, save
from draftgate.policy.length import Fixed
from draftgate.policy.policy import Policy
from draftgate.quality.evidence import Outcome
from draftgate.quality.gate import Gate, Quality
from draftgate.replay.summary import summarise
from draftgate.trace.store import TraceStore
from draftgate.workload.prompt import Workload

__all__ = ["Settings", "digest", "tune"]

_COST_BATCHES = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a run; a resumed run must have the same.

    Attributes:
        budget_s: seconds of recording and live runs over all workloads; loading and search come on top.
        record_k: draft length of the recording; lossy policies can be searched up to it.
        most: longest lossless lookup draft considered.
        max_tokens: output limit of prompts that set none.
        alpha: chance of a false claim per workload, over all its arms and looks.
        allow_lossy: whether a lossy arm may be recommended whose outputs are not proven as good; never one that failed.
        gate: what is asked of outputs.
    """

    seed: int = 0
    budget_s: float = 480.0
    record_k: int = 7
    most: int = 15
    max_tokens: int = 64
    alpha: float = 0.05
    allow_lossy: bool = False
    sampling: Sampling = field(default_factory=Sampling)
    gate: GateSettings = field(default_factory=GateSettings)

    def fitted(self, able: Capabilities) -> "Settings":
        """For an engine whose drafts cannot be made again: only what is recorded can be predicted, so all of it is."""
        return self if able.evidence else replace(self, record_k=able.max_draft, most=able.max_draft)


def tune(
    engine: Engine,
    workloads: Sequence[Workload],
    settings: Settings,
    out: Path,
    watch: Watch,
    given: Sequence[Policy] = (),
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Any]:
    """Tune every workload; everything measured is on disk as soon as it is measured, and a killed run resumes.

    Args:
        given: policies to prove beside those that are found.

    Returns:
        The result object that `tune --json` prints, also written to result.json.

    Raises:
        InputError: the run directory holds other settings, or cannot be written.
        EngineError: the engine failed.
    """
    _check(engine, workloads, settings)
    # All of them before anything is measured: a prompt that does not fit is better refused now than in an hour.
    requests = {
        w.name: [engine.encode(p, w.name, settings.max_tokens, settings.sampling) for p in w.prompts] for w in workloads
    }
    described = asdict(settings) | {
        "draftgate": draftgate.__version__,
        "workloads": {w.name: digest(w) for w in workloads},
        "given": {policy.name: dump(policy) for policy in given},
        "setup": asdict(engine.setup),
    }
    run = RunDirectory(out)
    with run.opened(described) as resumed:
        if resumed:
            watch.say(f"resuming {out}")
        cost = _cost(engine, out / "cost.json", settings, watch)
        share_s = settings.budget_s / len(workloads)
        results = [
            _tune_one(engine, w, requests[w.name], settings, given, run.of(w.name), cost, share_s, watch, clock)
            for w in workloads
        ]
        result = {
            "schema": 1,
            "draftgate": draftgate.__version__,
            "setup": asdict(engine.setup) | {"key": engine.setup.key()},
            "settings": asdict(settings),
            "cost": cost.to_mapping() | {"maxima": _maxima(cost, settings.most)},
            "workloads": results,
            "across": across_workloads(results, cost),
        }
        write_json(out / "result.json", result)
    return result


def digest(workload: Workload) -> str:
    """Digest of a workload's prompts, so that a changed file is not taken for the one that was measured."""
    return hashlib.sha256(repr(workload.prompts).encode()).hexdigest()[:12]


def _check(engine: Engine, workloads: Sequence[Workload], settings: Settings) -> None:
    if not engine.capabilities.records_drafted:
        raise ConfigError(
            "this engine does not report the target's scores of drafted tokens, so nothing can be replayed; compare "
            "arms with 'draftgate bench', or tune with an engine in this process"
        )
    if settings.most > engine.capabilities.max_draft or settings.record_k > settings.most:
        raise ConfigError(
            f"draft lengths must satisfy record k <= most <= {engine.capabilities.max_draft} but got "
            f"{settings.record_k} and {settings.most}"
        )
    if len({w.name for w in workloads}) < len(workloads):
        raise ConfigError("two workloads have the same name; rename one of the files")
    for w in workloads:
        if len(w.prompts) < 6:
            raise ConfigError(f"workload '{w.name}': needs at least 6 prompts but has {len(w.prompts)}")


def _cost(engine: Engine, path: Path, settings: Settings, watch: Watch) -> StepCost:
    held = read_cost(path)
    if held is None:
        watch.phase("step cost", None)
        seconds = min(10.0, settings.budget_s / 10)
        held = engine.measure_cost(_COST_BATCHES, settings.most + 1, seconds)
        write_json(path, held.to_mapping())
    return held


def _maxima(cost: StepCost, most: int) -> list[dict[str, Any]]:
    """What no policy can pass, and the acceptance below which a draft length loses, by batch size."""
    return [
        {
            "batch": b,
            "k": k,
            "all_accepted_speedup": all_accepted_speedup(cost, k, b),
            "break_even": break_even(cost, k, b),
        }
        for b in sorted(cost.curves)
        for k in range(1, min(most, len(cost.curves[b].seconds) - 1) + 1)
    ]


def _split(requests: Sequence[Request], seed: int) -> tuple[list[Request], list[Request]]:
    """A random third to record and search on, the rest to prove on: the proof is on prompts the search never saw."""
    n = max(2, len(requests) // 3)
    order = np.random.default_rng(seed).permutation(len(requests)).tolist()
    return [requests[i] for i in sorted(order[:n])], [requests[i] for i in sorted(order[n:])]


def _tune_one(
    engine: Engine,
    workload: Workload,
    requests: Sequence[Request],
    settings: Settings,
    given: Sequence[Policy],
    folder: Path,
    cost: StepCost,
    budget_s: float,
    watch: Watch,
    clock: Callable[[], float],
) -> dict[str, Any]:
    calibration, held_out = _split(requests, settings.seed)
    policies = recording_policies(settings.record_k, settings.sampling.greedy)
    stores = {name: TraceStore.create(folder / name, engine.setup) for name in policies}
    judge = make_judge(workload, settings.gate, watch.say)
    watch.phase(f"{workload.name}: record", len(calibration) * len(stores))
    recorded = [r for name, store in stores.items() for r in record(engine, calibration, policies[name], store, watch)]
    lookup = engine.setup.by_lookup
    oracle = Oracle.of(list(stores.values()), cost, lookup, settings.most, engine.end_tokens)
    plan = _plan(oracle, engine.capabilities, workload.name, settings, given, folder, watch)
    # Seconds as recorded, and not as they pass here: a resumed run has as long to prove as an unbroken one.
    live_s = max(1.0, budget_s - sum(r.prefill_s + r.decode_s for r in recorded))
    watch.phase(f"{workload.name}: prove", live_s)
    gate = settings.gate.gate(workload, settings.alpha, len(plan.arms) - 1)
    log = BlockLog(folder / "live.jsonl")
    hopeless = not settings.allow_lossy and not _provable(gate, len(held_out))
    brief = [arm.name for arm in plan.arms if hopeless and not arm.policy.lossless and arm.origin != "given"]
    blocks = run_blocks(
        engine,
        held_out,
        plan.arms,
        log,
        live_s,
        settings.seed,
        watch,
        settings.alpha,
        brief,
        judge=judge,
        clock=clock,
    )
    greedy = settings.sampling.greedy
    differences = text_differences(engine, held_out, plan.arms, blocks) if greedy else []
    return _result(workload.name, plan, blocks, settings, gate, cost, folder, differences) | {
        "trace": summarise(oracle.replayable),
        "pareto": plan.pareto,
        "searched": plan.searched,
    }


def _provable(gate: Gate, prompts: int) -> bool:
    """Whether so many prompts could show that a lossy arm is good enough, if no output differed."""
    perfect = [Outcome(str(i), True, True) for i in range(prompts)]
    return gate.decide(perfect, lossless=False).verdict is Quality.OK


def _plan(
    oracle: Oracle,
    able: Capabilities,
    workload: str,
    settings: Settings,
    given: Sequence[Policy],
    folder: Path,
    watch: Watch,
) -> Plan:
    """The plan that is on disk, or a new one; its arms are also written as policy files."""
    path = folder / "arms.json"
    held = read_json(path)
    if held is None:
        greedy = settings.sampling.greedy
        plan = make_plan(oracle, able, workload, greedy, settings.most, settings.seed, watch, given)
        write_json(path, plan.to_mapping())
    else:
        try:
            plan = Plan.from_mapping(held)
        except (KeyError, TypeError, ConfigError) as error:
            raise TraceError(f"{path}: {error}; remove the folder {folder} to measure again") from error
    for arm in plan.arms:
        save(arm.policy, folder / "policies" / f"{arm.name}.yaml")
    return plan


def _result(
    workload: str,
    plan: Plan,
    blocks: Sequence[Block],
    settings: Settings,
    gate: Gate,
    cost: StepCost,
    folder: Path,
    differences: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    decision = decide(plan.arms, blocks, settings.alpha, settings.allow_lossy, gate)
    n = len(plan.arms) - 1
    figures = [arm_figures(a, blocks, settings.alpha, n, gate) | _maximum(a.policy, cost) for a in plan.arms]
    by_name = {f["arm"]: f for f in figures}
    reasons = [mechanism(a.policy, by_name[a.name], cost) for a in plan.arms if a.name == decision.best]
    return {
        "name": workload,
        "verdict": decision.verdict,
        "recommended": decision.arm.name,
        "policy": str(folder / "policies" / f"{decision.arm.name}.yaml"),
        "why": ": ".join(filter(None, (decision.why, *reasons))),
        "presets": preset_sentence(figures, plan.rejected, settings.sampling.greedy),
        "arms": figures,
        "fixed": plan.fixed,
        "differences": list(differences),
    }


def _maximum(policy: Policy, cost: StepCost) -> dict[str, Any]:
    """What an arm of this draft length would reach if every drafted token were kept; None where lengths vary."""
    fixed = isinstance(policy.length, Fixed) and policy.drafts
    return {"theoretical_max": all_accepted_speedup(cost, policy.length.most) if fixed else None}
