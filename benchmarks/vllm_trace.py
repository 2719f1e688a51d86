"""What recording a trace costs a running vLLM: the same greedy requests with every request recorded, and with none.

    VENV/bin/python benchmarks/vllm_trace.py MODEL [DRAFT] [--rounds 12] [--batch 1]      # VENV from tools/vllm_env.py

One engine in this process decodes the same prompts in turns, so that a busy machine slows both alike; drafts and texts
are the same, because the rule is vLLM's own. Printed is the ratio of their seconds, with the spread over the rounds.
The recorder's thread writes into memory here, not to a disk. Draft: as in `tune --draft`.
"""

import argparse
import json
from contextlib import closing

import numpy as np

from draftgate.engines.base import Request
from draftgate.engines.vllm.offline import VllmOffline
from draftgate.policy.length import Fixed
from draftgate.policy.policy import Policy

_PHRASE_TOK, _REPEATS, _OUTPUT_TOK, _CONTEXT_TOK = 16, 8, 64, 256  # a prompt that repeats itself has drafts to offer


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("model")
    words.add_argument("draft", nargs="?", default="ngram")
    words.add_argument("--rounds", type=int, default=12)
    words.add_argument("--batch", type=int, default=1)
    words.add_argument("--k", type=int, default=5)
    words.add_argument("--threads", type=int, default=1)
    words.add_argument("--engine-args", type=json.loads, default={"enforce_eager": True, "dtype": "float32"})
    asked = words.parse_args()
    tokens = tuple(range(100, 100 + _PHRASE_TOK)) * _REPEATS
    requests = [Request(str(i), tokens, _OUTPUT_TOK) for i in range(asked.batch)]
    with closing(
        VllmOffline(asked.model, asked.draft, asked.k, _CONTEXT_TOK, asked.threads, asked.batch, asked.engine_args)
    ) as engine:
        policy = Policy("exact", length=Fixed(asked.k))
        for record in (False, True):
            drafted = _drafted(engine, requests, policy, record)
        ratios = np.array([_round(engine, requests, policy, number) for number in range(asked.rounds)])
    low, middle, high = np.quantile(ratios, [0.1, 0.5, 0.9])
    print(f"{asked.draft}, batch {asked.batch}, k {asked.k}, {drafted} tokens drafted: recorded takes {middle:.3f}x")
    print(f"  [{low:.3f}, {high:.3f}] in 80% of {asked.rounds} rounds")


def _drafted(engine: VllmOffline, requests: list[Request], policy: Policy, record: bool) -> int:
    return sum(step.drafted_n for done in engine.generate(requests, policy, record) for step in done.steps)


def _round(engine: VllmOffline, requests: list[Request], policy: Policy, number: int) -> float:
    """Seconds of decoding, recorded by not recorded; who goes first takes turns."""
    order = (True, False) if number % 2 else (False, True)
    seconds = {record: _decode_s(engine, requests, policy, record) for record in order}
    return seconds[True] / seconds[False]


def _decode_s(engine: VllmOffline, requests: list[Request], policy: Policy, record: bool) -> float:
    return max(done.decode_s for done in engine.generate(requests, policy, record))


if __name__ == "__main__":
    main()
