# ruff: noqa: E402 (threads are limited before numpy is imported)
"""Time replaying 1,000 policies on a trace of 1,000,000 drafted tokens, on one core, against a plain Python loop.

python benchmarks/replay.py [--tokens 1000000] [--loop-tokens 50000]

The policies are 4 rules x 10 thresholds x 5 sets of category offsets x 5 draft lengths. The loop is what one would
write first: token by token, on lists, stopping at a rejection. It runs on the first part of the trace for every 23rd
policy, must find the same counts there, and its time is scaled to all tokens and policies. Seconds are of CPU time,
which a busy machine stretches less than the clock.
"""

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # before numpy starts its threads
    os.environ[_name] = "1"

import argparse
import math
import resource
import time
from collections.abc import Iterator
from itertools import product

import numpy as np

from draftgate.cost.steps import Curve, StepCost
from draftgate.policy.category import Category
from draftgate.policy.length import Fixed
from draftgate.policy.policy import Policy
from draftgate.replay.accept import Replayable
from draftgate.replay.predict import pieces, predict
from draftgate.trace.columns import Columns

K = 7
STEPS_PER_REQUEST = 143
RULES = ("threshold", "threshold-or-lossless", "sglang", "typical")
TAUS = (0.01, 0.03, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.65, 0.8)
OFFSETS: tuple[dict[str, float], ...] = (
    {},
    {"structural": 0.15},
    {"safe": -0.1},
    {"safe": -0.1, "structural": 0.15},
    {"string": 0.05, "keyword": 0.05, "structural": -0.1},
)
LENGTHS = (1, 2, 3, 5, 7)
Token = tuple[float, bool, float, int, float]  # p, is argmax, entropy, category, margin

COST = StepCost({1: Curve(1, tuple(0.02 + 0.001 * m for m in range(1, K + 2)), (0.0,) * (K + 1), 100)})


def synthetic(tokens: int) -> Columns:
    """A greedy trace of drafts of K; the target's first choice is drafted at 75% of the positions."""
    rng = np.random.default_rng(0)
    steps = tokens // K
    shape = (K, steps)
    top = rng.beta(4, 1, shape).astype(np.float32).clip(0.05, 0.999)
    argmax = rng.random(shape) < 0.75
    p = np.where(argmax, top, (1 - top) * rng.beta(1, 4, shape)).astype(np.float32).clip(1e-6)
    request = np.arange(steps, dtype=np.int32) // STEPS_PER_REQUEST
    whole = {name: np.full(steps, n, np.int32) for name, n in (("drafted_n", K), ("accepted", K), ("committed", K + 1))}
    return Columns(
        request=request,
        offset=(np.arange(steps, dtype=np.int32) % STEPS_PER_REQUEST) * 4,
        batch=np.ones(steps, np.int32),
        draft_s=np.zeros(steps),
        verify_s=np.zeros(steps),
        tokens=np.zeros(shape, np.int32),
        evidence=np.ones(shape, np.float32),
        category=rng.integers(0, len(Category), shape).astype(np.uint8),
        logp=np.log(p),
        logq=np.zeros(shape, np.float32),
        top1_margin=np.where(argmax, 0, np.log(top / p)).astype(np.float32),
        rank=np.where(argmax, 0, 1).astype(np.int32),
        entropy=(1 - top) * 4,
        uniform=np.full(shape, 0.5, np.float32),
        languages=("python",) * (int(request[-1]) + 1),
        greedy=True,
        **whole,
    )


def policies() -> list[Policy]:
    return [
        Policy(f"{rule} {tau} {i} {k}", rule, tau, category=offsets, length=Fixed(k))
        for rule, tau, (i, offsets), k in product(RULES, TAUS, enumerate(OFFSETS), LENGTHS)
    ]


def listed(columns: Columns) -> list[list[Token]]:
    """Drafted tokens of each step."""
    arrays = (np.exp(columns.logp), columns.rank == 0, columns.entropy, columns.category, columns.top1_margin)
    rows = [a.T.tolist() for a in arrays]
    return [list(zip(*step, strict=True)) for step in zip(*rows, strict=True)]


def loop(steps: list[list[Token]], policy: Policy) -> tuple[float, float, float, float]:
    """The plain loop: committed tokens, steps, lossy tokens and nats given up."""
    k, rule, tau = policy.length.most, policy.rule, policy.tau or 0.0
    offsets = [float(v) for v in policy.category_offsets()]
    strict = rule in ("threshold", "typical")
    tokens = pieces_n = lossy = nats = 0.0
    for step in steps:
        kept, alive = 0, True
        for p, argmax, entropy, category, margin in step:
            if kept == k:
                tokens, pieces_n, kept = tokens + k + 1, pieces_n + 1, 0
                alive = argmax
            else:
                limit = min(max(tau + offsets[category], 0.0), 1.0)
                if rule == "threshold":
                    keep = p >= limit
                elif rule == "typical":
                    keep = p >= min(limit, 0.3 * math.exp(-entropy))
                else:
                    keep = p >= limit or argmax
                if keep:
                    kept += 1
                    if not argmax:
                        lossy, nats = lossy + 1, nats + margin
                else:
                    tokens, pieces_n, kept = tokens + kept + 1, pieces_n + 1, 0
                    alive = argmax and strict
            if not alive:
                break
        if alive:
            tokens, pieces_n = tokens + kept + 1, pieces_n + (kept + 1) / (k + 1)
    return tokens, pieces_n, lossy, nats


def rows(tokens: int, loop_tokens: int) -> Iterator[tuple[str, str]]:
    columns, chosen = synthetic(tokens), policies()
    start = time.process_time()
    replayable = Replayable.of(columns)
    prepared = time.process_time() - start
    start = time.process_time()
    best = max((predict(replayable, policy, COST, resamples=0) for policy in chosen), key=lambda p: p.speedup or 0.0)
    vectorised = time.process_time() - start

    part = columns.of(np.arange(columns.n_requests) * STEPS_PER_REQUEST * K < loop_tokens)
    replayed, steps, sample = Replayable.of(part), listed(part), chosen[::23]
    start = time.process_time()
    found = [loop(steps, policy) for policy in sample]
    looped = (time.process_time() - start) * columns.shape[1] / len(steps) * len(chosen) / len(sample)
    for plain, policy in zip(found, sample, strict=True):
        same = pieces(replayed, policy)
        sums = [float(a.sum()) for a in (same.tokens, same.by_length, same.lossy, same.given_up)]
        if not np.allclose(plain, sums, rtol=1e-6):
            raise SystemExit(f"the loop and the replay differ on {policy}: {plain} {sums}")

    yield "drafted tokens", f"{columns.shape[1] * K:,}"
    yield "policies", f"{len(chosen):,}"
    yield "prepare, s", f"{prepared:.2f}"
    yield "replay, s", f"{vectorised:.2f}"
    yield "plain loop, s (scaled)", f"{looped:,.0f}"
    yield "ratio", f"{looped / vectorised:.0f}"
    yield "peak memory, MiB", f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f}"
    yield "best policy here", f"{best.policy}: {best.speedup:.2f}x"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--loop-tokens", type=int, default=50_000)
    arguments = parser.parse_args()
    for name, value in rows(arguments.tokens, arguments.loop_tokens):
        print(f"{name:24}{value:>14}")


if __name__ == "__main__":
    main()
