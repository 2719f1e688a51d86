"""What the article does with an API that vLLM never had, done with one that runs.

Sets the acceptance threshold, reads every request's acceptance, and changes the threshold between two batches of one
engine. Needs vLLM and draftgate in one environment:

    python examples/vllm_article.py MODEL          # a model's name or folder
"""

import sys

from draftgate.engines.vllm.control import put_policies
from draftgate.policy.length import Fixed
from draftgate.policy.policy import Policy
from draftgate.policy.policyset import PolicySet
from vllm import LLM, SamplingParams

PROMPTS = [
    "def add(a, b):\n    return a + b\n\ndef add_three(a, b, c):\n    return a +",
    "for item in items:\n    print(item)\nfor item in items:\n    print(",
]
K = 5  # speculative tokens


def batch(llm: LLM, policy: Policy) -> None:
    """Generate under a policy and print each request's acceptance."""
    put_policies(llm, PolicySet((policy,), policy.name))
    params = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True)
    for i, output in enumerate(llm.generate(PROMPTS, params, use_tqdm=False)):
        seen = output.outputs[0].spec_decode_metrics
        kept, drafted = sum(n * steps for n, steps in enumerate(seen.histogram)), seen.num_draft_tokens
        rate = f"{kept / drafted:.2f}" if drafted else "-"
        print(f"{policy.name:>8}  request {i}: kept {kept} of {drafted} drafted tokens, rate {rate}")


def main(model: str) -> None:
    """Run the same batch under exact match and three thresholds."""
    llm = LLM(
        model,
        speculative_config={"method": "ngram", "num_speculative_tokens": K, "prompt_lookup_max": 3},
        per_request_spec_decode_metrics="summary",
        max_model_len=512,
    )
    batch(llm, Policy("exact", length=Fixed(K)))
    for tau in (0.75, 0.60, 0.10):
        batch(llm, Policy(f"tau {tau:.2f}", "threshold", tau, length=Fixed(K)))


if __name__ == "__main__":
    main(*sys.argv[1:])
