"""A plant from what `tune` recorded."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from draftgate.cost.steps import Curve, StepCost
from draftgate.errors import ConfigError, TraceError, nearest
from draftgate.experiment.rundir import read_cost
from draftgate.policy.length import Fixed
from draftgate.policy.policy import Policy
from draftgate.replay.accept import Replayable
from draftgate.simulate.plant import Plant
from draftgate.trace.columns import Columns
from draftgate.trace.store import TraceStore

__all__ = ["load_plant"]


def load_plant(
    path: Path,
    policy: Policy | None = None,
    workloads: Sequence[str] = (),
    cost: Path | None = None,
    clock: float = 1.0,
) -> Plant:
    """Read a run, or one trace of it.

    Args:
        path: folder of a run of `tune`, or of a lossless trace.
        policy: what the engine starts with; None drafts the longest recorded length under the lossless rule.
        workloads: names of the run's workloads, in the order in which scenarios take them; empty takes all, those
            that save most first.
        cost: cost.json; None looks in the run.
        clock: factor on all measured seconds.

    Raises:
        TraceError: there is no trace, or it cannot be replayed; no step costs were measured.
        ConfigError: the run has no such workload.
    """
    traces = _traces(path, workloads)
    measured = read_cost(cost or next(iter(traces.values())).resolve().parent.parent / "cost.json")
    if measured is None:
        raise TraceError(f"{path}: no step costs lie beside the trace; give --cost FILE, the cost.json of a run")
    replayables = {name: Replayable.of(Columns.load(TraceStore(trace))) for name, trace in traces.items()}
    most = min(r.columns.shape[0] for r in replayables.values())
    plant = Plant(replayables, _scaled(measured, clock), policy or Policy("exact", length=Fixed(most)))
    return plant if workloads else replace(plant, workloads=_by_gain(plant))


def _traces(path: Path, workloads: Sequence[str]) -> dict[str, Path]:
    if (path / "setup.json").exists():
        return {path.resolve().parent.name: path}
    found = {trace.parent.name: trace for trace in sorted(path.glob("*/trace"))}
    if not found:
        raise TraceError(f"{path}: holds no trace; pass a run of 'draftgate tune', or a WORKLOAD/trace in it")
    if unknown := [name for name in workloads if name not in found]:
        raise ConfigError(f"{path}: no workload '{unknown[0]}' was recorded; {nearest(unknown[0], found)}")
    return {name: found[name] for name in workloads or found}


def _scaled(cost: StepCost, clock: float) -> StepCost:
    curves = {b: Curve(b, tuple(clock * s for s in c.seconds), c.error, c.n) for b, c in cost.curves.items()}
    return StepCost(curves, clock * cost.draft_s, clock * cost.overhead_s)


def _by_gain(plant: Plant) -> dict[str, Replayable]:
    return {name: plant.workloads[name] for name in sorted(plant.workloads, key=plant.gain, reverse=True)}
