# ruff: noqa: E402 (threads are limited before numpy is imported)
"""What the control loop costs: cutting requests into windows, and one decision on a window.

python benchmarks/control_speed.py [--rounds 7] [--requests 200000]

Ingestion is compared with the plain way in the same run: a Python loop that adds up one record at a time. Targets:
200,000 requests a second on one core, one decision (guards, breaker, controller) in 1 ms, memory that does not grow.
"""

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # before numpy starts its threads
    os.environ[_name] = "1"

import argparse
import random
import statistics
import time
import tracemalloc
from collections.abc import Callable

import numpy as np

from draftgate.control.assemble import Options, lanes
from draftgate.control.samples import COUNTS, Samples, WindowMaker
from draftgate.control.window import Window
from draftgate.cost.steps import Curve, StepCost
from draftgate.policy.length import Fixed
from draftgate.policy.policy import Policy
from draftgate.policy.policyset import PolicySet

BATCH, K, WINDOW = 2000, 7, 500


def requests(n: int, seed: int, first: int) -> Samples:
    """n finished requests of 40 steps that each draft K tokens."""
    rng = np.random.default_rng(seed)
    kept = rng.binomial(40, 0.7 ** np.arange(1, K + 1), (n, K))
    drafts = np.full((n, K), 40)
    reached = np.concatenate((drafts[:, :1], kept[:, :-1]), axis=1)
    accepted = kept.sum(axis=1)
    columns = {"steps": 40, "covered": 40, "drafted": 40 * K, "accepted": accepted, "committed": 40 + accepted}
    counts = np.stack([np.broadcast_to(columns.get(name, 1), n) for name in COUNTS], axis=1)
    end_s = np.sort(rng.uniform(0, 10, n)) + first / n * 10
    seconds, batch = np.full(n, 0.4), np.full(n, 8.0)
    return Samples(
        np.arange(first, first + n), end_s, counts, np.stack((kept, reached, drafts), axis=1), seconds, batch, seconds
    )


def plain(samples: Samples) -> list[Window]:
    """The rival: one record at a time, dictionaries and lists, the same windows but for their percentile."""
    windows, sums, positions, n = [], dict.fromkeys(COUNTS, 0), [[0] * K for _ in range(3)], 0
    seen: set[int] = set()
    for id_, row, at in zip(samples.id.tolist(), samples.counts.tolist(), samples.positions.tolist(), strict=True):
        if id_ in seen:
            continue
        seen.add(id_)
        for name, value in zip(COUNTS, row, strict=True):
            sums[name] += value
        for into, values in zip(positions, at, strict=True):
            for i, value in enumerate(values):
                into[i] += value
        n += 1
        if n == WINDOW:
            kept, reached, offered = map(tuple, positions)
            windows.append(
                Window(
                    "w", "p", 0.0, 1.0, n, **sums, kept=kept, reached=reached, offered=offered, seconds=1.0,
                    batch=8.0, latency_s=None,
                )
            )  # fmt: skip
            sums, positions, n = dict.fromkeys(COUNTS, 0), [[0] * K for _ in range(3)], 0
    return windows


def seconds_of(work: Callable[[], object]) -> float:
    begun_s = time.perf_counter()
    work()
    return time.perf_counter() - begun_s


def ingestion(total: int, rounds: int) -> None:
    batches = [requests(BATCH, i, i * BATCH) for i in range(total // BATCH)]
    ours, theirs = [], []
    for _ in range(rounds):
        maker = WindowMaker("w", "p", size=WINDOW, most_s=1e9)
        ours.append(seconds_of(lambda maker=maker: [maker.add(b) for b in batches]))  # type: ignore[misc]
        theirs.append(seconds_of(lambda: [plain(b) for b in batches[: len(batches) // 10]]) * 10)
    rate, rival = total / statistics.median(ours), total / statistics.median(theirs)
    print(f"ingestion: {rate:,.0f} requests/s in columns, {rival:,.0f}/s one at a time: {rate / rival:.1f} times")


def decisions(rounds: int) -> None:
    curves = {b: Curve(b, tuple(0.01 * (1 + 0.05 * m) for m in range(17)), (0.0,) * 17, 9) for b in (1, 8, 32)}
    (windows,) = [WindowMaker("w", "p", size=WINDOW, most_s=1e9).add(requests(40 * WINDOW, 0, 0))]
    for controller, policy in (
        ("goodput", Policy("exact", length=Fixed(K))),
        ("pid", Policy("tau", "threshold", 0.65, length=Fixed(K))),
    ):
        options = Options(controller=controller, cost=StepCost(curves))
        (lane,) = lanes(PolicySet((policy,), policy.name), False, options, random.Random(0))
        took = []
        for w in windows * rounds:
            took.append(seconds_of(lambda w=w, lane=lane: lane.take(w, 0.0)))  # type: ignore[misc]
            lane.wait(0.0, 0.0)
        low, high = statistics.median(took), statistics.quantiles(took, n=100)[98]
        print(
            f"decision, {controller}: median {1e3 * low:.3f} ms, p99 {1e3 * high:.3f} ms, windows of {WINDOW} requests"
        )


def memory() -> None:
    maker = WindowMaker("w", "p", size=WINDOW, most_s=1e9)
    tracemalloc.start()
    held = []
    for i in range(200):
        maker.add(requests(BATCH, i, i * BATCH))
        if i in (19, 199):
            held.append(tracemalloc.get_traced_memory()[0] / 1e6)
    tracemalloc.stop()
    print(f"memory: {held[0]:.2f} MB after {20 * BATCH:,} requests, {held[1]:.2f} MB after {200 * BATCH:,}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--requests", type=int, default=200_000)
    a = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} processors")
    ingestion(a.requests, a.rounds)
    decisions(a.rounds)
    memory()


if __name__ == "__main__":
    main()
