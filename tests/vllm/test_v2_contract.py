import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.v1.worker.gpu.spec_decode import rejection_sampler

from draftgate.engines.base import Sampling
from draftgate.engines.verify import Proposal, verify
from draftgate.engines.vllm.rows import Batch
from draftgate.engines.vllm.source import PolicySource
from draftgate.engines.vllm.tables import LANGUAGES, PolicyTables, language_id
from draftgate.engines.vllm.v2 import RunnerV2, hashed, verify_v2
from draftgate.errors import EngineError
from draftgate.policy.policy import Policy
from draftgate.policy.policyset import PolicySet
from draftgate.policy.rules import RULES, Scores, output_law

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what vLLM imports

V, K, STATES = 12, 4, 16
CATEGORY = np.tile(np.arange(V, dtype=np.uint8) % 9, (len(LANGUAGES), 1))
POLICIES = (
    Policy("lossless", "lossless"),
    Policy("loose", "threshold-or-lossless", 0.1),
    Policy("strict", "threshold", 0.6),
    Policy("classes", "threshold", 0.3, category={"structural": 0.4, "safe": -0.2}),
    Policy("offsets", "threshold", position=((4, 0.1), (12, 0.6)), language={"go": 0.15}),
    Policy("margin", "topk-margin", params={"top_k": 3, "delta": 0.2}),
)


def tables(*policies: Policy) -> PolicyTables:
    made = PolicyTables("cpu", 8)
    made.load_categories(CATEGORY)
    for slot, policy in enumerate(policies):
        made.set(slot, policy)
    return made


def call(
    logits: torch.Tensor,
    drafts: list[list[int]],
    states: list[int],
    first: list[int],
    temperature: float,
    draft_logits: torch.Tensor | None = None,
) -> dict[str, Any]:
    """Arguments as `RejectionSampler._verify` passes them; `first` is the position of a request's first logits row."""
    counts = [len(draft) + 1 for draft in drafts]
    local = [i for n in counts for i in range(n)]
    return {
        "target_logits": logits,
        "draft_logits": draft_logits,
        "draft_sampled": torch.tensor([t for draft in drafts for t in (0, *draft)], dtype=torch.int32),
        "cu_num_logits": torch.tensor(np.cumsum([0, *counts]), dtype=torch.int32),
        "pos": torch.tensor([p + i for p, n in zip(first, counts, strict=True) for i in range(n)]),
        "idx_mapping": torch.tensor(states, dtype=torch.int32),
        "expanded_idx_mapping": torch.tensor(np.repeat(states, counts), dtype=torch.int32),
        "expanded_local_pos": torch.tensor(local, dtype=torch.int32),
        "temperature": torch.full((STATES,), temperature),
        "seed": torch.arange(STATES) * 7919,
        "num_speculative_steps": K,
    }


def rows(slots: list[int], language: int = 0, prompt: int = 3) -> Batch:
    n = len(slots)
    only = slots[0] if len(set(slots)) == 1 else None
    return Batch(torch.tensor(slots), torch.full((n,), language), torch.full((n,), prompt), True, only)


def kept(row: torch.Tensor) -> list[int]:
    return [token for token in row.tolist() if token >= 0]


class TestHashed:
    def test_numbers_are_reproducible_and_open(self) -> None:
        seed, position = torch.arange(-500, 500)[:, None], torch.arange(200)
        u = hashed(seed, position, 1)
        assert torch.equal(u, hashed(seed, position, 1))
        assert u.dtype == torch.float64
        assert ((u > 0) & (u < 1)).all()

    def test_numbers_are_even_and_unrelated(self) -> None:
        u = hashed(torch.arange(1000)[:, None], torch.arange(100), 1).flatten()
        counts = torch.histc(u.float(), 50, 0, 1)
        assert ((counts - 2000) ** 2 / 2000).sum() < 100  # chi-square, 49 degrees of freedom: p < 3e-5
        for other in (
            hashed(torch.arange(1000)[:, None], torch.arange(100), 2),  # another stream
            hashed(torch.arange(1000)[:, None], torch.arange(1, 101), 1),  # next position
            hashed(torch.arange(1, 1001)[:, None], torch.arange(100), 1),  # next seed
        ):
            assert torch.corrcoef(torch.stack([u, other.flatten()]))[0, 1].abs() < 0.015


drafts_of = st.lists(st.lists(st.integers(-1, V - 1), max_size=K), min_size=1, max_size=6).filter(any)


@settings(max_examples=150)
@given(drafts_of, st.integers(0, 2**32 - 1))
def test_greedy_batches_give_what_the_embedded_engine_gives(drafts: list[list[int]], seed: int) -> None:
    random = np.random.default_rng(seed)
    n = len(drafts)
    slots = random.integers(0, len(POLICIES), n).tolist()
    states = random.permutation(STATES)[:n].tolist()
    offsets = random.integers(1, 20, n).tolist()
    logits = random.normal(0, 2, (sum(map(len, drafts)) + n, V)).astype(np.float32)
    arguments = call(torch.from_numpy(logits), drafts, states, [3 + o - 1 for o in offsets], 0.0)
    outcome, flat = verify_v2(tables(*POLICIES), rows(slots, language_id("go")), arguments, sampled=False, record=True)
    assert flat.tokens.tolist() == [token for draft in drafts for token in draft]
    start = 0
    for i, draft in enumerate(drafts):
        known = draft[: draft.index(-1)] if -1 in draft else draft
        tokens = np.array(known, np.int32)
        proposal = Proposal(tokens, np.ones(len(known)), CATEGORY[0, tokens])
        mine = logits[start : start + len(known) + 1]
        expected = verify(mine, proposal, POLICIES[slots[i]], Sampling(), random, offsets[i], "go", record=False)
        assert kept(outcome.tokens[i]) == [*known[: expected.accepted], expected.token]
        start += len(draft) + 1


@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize("policy", [p for p in POLICIES if p.name != "offsets"], ids=lambda p: p.name)
def test_sampled_batches_have_the_law_of_the_rule(policy: Policy, drawn: bool) -> None:
    """The first token of many requests that differ in their seed only, against the law by enumeration."""
    n, heat = 6000, 0.7
    random = torch.Generator().manual_seed(3)
    target, proposal = torch.randn(V, generator=random) * 1.5, torch.randn(V, generator=random) * 1.5
    q = (proposal / heat).softmax(0).double() if drawn else torch.eye(V, dtype=torch.float64)[int(target.argsort()[-2])]
    tokens = torch.multinomial(q, n, replacement=True, generator=random)
    arguments = call(target.expand(2 * n, V).contiguous(), [[t] for t in tokens.tolist()], [0] * n, [2] * n, heat)
    arguments |= {
        "idx_mapping": torch.arange(n, dtype=torch.int32),
        "expanded_idx_mapping": torch.arange(n, dtype=torch.int32).repeat_interleave(2),
        "temperature": torch.full((n,), heat),
        "seed": torch.arange(n) - n // 2,
        "draft_logits": proposal.expand(n, K, V) if drawn else None,
    }
    outcome, _ = verify_v2(tables(policy), rows([0] * n), arguments, sampled=True)
    law = target.softmax(0).double().numpy()
    scores = Scores(
        p=law,
        law=law,
        q=q.numpy(),
        top=np.full(V, law.max()),
        rank=(law[None] > law[:, None]).sum(1),
        entropy=np.full(V, -(law * np.log(law)).sum()),
    )
    taus = policy.taus(CATEGORY[0], np.zeros(V, int), None)
    expected = output_law(RULES[policy.rule], scores, q.numpy(), law, taus, policy.params) * n
    counts = np.bincount(outcome.tokens[:, 0].numpy(), minlength=V)
    likely = expected > 5
    chi = ((counts - expected)[likely] ** 2 / expected[likely]).sum()
    assert chi < 2 * likely.sum() + 25  # far beyond what chance gives with that many cells
    assert counts[~likely].sum() < 60


def test_bonus_token_is_drawn_from_the_last_row() -> None:
    n = 4000
    sure = torch.full((V,), -50.0)
    sure[5] = 50.0
    last = torch.linspace(-1, 1, V)
    arguments = call(torch.stack([sure, last]).repeat(n, 1), [[5]] * n, [0] * n, [2] * n, 1.0)
    arguments |= {"idx_mapping": torch.arange(n), "temperature": torch.ones(n), "seed": torch.arange(n)}
    outcome, _ = verify_v2(tables(POLICIES[1]), rows([0] * n), arguments, sampled=True)
    assert (outcome.tokens[:, 0] == 5).all()
    counts, expected = np.bincount(outcome.tokens[:, 1].numpy(), minlength=V), last.softmax(0).numpy() * n
    assert ((counts - expected) ** 2 / expected).sum() < 45  # 11 degrees of freedom: p < 1e-5


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"synthetic_conditional_rates": torch.ones(K)}, "synthetic"),
        ({"use_block_verification": True}, "block"),
        ({"contexts": torch.zeros(2, 1)}, "watermark"),
        ({"draft_logits": torch.zeros(STATES, K, V - 1)}, "vocabulary"),
    ],
)
def test_what_policies_cannot_judge_is_refused(change: dict[str, Any], told: str) -> None:
    arguments = call(torch.zeros(2, V), [[1]], [0], [2], 0.0) | change
    with pytest.raises(EngineError, match=told):
        verify_v2(tables(POLICIES[1]), rows([0]), arguments, sampled=False)


class Beside:
    """A `RunnerV2` beside what it reads of vLLM's model runner."""

    def __init__(self, asks: list[str], drafts: list[list[int]], **runner: Any) -> None:
        n = len(asks)
        self.states = list(range(n, 0, -1))
        source = PolicySource()
        source.set(PolicySet(POLICIES, "lossless"), None)
        temperature = SimpleNamespace(np=np.zeros(STATES, np.float32))
        engine = {
            "adaptive_verification": None,
            "batch_sharder": None,
            "max_num_reqs": STATES,
            "sampler": SimpleNamespace(sampling_states=SimpleNamespace(temperature=temperature)),
        }
        made = tables()
        self.runner = RunnerV2(SimpleNamespace(**engine | runner), source, made)
        arriving = [
            SimpleNamespace(
                req_id=str(i),
                prompt_token_ids=[1, 2, 3],
                sampling_params=SimpleNamespace(extra_args={"draftgate_policy": a}),
            )
            for i, a in enumerate(asks)
        ]
        self.runner.begin(SimpleNamespace(scheduled_new_reqs=arriving, finished_req_ids=set()))
        inputs = SimpleNamespace(
            req_ids=[str(i) for i in range(n)],
            idx_mapping=torch.tensor(self.states),
            idx_mapping_np=np.array(self.states),
            num_draft_tokens_per_req=np.array([len(draft) for draft in drafts]),
        )
        self.runner.rows(None, inputs, None)


def own(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """In the place of vLLM's function: what it returns can be told from anything of ours."""
    requests = len(kwargs["idx_mapping"])
    return torch.full((requests, K + 1), 77, dtype=torch.int64), torch.full((requests,), K + 1, dtype=torch.int32)


def test_only_rows_of_our_rules_are_ours_and_the_layout_is_vllms() -> None:
    drafts = [[1, 2], [3], [4, 5, 6]]
    logits = torch.zeros(9, V)
    beside = Beside(["lossless", "loose", "strict"], drafts)
    tokens, number = beside.runner.verify(own, **call(logits, drafts, beside.states, [2] * 3, 0.0))
    assert tokens.dtype == torch.int64
    assert number.dtype == torch.int32
    assert tokens.shape == (3, K + 1)
    assert tokens[0].tolist() == [77] * (K + 1)
    assert number.tolist() == [K + 1, 1, 1]  # p = 1/12 everywhere: both thresholds reject
    assert tokens[1, 0] == 0
    assert beside.runner.verified == 1


def test_chunks_of_a_batch_find_their_requests() -> None:
    drafts = [[1, 2], [3], [4, 5, 6], [7]]
    logits = torch.randn(11, V, generator=torch.Generator().manual_seed(1)) * 2
    beside = Beside(["loose", "strict", "classes", "lossless"], drafts)
    whole, number = beside.runner.verify(own, **call(logits, drafts, beside.states, [9] * 4, 0.0))
    parts = [
        beside.runner.verify(own, **call(logits[:5], drafts[:2], beside.states[:2], [9] * 2, 0.0)),
        beside.runner.verify(own, **call(logits[5:], drafts[2:], beside.states[2:], [9] * 2, 0.0)),
    ]
    assert torch.equal(torch.cat([tokens for tokens, _ in parts]), whole)
    assert torch.equal(torch.cat([n for _, n in parts]), number)


def test_without_a_rule_of_ours_nothing_is_touched() -> None:
    beside = Beside(["lossless"] * 2, [[1], [2]])
    tokens, _ = beside.runner.verify(own, **call(torch.zeros(4, V), [[1], [2]], beside.states, [2] * 2, 0.0))
    assert (tokens == 77).all()
    assert beside.runner.verified == 0


def test_adaptive_verification_is_refused() -> None:
    beside = Beside(["loose"], [[1]], adaptive_verification=object())
    with pytest.raises(EngineError, match="device"):
        beside.runner.verify(own, **call(torch.zeros(2, V), [[1]], beside.states, [2], 0.0))


def test_the_module_still_calls_the_name_that_is_wrapped() -> None:
    """Wrapping works only while `_verify` looks the function up in its module."""
    names = rejection_sampler.RejectionSampler._verify.__code__.co_names
    assert "rejection_sample" in names


@pytest.fixture(scope="module")
def real(smollm2_dir: Path) -> dict[str, Any]:
    if find_spec("triton") is None:
        pytest.skip("needs triton, for its interpreter: pip install triton")
    script = Path(__file__).with_name("v2_on_cpu.py")
    done = subprocess.run(
        [sys.executable, script, smollm2_dir],
        stdout=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


class TestRealRunner:
    """vLLM's own V2 runner, kernels interpreted."""

    def test_it_is_the_second_runner_and_nothing_failed(self, real: dict[str, Any]) -> None:
        assert real["runner"] == ["vllm.v1.worker.cpu.model_runner"]
        assert real["faults"] == {}

    @pytest.mark.parametrize("kind", ["greedy", "sampled"])
    def test_exact_is_what_vllm_does_by_itself(self, real: dict[str, Any], kind: str) -> None:
        assert real[kind]["own"] == real[kind]["none"]
        assert sum(result["drafted"] for result in real[kind]["own"]) > 20

    @pytest.mark.parametrize("kind", ["greedy", "sampled"])
    def test_each_request_of_a_batch_has_its_policy(self, real: dict[str, Any], kind: str) -> None:
        exact, strict, off = real[kind]["mixed"]
        assert exact == real[kind]["none"][0]
        rates = [result["accepted"] / result["drafted"] for result in (strict, real[kind]["none"][1])]
        assert rates[0] < rates[1] - 0.2
        assert off["drafted"] == 0

    def test_no_drafts_give_the_same_greedy_text(self, real: dict[str, Any]) -> None:
        assert real["greedy"]["mixed"][2]["tokens"] == real["greedy"]["none"][2]["tokens"]

    @pytest.mark.parametrize("kind", ["greedy", "sampled"])
    def test_the_trace_holds_what_happened(self, real: dict[str, Any], kind: str) -> None:
        found = real[kind]["recorded"]
        traced = sorted((t["tokens"], t["steps"]) for t in found["traced"])
        assert [tokens for tokens, _ in traced] == sorted(result["tokens"] for result in found["results"])
        if kind == "greedy":
            assert found["results"] == real[kind]["none"]
        for _, steps in traced:
            for step in steps:
                p = np.exp(step["logp"]) if kind == "sampled" else np.array(step["rank"]) == 0
                passed = np.array(step["uniform"]) < p
                assert step["accepted"] == (len(passed) if passed.all() else passed.argmin())
