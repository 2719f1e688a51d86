"""vLLM's second model runner on a CPU, its Triton kernels interpreted; test_v2_contract.py runs it as a process.

Needs the `triton` package, which is for GPUs; its interpreter is not. vLLM looks for a driver, and is shown one.

    python v2_on_cpu.py MODEL_DIR > results.json
"""

import json
import os
import sys
from types import SimpleNamespace
from typing import Any

os.environ |= {"TRITON_INTERPRET": "1", "VLLM_USE_V2_MODEL_RUNNER": "1", "VLLM_LOGGING_STREAM": "ext://sys.stderr"}

import triton.backends

triton.backends.backends["cpu"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True))

from vllm import LLM, SamplingParams

from draftgate.engines.vllm.plugin import PLUGIN, register
from draftgate.engines.vllm.source import SOURCE
from draftgate.policy.length import Fixed
from draftgate.policy.policy import Policy
from draftgate.policy.policyset import PolicySet

K = 3
PROMPTS = ("Repeat: a b c d a b c d a b", "def fibonacci(n):\n    if n < 2:", "one two one two one")
STRICT = Policy("strict", "threshold", 0.9, length=Fixed(K))
POLICIES = PolicySet((Policy("own", "exact", length=Fixed(K)), STRICT, Policy("off", length=Fixed(0))), "own")


def generate(llm: Any, temperature: float, asks: list[str | None]) -> list[dict[str, Any]]:
    params = [
        SamplingParams(
            temperature=temperature,
            max_tokens=16,
            seed=i,
            extra_args=None if ask is None else {"draftgate_policy": ask},
        )
        for i, ask in enumerate(asks)
    ]
    outputs = [request.outputs[0] for request in llm.generate(list(PROMPTS), params, use_tqdm=False)]
    return [
        {
            "tokens": list(output.token_ids),
            "drafted": output.spec_decode_metrics.num_draft_tokens,
            "accepted": sum(output.spec_decode_metrics.per_step_accepted),
        }
        for output in outputs
    ]


def recorded(llm: Any, temperature: float) -> dict[str, Any]:
    kept: list[Any] = []
    PLUGIN.record(lambda kind, pairs: kept.extend(pairs))
    results = generate(llm, temperature, [None] * 3)
    PLUGIN.stop_recording()
    traced = [
        {
            "tokens": record.output_tokens.tolist(),
            "steps": [
                {
                    "accepted": step.accepted,
                    "logp": step.drafted.logp.tolist(),
                    "rank": step.drafted.rank.tolist(),
                    "uniform": step.drafted.uniform.tolist(),
                }
                for step in steps
            ],
        }
        for record, steps in kept
    ]
    return {"results": results, "traced": traced}


def main() -> None:
    register()
    llm = LLM(
        sys.argv[1],
        dtype="float32",
        enforce_eager=True,
        max_model_len=128,
        max_num_seqs=4,
        # The model drafts for itself: this shows the runner, not a gain. (Its n-gram kernel cannot be interpreted.)
        speculative_config={"method": "draft_model", "model": sys.argv[1], "num_speculative_tokens": K},
        per_request_spec_decode_metrics="detailed",
    )
    out: dict[str, Any] = {"runner": [type(runner).__module__ for runner in PLUGIN.runners]}
    for name, temperature in (("greedy", 0.0), ("sampled", 0.8)):
        SOURCE.set(None, None)
        out[name] = {"none": generate(llm, temperature, [None] * 3)}
        SOURCE.set(POLICIES, None)
        out[name]["own"] = generate(llm, temperature, [None] * 3)
        out[name]["mixed"] = generate(llm, temperature, [None, "strict", "off"])
        out[name]["recorded"] = recorded(llm, temperature)
    out["faults"] = dict(PLUGIN.faults.first)
    print(json.dumps(out))


if __name__ == "__main__":
    main()
