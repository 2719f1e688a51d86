# ruff: noqa: E402 (threads are limited before numpy is imported)
"""Time that a step spends outside the target's decode, on the embedded model: drafting, rule, records, bookkeeping.

python benchmarks/step_overhead.py [--k 7] [--threads 1] [--rounds 7] [--workload code-edit]

Lookup drafts, greedy. Per arm: the median over rounds of microseconds a step, and of its share of the step's time. Arms
take turns within a round. The target's decode is what the step records give as verify_s, from writing the batch to
logits; more threads or a faster model shorten it, the microseconds stay, so read both columns. Target: 3% at most for
the arms that do not record.
"""

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # before numpy starts its threads
    os.environ[_name] = "1"

import argparse
import statistics
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing

from draftgate.engines.base import Completion, Engine, Sampling
from draftgate.engines.llamacpp.engine import LlamaCpp
from draftgate.engines.llamacpp.models import pull
from draftgate.policy.length import Calibration, Fixed, Goodput
from draftgate.policy.policy import NONE, Policy
from draftgate.workload.packs import load

Arm = tuple[str, Policy, bool]


def arms(engine: Engine, k: int) -> list[Arm]:
    """(name, policy, whether it records); the goodput arm by costs measured here and a plausible calibration."""
    verify_s = engine.measure_cost([1], k + 1, 2.0).curve(1).seconds
    calibration = Calibration({"*": ((0.0, 2.0, 8.0), (0.4, 0.7, 0.95))})
    goodput = Goodput(k, calibration, {1: verify_s}, {1: 1 / verify_s[0]})
    exact, loose = Policy("exact", length=Fixed(k)), Policy("or", "threshold-or-lossless", 0.1, length=Fixed(k))
    offsets = Policy("or", "threshold-or-lossless", 0.1, category={"structural": 0.1}, length=Fixed(k))
    return [
        ("none", NONE, False),
        ("exact", exact, False),
        ("threshold-or-lossless", loose, False),
        ("the same, by category", offsets, False),
        ("goodput", Policy("goodput", length=goodput), False),
        ("exact, recording", exact, True),
    ]


def outside(done: Sequence[Completion]) -> tuple[float, float]:
    """(microseconds a step outside the decode, their share of the step)."""
    total = sum(d.decode_s for d in done)
    decode = sum(step.verify_s for d in done for step in d.steps)
    steps = sum(len(d.steps) for d in done)
    return 1e6 * (total - decode) / steps, (total - decode) / total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--k", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--prompts", type=int, default=2)
    parser.add_argument("--workload", default="code-edit")
    a = parser.parse_args()
    with closing(LlamaCpp(pull("smollm2-135m"), threads=a.threads)) as engine:
        prompts = load(a.workload).prompts[: a.prompts]
        requests = [engine.encode(prompt, a.workload, 64, Sampling()) for prompt in prompts]
        compared, seen = arms(engine, a.k), defaultdict(list)
        for _ in range(a.rounds):
            for name, policy, record in compared:
                seen[name].append(outside([engine.generate([r], policy, record)[0] for r in requests]))
    print(f"k = {a.k}, {a.threads} threads, load {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} processors")
    print(f"{'arm':24}{'us a step':>12}{'least':>8}{'share':>8}{'least':>8}")
    for name, _, _ in compared:
        us, share = zip(*seen[name], strict=True)
        print(f"{name:24}{statistics.median(us):12.0f}{min(us):8.0f}{statistics.median(share):8.1%}{min(share):8.1%}")


if __name__ == "__main__":
    main()
