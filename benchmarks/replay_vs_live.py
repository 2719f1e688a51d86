"""Replay against live runs: acceptance length, predicted from k = 7 recordings and measured, on the same prompts.

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
from draftgate.experiment.record import recording_policies
from draftgate.policy.length import Fixed
from draftgate.policy.policy import Policy
from draftgate.replay.accept import Replayable
from draftgate.replay.blend import Recording, predict_blend
from draftgate.replay.predict import predict
from draftgate.replay.trajectory import predict_trajectories, retrace
from draftgate.trace.columns import Columns
from draftgate.trace.records import RequestRecord
from draftgate.workload.packs import load, pack_names

K = 7
LOSSLESS = [Policy(f"exact-k{k}", "exact", length=Fixed(k)) for k in (1, 3, 5, 7)]
LOSSY = [
    Policy(f"or-{tau}-k{k}", "threshold-or-lossless", tau, length=Fixed(k))
    for tau in (0.1, 0.15, 0.2, 0.3)
    for k in (3, 7)
] + [
    Policy("cascade-0.7-k5", "cascade", None, {"alpha": 0.7}, length=Fixed(5)),
    Policy("threshold-0.15-k5", "threshold", 0.15, length=Fixed(5)),
    Policy("typical-0.1-k5", "typical", 0.1, length=Fixed(5)),
]


def acceptance_length(runs):
    """Committed tokens per step over all runs."""
    return sum(r.step_tokens for r in runs) / sum(len(r.steps) for r in runs)


def recorded(engine, requests, policy):
    """One recording, and its completions."""
    done = [engine.generate([r], policy, record=True)[0] for r in requests]
    rows = [
        RequestRecord(
            request=i,
            prompt_id=d.request.id,
            workload=d.request.workload,
            language=d.request.language,
            policy=policy.name,
            prompt_tokens=np.array(d.request.tokens, np.int32),
            output_tokens=np.array(d.tokens, np.int32),
            finish=d.finish,
            prefill_s=d.prefill_s,
            decode_s=d.decode_s,
        )
        for i, d in enumerate(done)
    ]
    steps = [replace(step, request=i) for i, d in enumerate(done) for step in d.steps]
    return Recording.of(Replayable.of(Columns.from_records(rows, steps))), done


def predictions(recordings, trajectories, policy):
    """Acceptance length by estimator."""
    found = {"renewal": predict(recordings[0].replayable, policy, resamples=0)}
    if policy.lossless:
        found["trajectory"] = predict_trajectories(trajectories, policy, resamples=0)
    else:
        found["blend"] = predict_blend(recordings, policy, resamples=0)
    return {name: p.acceptance_length for name, p in found.items()}


def main():
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 12
    engine = LlamaCpp(resolve("smollm2-135m"))
    errors = {}
    for pack in pack_names():
        requests = [engine.encode(p, pack, 64, Sampling()) for p in load(pack).prompts[-n:]]
        pairs = [recorded(engine, requests, policy) for policy in recording_policies(K, True).values()]
        recordings = [recording for recording, _ in pairs]
        trajectories = [
            retrace(d.request.tokens, d.tokens, d.request.max_tokens, K, engine.end_tokens) for d in pairs[0][1]
        ]
        for policy in LOSSLESS + LOSSY:
            live = acceptance_length([engine.generate([r], policy)[0] for r in requests])
            found = predictions(recordings, trajectories, policy)
            for estimator, value in found.items():
                errors.setdefault((policy.name, estimator), []).append(value / live - 1)
            shown = ", ".join(f"{name} {value:.3f} ({value / live - 1:+.1%})" for name, value in found.items())
            print(f"{pack:16} {policy.name:18} live {live:.3f}  {shown}", flush=True)
    print(f"\nrelative error over {len(pack_names())} packs of {n} prompts: mean, mean absolute, worst")
    for (policy, estimator), values in errors.items():
        mean, size, worst = np.mean(values), np.abs(values).mean(), max(values, key=abs)
        print(f"{policy:18} {estimator:10} {mean:+.1%} {size:.1%} {worst:+.1%}")


if __name__ == "__main__":
    main()
