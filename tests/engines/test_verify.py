from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from draftgate.engines.base import Sampling
from draftgate.engines.sampling import probabilities
from draftgate.engines.verify import Proposal, Verified, verify
from draftgate.errors import EngineError
from draftgate.policy.category import Category
from draftgate.policy.length import Fixed
from draftgate.policy.policy import Policy
from draftgate.policy.rules import RULES, Residual, Scores, output_law

POLICIES = [
    Policy("exact"),
    Policy("lossless", "lossless"),
    Policy("threshold", "threshold", 0.25),
    Policy("or", "threshold-or-lossless", 0.25, category={"structural": 0.2}),
    Policy("sglang", "sglang", 0.4, params={"acc": 0.8}),
    Policy("typical", "typical", 0.3),
    Policy("margin", "topk-margin", params={"top_k": 3, "delta": 0.2}),
    Policy("cascade", "cascade", params={"alpha": 0.4}),
]
named = pytest.mark.parametrize("policy", POLICIES, ids=[p.name for p in POLICIES])
DRAWN = Sampling(0.7, top_p=0.95)


def softmax(row: NDArray[np.float32]) -> NDArray[np.float64]:
    weight = np.exp(row.astype(np.float64) - row.max())
    return weight / weight.sum()


def proposal_of(tokens: list[int], q: NDArray[np.float64] | None = None, category: int = 1) -> Proposal:
    k = len(tokens)
    return Proposal(np.array(tokens, np.int32), np.arange(1.0, k + 1), np.full(k, category, np.uint8), q)


def reference(
    logits: NDArray[np.float32], draft: Proposal, policy: Policy, s: Sampling, uniform: NDArray[np.float64], offset: int
) -> tuple[int, int]:
    """Token by token, with Python numbers: accepted, following token."""
    k, rule = len(draft), policy.rule
    for i in range(k + 1):
        law = probabilities(logits[i], s)
        p = softmax(logits[i]) if s.greedy else law
        rest = law
        if i < k:
            x = int(draft.tokens[i])
            q = np.eye(len(law))[x] if draft.q is None else draft.q[i]
            tau = float(policy.taus(draft.category[i : i + 1], np.array([offset + i]), None)[0])
            lossless = min(1.0, law[x] / q[x])
            acc, delta = policy.params.get("acc", 1.0), policy.params.get("delta", 0.0)
            entropy = -sum(v * np.log(v) for v in p if v > 0)
            chance = {
                "exact": law[x],
                "lossless": lossless,
                "threshold": float(p[x] >= tau),
                "threshold-or-lossless": 1.0 if p[x] >= tau else lossless,
                "sglang": 1.0 if p[x] >= tau else min(1.0, law[x] / acc),
                "typical": float(p[x] >= min(tau, delta * np.exp(-entropy))),
                "topk-margin": float((p > p[x]).sum() < policy.params.get("top_k", 0) and p[x] >= p.max() - delta),
                "cascade": 1.0 if p[x] >= (1 - policy.params.get("alpha", 0)) * p.max() else law[x],
            }[rule]
            if uniform[i] < chance:
                continue
            if RULES[rule].residual is Residual.LAW_MINUS_Q:
                rest = np.maximum(law - q, 0)
            elif RULES[rule].residual is Residual.LAW_WITHOUT_X:
                rest = law * (np.arange(len(law)) != x)
            rest = rest if rest.sum() > 0 else law
        total = 0.0
        for y, mass in enumerate(rest / rest.sum()):
            total += mass
            if uniform[k] < total:
                return i, y
        return i, int(np.flatnonzero(rest)[-1])
    raise AssertionError("unreachable")


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), k=st.integers(0, 5), dense=st.booleans(), greedy=st.booleans(), record=st.booleans())
@named
def test_agrees_with_a_slow_reference(
    policy: Policy, seed: int, k: int, dense: bool, greedy: bool, record: bool
) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 2, (k + 1, 7)).astype(np.float32)
    q = np.array([softmax(row) for row in rng.normal(0, 1, (k, 7)).astype(np.float32)]).reshape(k, 7) if dense else None
    tokens = [int(row.argmax()) if rng.random() < 0.6 else int(rng.integers(7)) for row in logits[:k]]
    draft, sampling = proposal_of(tokens, q), Sampling() if greedy else DRAWN
    got = verify(logits, draft, policy, sampling, np.random.default_rng(seed), 5, None, record)
    uniform = np.full(k + 1, 0.5) if greedy else np.random.default_rng(seed).random(k + 1)
    assert (got.accepted, got.token) == reference(logits, draft, policy, sampling, uniform, 5)
    assert (got.drafted is not None) == record


class Uniforms:
    """A stream that gives the numbers it was made of."""

    def __init__(self, numbers: NDArray[np.float64]) -> None:
        self.numbers = numbers

    def random(self, n: int) -> NDArray[np.float64]:
        assert n == len(self.numbers)
        return self.numbers


LOGITS = np.log(np.array([0.35, 0.3, 0.2, 0.1, 0.05])).astype(np.float32)
DRAFT = np.array([0.1, 0.5, 0.05, 0.3, 0.05])


@pytest.mark.parametrize(
    ("policy", "dense"),
    [
        pytest.param(p, dense, id=f"{p.name}-{'dense' if dense else 'one-hot'}")
        for p in POLICIES
        for dense in (False, True)
    ],
)
def test_the_first_token_has_the_output_law_of_the_rule(policy: Policy, dense: bool) -> None:
    """50,000 positions, verified one by one."""
    n, rng, sampling = 50_000, np.random.default_rng(11), Sampling(1.0)
    q = DRAFT if dense else np.eye(5)[1]
    uniform = rng.random((n, 2))
    drafted = rng.choice(5, n, p=q)
    block = np.array([LOGITS, LOGITS])
    drafts = [proposal_of([x], q[None] if dense else None) for x in range(5)]
    counts = np.zeros(5)
    for x, u in zip(drafted.tolist(), uniform, strict=True):
        outcome: Verified = verify(block, drafts[x], policy, sampling, Uniforms(u), 0, None, False)  # type: ignore[arg-type]
        counts[x if outcome.accepted else outcome.token] += 1
    p = np.exp(LOGITS.astype(np.float64))
    scores = Scores(p, p, q, np.full(5, p.max()), np.arange(5), np.full(5, -(p * np.log(p)).sum()))
    tau = policy.taus(np.ones(5, np.uint8), np.zeros(5), None) if RULES[policy.rule].uses_tau else np.zeros(5)
    law = output_law(RULES[policy.rule], scores, q, p, tau, policy.params)
    likely = law > 0
    assert counts[~likely].sum() == 0
    chi = ((counts - n * law)[likely] ** 2 / (n * law[likely])).sum()
    assert chi < 20, (chi, counts / n, law)  # 4 degrees of freedom: chance below 5e-4
    if policy.lossless:
        np.testing.assert_allclose(law, p, atol=1e-6)
    else:
        assert np.abs(law - p).max() > 0.01  # so that the lossless law would not pass here


@pytest.mark.parametrize(("uniform", "recorded"), [(0.0, 2.0**-126), (1 - 2.0**-53, 1 - 2.0**-24)])
def test_numbers_at_the_ends_decide_right_and_are_recorded_within_them(uniform: float, recorded: float) -> None:
    """A token without probability is rejected at 0; one with all of it is kept just below 1."""
    logits = np.array([[0, 40, 0], [0, 40, 0]], np.float32)
    stream = Uniforms(np.array([uniform, 0.5]))
    for token, accepted in ((0, 0), (1, 1)):
        got = verify(logits, proposal_of([token]), Policy("e"), Sampling(1.0, top_k=1), stream, 0, None, True)  # type: ignore[arg-type]
        assert (got.accepted, got.token) == (accepted, 1)
        assert got.drafted is not None
        assert got.drafted.uniform.tolist() == [recorded]


@named
def test_greedy_lossless_rules_are_the_limit_of_low_temperature(policy: Policy) -> None:
    if not policy.lossless:
        return
    rng = np.random.default_rng(3)
    for seed in range(200):
        logits = rng.normal(0, 2, (5, 6)).astype(np.float32)
        tokens = [int(row.argmax()) if rng.random() < 0.7 else int(rng.integers(6)) for row in logits[:4]]
        cold, limit = (
            verify(logits, proposal_of(tokens), policy, s, np.random.default_rng(seed), 0, None, False)
            for s in (Sampling(1e-5), Sampling())
        )
        assert (cold.accepted, cold.token) == (limit.accepted, limit.token)


def everything(greedy: bool, **more: float) -> tuple[NDArray[np.float32], Verified]:
    logits = np.random.default_rng(1).normal(0, 2, (5, 9)).astype(np.float32)
    tokens = [int(logits[0].argmax()), int(logits[1].argsort()[-2]), 3, int(logits[3].argmin())]
    sampling = Sampling() if greedy else Sampling(0.8, **more)  # type: ignore[arg-type]
    return logits, verify(logits, proposal_of(tokens), Policy("e"), sampling, np.random.default_rng(0), 0, None, True)


@pytest.mark.parametrize("greedy", [True, False])
def test_the_record_is_the_softmax_of_every_row_kept_or_not(greedy: bool) -> None:
    logits, verified = everything(greedy)
    drafted = verified.drafted
    assert drafted is not None
    for i, x in enumerate(drafted.tokens):
        p = softmax(logits[i] / np.float32(1.0 if greedy else 0.8))
        assert drafted.logp[i] == pytest.approx(np.log(p[x]), abs=1e-5)
        assert drafted.rank[i] == (p > p[x]).sum()
        assert drafted.top1_margin[i] == pytest.approx(np.log(p.max() / p[x]), abs=1e-5)
        assert drafted.entropy[i] == pytest.approx(-(p * np.log(p)).sum(), abs=1e-5)
    assert drafted.rank.tolist()[:2] == [0, 1]
    assert drafted.top1_margin[0] == 0 < drafted.top1_margin[1]
    assert drafted.evidence.tolist() == [1, 2, 3, 4]
    assert ((drafted.uniform > 0) & (drafted.uniform < 1)).all()


def test_a_token_outside_the_nucleus_has_no_probability_and_an_infinite_margin() -> None:
    drafted = everything(False, top_p=0.5)[1].drafted
    assert drafted is not None
    assert drafted.logp[3] == -np.inf
    assert drafted.top1_margin[3] == np.inf
    assert np.isfinite(drafted.entropy).all()


def test_a_hair_between_two_logits_is_a_margin_above_zero() -> None:
    a = np.float32(10.0)
    logits = np.array([[a, np.nextafter(a, np.float32(0)), 0], [0, 0, 0]], np.float32)
    drafted = verify(logits, proposal_of([1]), Policy("e"), Sampling(), np.random.default_rng(), 0, None, True).drafted
    assert drafted is not None
    assert drafted.rank.tolist() == [1]
    assert 0 < drafted.top1_margin[0] < 1e-5


def test_masked_logits_leave_the_entropy_finite() -> None:
    logits = np.array([[1.0, 0.0, -np.inf], [0, 0, 0]], np.float32)
    drafted = verify(logits, proposal_of([1]), Policy("e"), Sampling(), np.random.default_rng(), 0, None, True).drafted
    assert drafted is not None
    p = softmax(logits[0, :2])
    assert drafted.entropy[0] == pytest.approx(-(p * np.log(p)).sum(), abs=1e-6)


@pytest.mark.parametrize("sampling", [Sampling(), DRAWN])
@pytest.mark.parametrize("record", [False, True])
def test_an_empty_draft_gives_the_bonus_token(sampling: Sampling, record: bool) -> None:
    logits = np.array([[0, 50, 0]], np.float32)
    got = verify(
        logits, proposal_of([]), Policy("t", "threshold", 0.3), sampling, np.random.default_rng(0), 0, None, record
    )
    assert (got.accepted, got.token) == (0, 1)
    assert record == (got.drafted is not None and len(got.drafted) == 0)


@pytest.mark.parametrize("sampling", [Sampling(), DRAWN])
@pytest.mark.parametrize("row", [0, 1])
@pytest.mark.parametrize(
    "spoil", [lambda r: np.full_like(r, -np.inf), lambda r: np.where(r == r[2], np.nan, r), lambda r: r + np.inf]
)
def test_logits_that_are_not_finite_are_refused(
    sampling: Sampling, row: int, spoil: Callable[[NDArray[np.float32]], NDArray[np.float32]]
) -> None:
    logits = np.random.default_rng(0).normal(size=(2, 5)).astype(np.float32)
    logits[row] = spoil(logits[row])
    with pytest.raises(EngineError, match="not finite at output offset 12"):
        verify(logits, proposal_of([1]), Policy("e"), sampling, np.random.default_rng(0), 12, None, False)


def test_tau_follows_category_and_offset() -> None:
    logits = np.log(np.array([[0.5, 0.4, 0.1], [0.5, 0.4, 0.1]])).astype(np.float32)

    def accepted(offset: int, category: int) -> int:
        policy = Policy(
            "t", "threshold", position=((0, 0.3), (100, 0.45)), category={"structural": 0.2}, length=Fixed(1)
        )
        draft = proposal_of([1], category=category)
        return verify(logits, draft, policy, Sampling(), np.random.default_rng(0), offset, None, False).accepted

    assert [accepted(0, 1), accepted(100, 1), accepted(0, Category.STRUCTURAL)] == [1, 0, 0]


def test_first_cuts_every_array() -> None:
    draft = proposal_of([1, 2, 3], np.eye(4)[[1, 2, 3]])
    cut = draft.first(2)
    assert cut.q is not None
    assert (len(cut), len(cut.evidence), len(cut.category), cut.q.shape) == (2, 2, 2, (2, 4))
    assert draft.first(3) is draft


CUT = [p for p in POLICIES if RULES[p.rule].truncates]


@pytest.mark.parametrize("policy", CUT, ids=[p.name for p in CUT])
def test_a_truncating_policy_draws_the_targets_own_tokens_from_the_cut_law(policy: Policy) -> None:
    policy = replace(policy, truncate=True)
    tokens = np.arange(len(LOGITS))
    law = softmax(LOGITS)
    scores = [
        Scores(law[x], law[x], np.ones(()), law.max(), np.sum(law > law[x]), -np.sum(law * np.log(law))) for x in tokens
    ]
    tau = np.float32(0.0 if policy.tau is None else policy.tau)
    kept = law * [float(RULES[policy.rule].accept(s, tau, policy.params)) for s in scores]
    assert 0 < np.count_nonzero(kept) < len(law)
    expected = np.cumsum(kept / kept.sum())
    sampling = Sampling(1.0)
    for u in np.linspace(0.001, 0.999, 97):
        drawn = verify(LOGITS[None], proposal_of([]), policy, sampling, Uniforms(np.array([u])), 0, None, False).token
        assert drawn == int(np.argmax(u < expected))
