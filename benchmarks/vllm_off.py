"""What remains of speculation that is off: vLLM under a policy that never drafts, against one started without drafter.

    "$(python tools/vllm_env.py)"/bin/python benchmarks/vllm_off.py MODEL [DRAFT] [--rounds 20] [--batch 1]

Both engines live in this process and decode the same prompt in turns, so that a busy machine slows both alike. Printed
is the ratio of their median seconds a step, with the interval of the rounds' ratios. Draft: as in `tune --draft`.
"""

import argparse
import json
from contextlib import closing

import numpy as np

from draftgate.engines.base import Request
from draftgate.engines.vllm.offline import VllmOffline, _params
from draftgate.engines.vllm.start import start
from draftgate.engines.vllm.stepper import Stepper
from draftgate.policy.policy import NONE

_PROMPT_TOK, _OUTPUT_TOK, _CONTEXT_TOK = 64, 48, 256


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("model")
    words.add_argument("draft", nargs="?", default="ngram")
    words.add_argument("--rounds", type=int, default=20)
    words.add_argument("--batch", type=int, default=1)
    words.add_argument("--engine-args", type=json.loads, default={"enforce_eager": True})
    asked = words.parse_args()
    tokens = tuple(range(100, 100 + _PROMPT_TOK))
    requests = [Request(str(i), tokens, _OUTPUT_TOK) for i in range(asked.batch)]
    options = {"n_ctx": _CONTEXT_TOK, "max_batch": asked.batch, "options": asked.engine_args}
    bare = Stepper(start(asked.model, None, threads=None, **options))
    with closing(VllmOffline(asked.model, asked.draft, **options)) as engine:
        engine.generate(requests, NONE)
        off, none = zip(*[_round(engine, bare, requests, i) for i in range(asked.rounds)], strict=True)
    ratios = np.array(off) / np.array(none)
    low, middle, high = np.quantile(ratios, [0.1, 0.5, 0.9])
    print(f"{asked.draft}, batch {asked.batch}: a step that is off takes {middle:.3f}x one without a drafter")
    print(f"  [{low:.3f}, {high:.3f}] in 80% of {asked.rounds} rounds; {np.median(off) * 1e3:.2f} ms a step")


def _round(engine: VllmOffline, bare: Stepper, requests: list[Request], number: int) -> tuple[float, float]:
    """Median seconds of a decode step, (off, without a drafter); who goes first takes turns."""
    first, second = (engine._stepper, bare) if number % 2 else (bare, engine._stepper)
    seconds = {stepper: _decode_s(stepper, requests) for stepper in (first, second)}
    return seconds[engine._stepper], seconds[bare]


def _decode_s(stepper: Stepper, requests: list[Request]) -> float:
    for request in requests:
        stepper.add(request.tokens, _params(request))
    return float(np.median([tick.seconds for tick in stepper.ticks()][2:]))


if __name__ == "__main__":
    main()
