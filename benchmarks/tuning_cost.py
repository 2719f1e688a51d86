"""What tuning costs and how good its answer is, against an exhaustive live grid on the same prompts.

    python benchmarks/tuning_cost.py RUN_DIRECTORY WORKLOAD [--prompts 8] [--threads 1]

The grid is rules x 9 settings x 6 draft lengths, every arm run live. Acceptance is measured; time is each step's
measured cost at its draft length, so that the comparison of hundreds of arms does not depend on what else the machine
was doing. Tokens count what arms generated: those of the run (recording and proof) against those of the grid over all
held-out prompts.
"""

import argparse
import json
from itertools import product
from pathlib import Path

import numpy as np

from draftgate.cost.steps import StepCost
from draftgate.engines.base import Sampling
from draftgate.engines.llamacpp.engine import LlamaCpp
from draftgate.engines.llamacpp.models import resolve
from draftgate.experiment.arms import Arm
from draftgate.experiment.live import Block
from draftgate.experiment.rundir import BlockLog, read_json
from draftgate.policy.length import Fixed
from draftgate.policy.policy import Policy
from draftgate.trace.store import TraceStore
from draftgate.workload.packs import load

LENGTHS = (1, 3, 5, 7, 10, 15)
SETTINGS = (0.01, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 0.65, 0.8)


def grid() -> list[Policy]:
    arms = [Policy(f"exact-k{k}", length=Fixed(k)) for k in LENGTHS]
    for k, x in product(LENGTHS, SETTINGS):
        arms += [
            Policy(f"threshold-{x}-k{k}", "threshold", x, length=Fixed(k)),
            Policy(f"or-{x}-k{k}", "threshold-or-lossless", x, length=Fixed(k)),
            Policy(f"typical-{x}-k{k}", "typical", x, length=Fixed(k)),
            Policy(f"topk-margin-{x}-k{k}", "topk-margin", None, {"delta": x}, length=Fixed(k)),
            Policy(f"cascade-{x}-k{k}", "cascade", None, {"alpha": x}, length=Fixed(k)),
        ]
    return arms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("workload")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    folder = arguments.run / arguments.workload
    cost = StepCost.from_mapping(read_json(arguments.run / "cost.json"))
    blocks = [Block.from_mapping(row) for row in BlockLog(folder / "live.jsonl").read()]
    proof = sum(len(run.tokens) for block in blocks for run in block.runs)
    recording = sum(len(r.output_tokens) for r in TraceStore(folder / "trace").requests())
    result = json.loads((arguments.run / "result.json").read_text("utf-8"))
    recommended = next(w["recommended"] for w in result["workloads"] if w["name"] == arguments.workload)
    tuned = next(
        a.policy for row in read_json(folder / "arms.json")["arms"] if (a := Arm.from_mapping(row)).name == recommended
    )

    held_out = list(dict.fromkeys(block.prompt for block in blocks))
    prompts = [p for p in load(arguments.workload).prompts if p.id in held_out[: arguments.prompts]]
    engine = LlamaCpp(resolve("smollm2-135m"), threads=arguments.threads)
    requests = [engine.encode(p, arguments.workload, 64, Sampling()) for p in prompts]

    def rate(policy: Policy) -> tuple[float, int]:
        """Modelled tokens per second from measured steps, and tokens generated."""
        done = [engine.generate([r], policy)[0] for r in requests]
        drafted = np.array([step.drafted_n for d in done for step in d.steps])
        return sum(d.step_tokens for d in done) / float(cost.step_s(drafted).sum()), sum(len(d.tokens) for d in done)

    none, _ = rate(Policy("none", length=Fixed(0)))
    answer, _ = rate(tuned)
    found, tokens = {}, 0
    for i, policy in enumerate(arms := grid()):
        found[policy.name], n = rate(policy)
        tokens += n
        if i % 20 == 0:
            print(f"{i}/{len(arms)}", flush=True)
    whole = tokens * len(held_out) / len(prompts)
    lossless = {p.name: found[p.name] for p in arms if p.lossless}
    print(f"live tokens: tune {proof + recording:,}, grid {whole:,.0f}: {(proof + recording) / whole:.1%}")
    for label, rates in (("lossless", lossless), ("any", found)):
        best = max(rates, key=lambda name: rates[name])
        print(
            f"best {label} arm of the grid: {best} {rates[best] / none:.3f}x; recommended {recommended} "
            f"{answer / none:.3f}x, {answer / rates[best] - 1:+.1%}"
        )


if __name__ == "__main__":
    main()
