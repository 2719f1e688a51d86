"""Sampling on a real engine of 32 tokens with a draft model: whose law the texts follow, token by token."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import chi2
from transformers import AutoModelForCausalLM

from draftgate.engines.vllm.plugin import PLUGIN
from draftgate.engines.vllm.source import SOURCE
from draftgate.engines.vllm.start import start
from draftgate.policy.length import Fixed
from draftgate.policy.policy import Policy
from draftgate.policy.policyset import PolicySet
from vllm import SamplingParams

pytestmark = pytest.mark.filterwarnings("ignore")  # vLLM and what it imports warn a lot

K = 3
LENGTH = 60
PROMPT = [5, 9, 1, 20]
HEAT = 0.9
BINS = 7  # the six likeliest tokens of a place, and all others
LOSSLESS = Policy("lossless-3", "lossless", length=Fixed(K))
LOOSE = Policy("loose-3", "threshold-or-lossless", 0.1, length=Fixed(K))

Texts = list[list[int]]


@pytest.fixture(scope="module")
def llm(toy_dir: Path, toy_draft_dir: Path) -> Iterator[Any]:
    draft = {"method": "draft_model", "model": str(toy_draft_dir), "draft_sample_method": "probabilistic"}
    options = {"skip_tokenizer_init": True, "dtype": "float32", "enforce_eager": True}
    made = start(str(toy_dir), draft | {"num_speculative_tokens": K}, 128, 1, 128, options)
    yield made
    made.llm_engine.engine_core.shutdown()
    PLUGIN.runners.clear()  # else this one, whose tokens have no classes, is asked until the garbage collector finds it


def written(llm: Any, policies: PolicySet | None, asks: Sequence[dict[str, str] | None]) -> Texts:
    """Texts of one request for each of `asks`; drafts are kept, and rejected, on the way."""
    SOURCE.set(policies, None)
    params = [
        SamplingParams(temperature=HEAT, max_tokens=LENGTH, ignore_eos=True, detokenize=False, seed=i, extra_args=ask)
        for i, ask in enumerate(asks)
    ]
    outputs = [r.outputs[0] for r in llm.generate([{"prompt_token_ids": PROMPT}] * len(asks), params, use_tqdm=False)]
    SOURCE.set(None, None)
    kept = sum(sum(output.spec_decode_metrics.per_step_accepted) for output in outputs)
    drafted = sum(output.spec_decode_metrics.num_draft_tokens for output in outputs)
    assert 0.1 < kept / drafted < 0.95
    return [list(output.token_ids) for output in outputs]


def surprise(model: Path, texts: Texts) -> float:
    """p-value of these texts under the model's own law.

    Given what precedes it, a token falls into bin r of its place with the probability that the model gives that bin.
    So counts less their expectation are a martingale, its covariance the sum of those of the places, and the squared
    distance has the chi-square law of BINS - 1 degrees of freedom.
    """
    with torch.no_grad():
        rows = torch.tensor([PROMPT + text for text in texts])
        logits = AutoModelForCausalLM.from_pretrained(model)(rows).logits[:, len(PROMPT) - 1 : -1]
        law, order = (logits.double() / HEAT).softmax(-1).sort(-1, descending=True)
    rank = (order == torch.tensor(texts)[..., None]).int().argmax(-1).flatten().numpy()
    counts = np.bincount(np.minimum(rank, BINS - 1), minlength=BINS)[:-1]
    bins: NDArray[np.float64] = law.flatten(0, 1)[:, : BINS - 1].numpy()
    away = counts - bins.sum(0)
    covariance = np.diag(bins.sum(0)) - bins.T @ bins
    return float(chi2.sf(away @ np.linalg.solve(covariance, away), BINS - 1))


def test_vllms_own_rule_follows_the_target(llm: Any, toy_dir: Path, toy_draft_dir: Path) -> None:
    """On the CPU build that takes the repair in cpu_fix.py; and the test can tell the target from its draft."""
    assert "bug seen" in PLUGIN.cpu_sampling
    texts = written(llm, None, [None] * 340)  # 20,400 sampled tokens
    assert surprise(toy_dir, texts) > 1e-3
    assert surprise(toy_draft_dir, texts) < 1e-9


def test_lossless_follows_the_target_and_a_loose_rule_beside_it_does_not(llm: Any, toy_dir: Path) -> None:
    """With a rule of another kind in its batch, draftgate verifies both."""
    before = sum(state.verified for state in PLUGIN.runners.values())
    asks = [{"draftgate_policy": LOOSE.name} if i % 3 == 0 else None for i in range(510)]
    texts = written(llm, PolicySet((LOSSLESS, LOOSE), LOSSLESS.name), asks)
    assert sum(state.verified for state in PLUGIN.runners.values()) > before + 100
    assert surprise(toy_dir, [text for text, ask in zip(texts, asks, strict=True) if ask is None]) > 1e-3
    assert surprise(toy_dir, [text for text, ask in zip(texts, asks, strict=True) if ask]) < 1e-6
