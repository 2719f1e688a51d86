"""Whole batches: against the numpy engine's verification, against vLLM's own sampler, and by their output law."""

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare
from vllm.platforms import current_platform
from vllm.v1.sample import rejection_sampler

from draftgate.engines import verify as reference
from draftgate.engines.base import Sampling
from draftgate.engines.vllm.tables import LANGUAGES, PolicyTables, category_tables
from draftgate.engines.vllm.target import Target
from draftgate.engines.vllm.v1 import draw, verify_v1
from draftgate.engines.vllm.verify import Draft, Draws, Outcome, Rows, verify_batch
from draftgate.policy.policy import Policy
from draftgate.policy.rules import RULES, Scores, output_law

PIECES = [b"x", b" if", b"(", b"12", b"  ", b"#", b"+", b""]
V = len(PIECES)
SEEDS = st.integers(0, 2**32 - 1)
POLICIES = [
    Policy("exact"),
    Policy("lossless", "lossless"),
    Policy("threshold", "threshold", 0.2, category={"structural": 0.3, "word": -0.1}),
    Policy("or", "threshold-or-lossless", 0.3, language={"python": -0.2}),
    Policy("position", "threshold-or-lossless", position=((3, 0.1), (8, 0.6)), bounds=(0.2, 0.5)),
    Policy("sglang", "sglang", 0.4, params={"acc": 0.5}),
    Policy("typical", "typical", 0.3, params={"delta": 0.6}),
    Policy("topk", "topk-margin", params={"top_k": 2, "delta": 0.2}),
    Policy("cascade", "cascade", params={"alpha": 0.4}),
]


@pytest.fixture(scope="module")
def tables() -> PolicyTables:
    return tables_of(POLICIES)


@pytest.fixture(scope="module")
def vllm_sampler() -> Any:
    """The module of vLLM's V1 sampler with its CPU kernels, as a worker has them."""
    current_platform.register_triton_kernel_overrides()
    return rejection_sampler


def tables_of(policies: list[Policy], device: str = "cpu") -> PolicyTables:
    tables = PolicyTables(device)
    tables.load_categories(category_tables(PIECES))
    for slot, policy in enumerate(policies):
        tables.set(slot, policy)
    return tables


def a_batch(
    rng: np.random.Generator, drawn: bool = False, padded: bool = False, even: bool = False
) -> tuple[Rows, Draft, Any, Any]:
    """Rows, draft, logits and bonus tokens of up to 6 requests with up to 4 drafted tokens; ties among the logits."""
    counts = rng.integers(0, 5, rng.integers(1, 7))
    counts[0] = max(counts[0], 1)
    if even:
        counts[:] = counts[0]
    r, n = len(counts), int(counts.sum())
    logits = rng.choice([rng.normal(0, 2, (n, V)), rng.integers(-2, 3, (n, V))]).astype(np.float32)
    tokens = np.where(rng.random(n) < 0.6, logits.argmax(1), rng.integers(0, V, n)).astype(np.int32)
    if padded:
        tokens[rng.random(n) < 0.2] = -1
    probs = torch.from_numpy(rng.dirichlet(np.ones(V), n).astype(np.float32)) if drawn else None
    rows = Rows(*(torch.from_numpy(rng.integers(0, most, r)) for most in (len(POLICIES), len(LANGUAGES), 12)))
    ends = torch.from_numpy(counts.cumsum().astype(np.int32))
    draft = Draft(torch.from_numpy(tokens), ends, int(counts.max()), probs)
    return rows, draft, torch.from_numpy(logits), torch.from_numpy(rng.integers(0, V, r, np.int32))


def parts(draft: Draft) -> list[slice]:
    """Where each request's drafted tokens are."""
    return [slice(start, end) for start, end in pairwise([0, *draft.ends.tolist()])]


def texts(outcome: Outcome) -> list[list[int]]:
    """Each request's tokens."""
    return [[token for token in row if token >= 0] for row in outcome.tokens.tolist()]


# Against the numpy engine


@given(seed=SEEDS)
def test_greedy_batches_are_verified_as_one_request_at_a_time_is(tables: PolicyTables, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, draft, logits, bonus = a_batch(rng)
    outcome = verify_batch(tables, rows, draft, logits, bonus, None, record=True)
    categories = category_tables(PIECES)
    assert outcome.record is not None
    for i, part in enumerate(parts(draft)):
        language, tokens = int(rows.language[i]), draft.tokens[part].numpy()
        scored = np.vstack([logits[part].numpy(), np.eye(V, dtype=np.float32)[int(bonus[i])]])
        proposal = reference.Proposal(tokens, np.ones(len(tokens)), categories[language][tokens])
        asked = POLICIES[rows.slot[i]], Sampling(), rng, int(rows.offset[i]), LANGUAGES[language], True
        own = reference.verify(scored, proposal, *asked)
        assert texts(outcome)[i] == [*tokens[: own.accepted], own.token]
        assert outcome.accepted[i] == own.accepted
        scores, drafted = outcome.record.scores, own.drafted
        assert drafted is not None
        assert scores.p[part].log().numpy() == pytest.approx(drafted.logp, abs=1e-5)
        assert (scores.top / scores.p)[part].log().numpy() == pytest.approx(drafted.top1_margin, abs=1e-5)
        assert scores.entropy[part].numpy() == pytest.approx(drafted.entropy, abs=1e-5)
        assert scores.rank[part].tolist() == drafted.rank.tolist()
        assert outcome.record.tokens[part].tolist() == tokens.tolist()
        assert outcome.record.category is not None
        assert outcome.record.category[part].tolist() == drafted.category.tolist()


@given(seed=SEEDS, drawn=st.booleans(), mixed=st.booleans(), padded=st.booleans())
def test_recording_changes_no_token(tables: PolicyTables, seed: int, drawn: bool, mixed: bool, padded: bool) -> None:
    rng = np.random.default_rng(seed)
    rows, draft, logits, bonus = a_batch(rng, drawn, padded)
    n, r = len(draft.tokens), len(bonus)
    draws = Draws(torch.from_numpy(rng.random(n)), torch.from_numpy(1 / rng.exponential(size=(r, V))).float())
    greedy = torch.from_numpy(rng.random(r) < 0.5) if mixed else None
    plain, recorded = (verify_batch(tables, rows, draft, logits, bonus, draws, greedy, record=r) for r in (False, True))
    assert texts(plain) == texts(recorded)
    assert plain.record is None


@pytest.mark.parametrize("decoding", ["greedy", "sampled", "mixed"])
@given(seed=SEEDS, drawn=st.booleans(), padded=st.booleans(), even=st.booleans())
def test_a_batch_of_one_policy_is_verified_as_one_among_others(
    tables: PolicyTables, decoding: str, seed: int, drawn: bool, padded: bool, even: bool
) -> None:
    """What the host then knows saves work and changes no token: fewer rules, no gathers, rows that are not read."""
    rng = np.random.default_rng(seed)
    rows, draft, logits, bonus = a_batch(rng, drawn, padded, even)
    n, r, slot = len(draft.tokens), len(bonus), int(rng.integers(len(POLICIES)))
    draws = None
    if decoding != "greedy":
        draws = Draws(torch.from_numpy(rng.random(n)), torch.from_numpy(1 / rng.exponential(size=(r, V))).float())
    greedy = torch.from_numpy(rng.random(r) < 0.5) if decoding == "mixed" else None
    alike = replace(rows, slot=torch.full_like(rows.slot, slot))
    alone = replace(alike, only=slot)
    one, other = (verify_batch(tables, given, draft, logits, bonus, draws, greedy) for given in (alike, alone))
    assert texts(one) == texts(other)
    assert one.accepted.tolist() == other.accepted.tolist()


@pytest.mark.parametrize("record", [False, True])
@pytest.mark.parametrize(
    "policy",
    [
        Policy("or", "threshold-or-lossless", 1.0),
        Policy("typical", "typical", 1.0, params={"delta": 0.99}),
        Policy("topk", "topk-margin", params={"top_k": 1, "delta": 0.0}),
        Policy("cascade", "cascade", params={"alpha": 0.0}),
    ],
    ids=lambda policy: policy.name,
)
def test_the_targets_choice_is_kept_beside_what_is_not(policy: Policy, record: bool) -> None:
    """Three requests draft the choice (0, with p = .28) and another token, in both orders, and the choice twice."""
    logits = torch.eye(V)[[0] * 6]
    tokens, ends = torch.tensor([[0, 1, 1, 0, 0, 0], [2, 4, 6, 0, 0, 0]], dtype=torch.int32)
    rows = Rows(*torch.zeros(3, 3, dtype=torch.int64), only=0)
    outcome = verify_batch(
        tables_of([policy]), rows, Draft(tokens, ends[:3], 2), logits, torch.tensor([5, 6, 7]), None, record=record
    )
    assert texts(outcome) == [[0, 0], [0], [0, 0, 7]]


def test_scores_of_a_cut_law() -> None:
    """Tokens that top-k or top-p removed have logits of -inf."""
    logits = torch.tensor([[2.0, 1.0, -torch.inf, -torch.inf]])
    target, tokens = Target.of(logits, some_greedy=False, keep_laws=False), torch.tensor([2])
    scores = target.scores(tokens, None, torch.ones(1), frozenset({"p", "top", "rank", "entropy"}))
    p = np.exp([2.0, 1.0]) / np.exp([2.0, 1.0]).sum()
    assert (scores.p.item(), scores.law.item(), scores.rank.item()) == (0, 0, 2)
    assert scores.top.item() == pytest.approx(p[0])
    assert scores.entropy.item() == pytest.approx(-(p * np.log(p)).sum())


# Against vLLM's own sampler


@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize("decoding", ["greedy", "sampled", "mixed"])
@given(seed=SEEDS)
def test_lossless_gives_what_vllm_gives(vllm_sampler: Any, decoding: str, drawn: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    # vLLM's CPU kernel reads before the start of the vocabulary for a token of -1; its GPU kernel rejects that
    rows, draft, logits, bonus = a_batch(rng, drawn, padded=decoding == "greedy", even=bool(rng.random() < 0.5))
    temperature = torch.from_numpy(rng.random(len(bonus)) < {"greedy": 0, "sampled": 1, "mixed": 0.5}[decoding])
    seeded = np.flatnonzero(rng.random(len(bonus)) < 0.5).tolist()

    def call(function: Any) -> Any:
        sampling = SimpleNamespace(
            all_greedy=not temperature.any(),
            all_random=bool(temperature.all()),
            temperature=temperature.float(),
            generators={i: torch.Generator().manual_seed(i) for i in seeded},
        )
        counts = [part.stop - part.start for part in parts(draft)]
        torch.manual_seed(seed)
        probs = draft.probs if drawn else None
        return function(draft.tokens, counts, draft.most, draft.ends, probs, logits, bonus[:, None], sampling)

    tables = tables_of([Policy("lossless", "lossless"), *([] if drawn else [Policy("exact")])])
    rows = replace(rows, slot=rows.slot % (1 if drawn else 2))
    own, ours = call(vllm_sampler.rejection_sample), call(lambda *args: verify_v1(tables, rows, *args))
    assert ours.tokens.tolist() == own.tolist()
    assert ours.tokens.dtype == own.dtype


def test_a_token_that_could_not_be_drafted_is_rejected_as_in_vllm(tables: PolicyTables) -> None:
    rows = Rows(*torch.tensor([[1], [0], [0]]))
    probs = torch.eye(V)[None, 3]
    draft = Draft(torch.tensor([0], dtype=torch.int32), torch.tensor([1], dtype=torch.int32), 1, probs)
    draws = Draws(torch.zeros(1), torch.ones(1, V))
    outcome = verify_batch(tables, rows, draft, 5 * torch.eye(V)[None, 0], torch.tensor([1]), draws)
    assert texts(outcome) == [[0]]  # redrawn, and no bonus token


# By the output law, which is enumerated


@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize("slot", range(len(POLICIES)), ids=[policy.name for policy in POLICIES])
def test_sampled_tokens_follow_the_rules_law(tables: PolicyTables, slot: int, drawn: bool) -> None:
    """Two positions of 40,000 requests; the second one where the first was kept."""
    r, policy, rng = 40_000, POLICIES[slot], np.random.default_rng(slot)
    p, q = rng.dirichlet(np.ones(V), 2), rng.dirichlet(np.ones(V), 2)
    tokens = np.stack([rng.choice(V, r, p=law) for law in q], 1).astype(np.int32).reshape(-1)
    draft = Draft(
        torch.from_numpy(tokens),
        torch.arange(2, 2 * r + 1, 2, dtype=torch.int32),
        2,
        torch.from_numpy(np.tile(q, (r, 1)).astype(np.float32)) if drawn else None,
    )
    rows = Rows(torch.full((r,), slot), torch.zeros(r, dtype=torch.int64), torch.full((r,), 5))
    torch.manual_seed(slot)
    draws = draw([2] * r, V, {}, torch.device("cpu"))
    logits = torch.from_numpy(np.tile(np.log(p), (r, 1)).astype(np.float32))
    out = verify_batch(tables, rows, draft, logits, torch.zeros(r, dtype=torch.int64), draws)
    assert_follows(out.tokens[:, 0], law_of(policy, p[0], q[0], drawn, offset=5))
    assert_follows(out.tokens[out.accepted > 0, 1], law_of(policy, p[1], q[1], drawn, offset=6))


def law_of(policy: Policy, p: Any, q: Any, drawn: bool, offset: int) -> Any:
    """Of one position; drafts that are not drawn are deterministic, another one in each request."""
    if not drawn:
        return sum(q[x] * law_of(policy, p, np.eye(V)[x], True, offset) for x in range(V))
    scores = Scores(
        p=p,
        law=p,
        q=q,
        top=np.full(V, p.max()),
        rank=np.array([(p > value).sum() for value in p]),
        entropy=np.full(V, -(p * np.log(p)).sum()),
    )
    taus = policy.taus(category_tables(PIECES)[0], np.full(V, offset), None)
    return output_law(RULES[policy.rule], scores, q, p, taus, policy.params)


def assert_follows(tokens: torch.Tensor, law: Any) -> None:
    counts = np.bincount(tokens.numpy(), minlength=V)
    assert counts.sum() > 2000
    assert counts[law < 1e-9].sum() == 0
    assert chisquare(counts[law >= 1e-9], counts.sum() * law[law >= 1e-9] / law.sum()).pvalue > 1e-4


# Edges


def test_no_drafted_token_gives_the_bonus_tokens(tables: PolicyTables) -> None:
    rows, none = Rows(*torch.zeros(3, 2, dtype=torch.int64)), torch.zeros(0, dtype=torch.int32)
    draft = Draft(none, torch.zeros(2, dtype=torch.int32), 0)
    outcome = verify_batch(tables, rows, draft, torch.empty(0, V), torch.tensor([4, 7]), None, record=True)
    assert (outcome.tokens.tolist(), outcome.accepted.tolist(), outcome.record) == ([[4], [7]], [0, 0], None)


@given(seed=SEEDS)
def test_padding_is_rejected_and_replaced(tables: PolicyTables, seed: int) -> None:
    """vLLM pads drafts with -1; a request still gets exactly one token after those that were kept."""
    rng = np.random.default_rng(seed)
    rows, draft, logits, bonus = a_batch(rng, padded=True)
    outcome = verify_batch(tables, rows, draft, logits, bonus, None)
    for part, text, kept in zip(parts(draft), texts(outcome), outcome.accepted.tolist(), strict=True):
        tokens = draft.tokens[part].tolist()
        assert tokens[:kept] == text[:-1]
        assert -1 not in tokens[:kept]
        if kept < len(tokens):
            assert text[-1] == int(logits[part][kept].argmax())


def test_a_schedule_moves_within_a_draft() -> None:
    """Two tokens of p = .5 each: one at offset 4, where tau is .4, one at offset 5, where it is .8."""
    tables = tables_of([Policy("position", "threshold", position=((4, 0.4), (5, 0.8)))])
    logits = torch.tensor([[0.0, 0.0, *[-torch.inf] * (V - 2)]] * 2)
    draft = Draft(torch.tensor([1, 1], dtype=torch.int32), torch.tensor([2], dtype=torch.int32), 2)
    outcome = verify_batch(tables, Rows(*torch.tensor([[0], [0], [4]])), draft, logits, torch.tensor([3]), None)
    assert texts(outcome) == [[1, 0]]


@pytest.mark.parametrize(("uniform", "drafted", "text"), [(0.0, 2, [0]), (1.0, 0, [0, 1])])
def test_numbers_at_the_ends_decide_nothing(tables: PolicyTables, uniform: float, drafted: int, text: Any) -> None:
    """Zero keeps no token that the rule never keeps, and one rejects none that it always keeps."""
    logits = torch.tensor([[4.0, 2.0, -5.0, *[-torch.inf] * (V - 3)]])
    draft = Draft(torch.tensor([drafted], dtype=torch.int32), torch.tensor([1], dtype=torch.int32), 1)
    rows = Rows(*torch.tensor([[2], [0], [0]]))  # 'threshold'
    draws = Draws(torch.tensor([uniform]), torch.ones(1, V))
    assert texts(verify_batch(tables, rows, draft, logits, torch.tensor([1]), draws)) == [text]


def test_rounding_that_leaves_no_mass_keeps_the_token(tables: PolicyTables) -> None:
    """p rounds to just under 1 and the uniform number lies above it: nothing else can be drawn."""
    logits = torch.full((1, V), -torch.inf)
    logits[0, 3] = 0.0
    draft = Draft(torch.tensor([3], dtype=torch.int32), torch.tensor([1], dtype=torch.int32), 1)
    draws = Draws(torch.tensor([1.5]), torch.ones(1, V))
    outcome = verify_batch(tables, Rows(*torch.tensor([[1], [0], [0]])), draft, logits, torch.tensor([0]), draws)
    assert texts(outcome) == [[3]]


@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize("decoding", ["greedy", "sampled", "mixed"])
def test_no_value_is_read_back(decoding: str, drawn: bool) -> None:
    """Meta tensors have shapes and no values: whatever asks for one, or for a shape that depends on one, raises."""
    rows, draft, logits, bonus = a_batch(np.random.default_rng(3), drawn)
    tables = tables_of(POLICIES, "meta")
    draft = Draft(draft.tokens.to("meta"), draft.ends.to("meta"), draft.most, logits.to("meta") if drawn else None)
    rows = Rows(rows.slot.to("meta"), rows.language.to("meta"), rows.offset.to("meta"))
    draws = None if decoding == "greedy" else draw([len(draft.tokens)], V, {}, torch.device("meta"))
    greedy = (bonus > 3).to("meta") if decoding == "mixed" else None
    if draws is not None:
        draws = replace(draws, inverse=draws.inverse.expand(len(bonus), V))
    outcome = verify_batch(tables, rows, draft, logits.to("meta"), bonus.to("meta"), draws, greedy, record=True)
    assert outcome.tokens.shape == (len(bonus), draft.most + 1)
    assert outcome.record is not None
    with pytest.raises(RuntimeError):
        outcome.tokens.tolist()
