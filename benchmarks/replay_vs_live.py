"""Replay against live runs: acceptance length, predicted from one k = 7 recording and measured, on the same prompts.

    python benchmarks/replay_vs_live.py [PROMPTS_PER_PACK]

Needs no quiet machine: greedy acceptance does not depend on time. Prints the relative error of each estimator per pack
and over all; `docs/log.md` keeps the figures.
"""

import sys
from dataclasses import replace

import numpy as np

from draftgate.engines.base import Sampling
from draftgate.engines.llamacpp.engine import LlamaCpp
from draftgate.engines.llamacpp.models import resolve
from draftgate.experiment.record import recording_policy
from draftgate.policy.length import Fixed
from draftgate.policy.policy import Policy
from draftgate.replay.accept import Replayable
from draftgate.replay.predict import predict
from draftgate.replay.trajectory import predict_trajectories, retrace
from draftgate.trace.columns import Columns
from draftgate.trace.records import RequestRecord
from draftgate.workload.packs import load, pack_names

K = 7
LOSSLESS = [Policy(f"exact-k{k}", "exact", length=Fixed(k)) for k in (1, 3, 5, 7)]
LOSSY = [
    Policy(f"or-{tau}-k{k}", "threshold-or-lossless", tau, length=Fixed(k))
    for tau in (0.03, 0.1, 0.2, 0.3)
    for k in (3, 7)
]


def acceptance_length(runs):
    """Committed tokens per step over all runs."""
    return sum(r.step_tokens for r in runs) / sum(len(r.steps) for r in runs)


def main():
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 12
    engine = LlamaCpp(resolve("smollm2-135m"))
    errors = {}
    for pack in pack_names():
        prompts = load(pack).prompts[-n:]
        requests = [engine.encode(p, pack, 64, Sampling()) for p in prompts]
        recorded = [engine.generate([r], recording_policy(K, True), record=True)[0] for r in requests]
        rows = [
            RequestRecord(
                request=i,
                prompt_id=done.request.id,
                workload=pack,
                language=done.request.language,
                policy="recording",
                prompt_tokens=np.array(done.request.tokens, np.int32),
                output_tokens=np.array(done.tokens, np.int32),
                finish=done.finish,
                prefill_s=done.prefill_s,
                decode_s=done.decode_s,
            )
            for i, done in enumerate(recorded)
        ]
        steps = [replace(step, request=i) for i, done in enumerate(recorded) for step in done.steps]
        replayable = Replayable.of(Columns.from_records(rows, steps))
        trajectories = [
            retrace(d.request.tokens, d.tokens, d.request.max_tokens, K, engine.end_tokens) for d in recorded
        ]
        for policy in LOSSLESS + LOSSY:
            live = acceptance_length([engine.generate([r], policy)[0] for r in requests])
            found = {"renewal": predict(replayable, policy, resamples=0).acceptance_length}
            if policy.lossless:
                found["trajectory"] = predict_trajectories(trajectories, policy, resamples=0).acceptance_length
            for estimator, value in found.items():
                errors.setdefault((policy.name, estimator), []).append(value / live - 1)
            shown = ", ".join(f"{name} {value:.3f} ({value / live - 1:+.1%})" for name, value in found.items())
            print(f"{pack:16} {policy.name:12} live {live:.3f}  {shown}", flush=True)
    print(f"\nrelative error over {len(pack_names())} packs of {n} prompts: mean, worst")
    for (policy, estimator), values in errors.items():
        print(f"{policy:12} {estimator:10} {np.mean(values):+.1%} {max(values, key=abs):+.1%}")


if __name__ == "__main__":
    main()
