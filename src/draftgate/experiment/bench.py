"""Given arms, side by side on one workload."""

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import draftgate
from draftgate.engines.base import Engine, Sampling
from draftgate.experiment.arms import BASELINE, Arm, require_distinct
from draftgate.experiment.compare import arm_figures, text_differences
from draftgate.experiment.judging import GateSettings, make_judge
from draftgate.experiment.live import run_blocks
from draftgate.experiment.rundir import BlockLog, RunDirectory
from draftgate.experiment.tune import digest
from draftgate.experiment.watch import Watch
from draftgate.policy.file import dump
from draftgate.policy.policy import Policy
from draftgate.workload.prompt import Workload

__all__ = ["bench"]

_ALPHA = 0.05


def bench(
    engine: Engine,
    workload: Workload,
    policies: Sequence[Policy],
    sampling: Sampling,
    max_tokens: int,
    budget_s: float,
    out: Path | None,
    watch: Watch,
    gate_settings: GateSettings,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Any]:
    """Compare policies with no speculation; arms are described as in `tune`.

    Args:
        out: run directory that keeps the measurements and can be resumed; None keeps nothing.

    Raises:
        ConfigError: two arms have one name, "none" included.
        InputError: the run directory holds other settings, or cannot be written.
    """
    arms = [BASELINE] + [Arm(policy, "given") for policy in policies if policy != BASELINE.policy]
    require_distinct(arms)
    requests = [engine.encode(p, workload.name, max_tokens, sampling) for p in workload.prompts]
    with tempfile.TemporaryDirectory() as scratch:
        run = RunDirectory(out or Path(scratch))
        settings = {
            "draftgate": draftgate.__version__,
            "workload": {workload.name: digest(workload)},
            "arms": {arm.name: dump(arm.policy) for arm in arms},
            "sampling": asdict(sampling),
            "max_tokens": max_tokens,
            "gate": asdict(gate_settings),
            "setup": asdict(engine.setup),
        }
        with run.opened(settings):
            judge = make_judge(workload, gate_settings, watch.say)
            watch.phase(workload.name, budget_s)
            log = BlockLog(run.of(workload.name) / "live.jsonl")
            blocks = run_blocks(
                engine, requests, arms, log, budget_s, sampling.seed, watch, _ALPHA, judge=judge, clock=clock
            )
            differences = text_differences(engine, requests, arms, blocks) if sampling.greedy else []
    gate = gate_settings.gate(workload, _ALPHA, len(arms) - 1)
    return {
        "schema": 1,
        "draftgate": draftgate.__version__,
        "setup": asdict(engine.setup) | {"key": engine.setup.key()},
        "workload": workload.name,
        "arms": [arm_figures(arm, blocks, _ALPHA, len(arms) - 1, gate) for arm in arms],
        "differences": differences,
    }
