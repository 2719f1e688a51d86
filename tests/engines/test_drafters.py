from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from draftgate.engines.base import Sampling
from draftgate.engines.drafters import LookupDrafter, ModelDrafter
from draftgate.engines.sampling import probabilities
from draftgate.engines.verify import Proposal
from draftgate.errors import EngineError
from draftgate.policy.length import Calibration, Cut, Fixed, Goodput, Length
from draftgate.policy.policy import Policy

V = 6


class Counting:
    """A draft model whose logits depend on everything it holds; counts decoded tokens, refuses wrong positions."""

    def __init__(self) -> None:
        self.held: dict[int, list[int]] = {}
        self.decoded = 0
        self.failing = False

    def logits(self, held: Sequence[int]) -> NDArray[np.float32]:
        return np.random.default_rng(list(held)).normal(0, 2, V).astype(np.float32)

    def prefill(self, sequence: int, tokens: Sequence[int]) -> NDArray[np.float32]:
        self.held[sequence] = []
        return self.decode([(sequence, 0, tokens)], last_only=True)[0]

    def decode(self, rows: Sequence[tuple[int, int, Sequence[int]]], last_only: bool = False) -> NDArray[np.float32]:
        if self.failing:
            raise EngineError("decode failed")
        ((sequence, start, tokens),) = rows
        held = self.held[sequence]
        assert start == len(held), f"decode at {start} where {len(held)} tokens are held"
        assert len(tokens) > 0
        held.extend(tokens)
        self.decoded += len(tokens)
        return self.logits(held)[None]

    def rollback(self, sequence: int, position: int) -> None:
        assert position <= len(self.held[sequence]), "cannot forget what is not held"
        del self.held[sequence][position:]


def classify(tokens: Sequence[int]) -> NDArray[np.uint8]:
    return np.zeros(len(tokens), np.uint8)


def propose(
    drafter: LookupDrafter | ModelDrafter, policy: Policy, sequence: int = 0, most: int = 9, seed: int = 0
) -> Proposal:
    return drafter.propose(sequence, most, policy, 1, classify, np.random.default_rng(seed))


def policy(length: Length, **more: Any) -> Policy:
    return Policy("p", "lossless", length=length, **more)


def fresh(text: Sequence[int], p: Policy, most: int, seed: int) -> Proposal:
    drafter = ModelDrafter(Counting())
    drafter.start(0, text)
    return propose(drafter, p, most=most, seed=seed)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_ends_with_an_end_token(temperature: float) -> None:
    everything = frozenset(range(V))
    drafter = ModelDrafter(Counting(), everything)
    drafter.start(0, [1])
    assert len(propose(drafter, policy(Fixed(4), draft_temperature=temperature), most=4, seed=0)) == 1


def assert_equal(a: Proposal, b: Proposal) -> None:
    assert a.tokens.tolist() == b.tokens.tolist()
    np.testing.assert_array_equal(a.evidence, b.evidence)
    assert (a.q is None) == (b.q is None)
    if a.q is not None and b.q is not None:
        np.testing.assert_array_equal(a.q, b.q)


tokens = st.lists(st.integers(0, V - 1), min_size=1, max_size=4)
# What happens after each draft: how many of its tokens are kept, and what follows them.
step = st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, V - 1))
run = st.tuples(st.integers(0, 1), tokens, st.lists(step, max_size=5))


@settings(deadline=None, max_examples=150)
@given(st.lists(run, min_size=1, max_size=4), st.sampled_from([0.0, 0.7]))
def test_memory_kept_over_steps_and_runs_drafts_like_a_fresh_model(runs: list[Any], temperature: float) -> None:
    """Runs on two sequences, prompts that come back, drafts rejected and accepted in part or whole."""
    drafter = ModelDrafter(Counting())
    p = policy(Fixed(4), draft_temperature=temperature)
    for sequence, prompt, steps in runs:
        text = list(prompt)
        drafter.start(sequence, prompt)
        for seed, (most, kept, following) in enumerate(steps):
            got = propose(drafter, p, sequence, most, seed)
            assert_equal(got, fresh(text, p, most, seed))
            committed = [*got.tokens[:kept].tolist(), following]
            drafter.extend(sequence, committed)
            text += committed


def test_only_new_tokens_are_decoded() -> None:
    model = Counting()
    drafter = ModelDrafter(model)

    def cost(k: int) -> int:
        before = model.decoded
        propose(drafter, policy(Fixed(k)))
        return model.decoded - before

    drafter.start(0, [1, 2, 3])
    assert model.decoded == 3
    assert cost(3) == 3  # the prompt's last token again, then two drafted ones
    drafter.extend(0, [5, 5])
    assert cost(1) == 2
    drafter.start(0, [1, 2, 3])  # the same prompt again: still held
    assert cost(1) == 1
    drafter.start(0, [1, 2, 4])
    assert cost(1) == 3 + 1 - 3  # prefill outside, one token for its logits


def test_the_same_prompt_is_not_decoded_again_and_another_is() -> None:
    model = Counting()
    drafter = ModelDrafter(model)
    for prompt, decoded in (([1, 2, 3], 3), ([1, 2, 3], 3), ([1, 2], 3), ([1, 2, 3, 4], 7)):
        drafter.start(0, prompt)
        assert model.decoded == decoded


def test_a_failed_decode_leaves_no_false_memory() -> None:
    model = Counting()
    drafter = ModelDrafter(model)
    p = policy(Fixed(3))
    drafter.start(0, [1, 2, 3])
    propose(drafter, p)
    drafter.extend(0, [4, 4])
    model.failing = True
    with pytest.raises(EngineError):
        propose(drafter, p)
    model.failing = False
    assert_equal(propose(drafter, p), fresh([1, 2, 3, 4, 4], p, 9, 0))
    drafter.start(0, [1, 2, 3])
    model.failing = True
    with pytest.raises(EngineError):
        propose(drafter, p)
    model.failing = False
    drafter.extend(0, [5])
    assert_equal(propose(drafter, p), fresh([1, 2, 3, 5], p, 9, 0))
    model.failing = True
    with pytest.raises(EngineError):
        drafter.start(0, [2, 2])
    model.failing = False
    drafter.start(0, [1, 2, 3])
    assert_equal(propose(drafter, p), fresh([1, 2, 3], p, 9, 0))


def test_a_cut_ends_an_argmax_draft_before_the_first_weak_token() -> None:
    full = fresh([1], policy(Fixed(9)), 9, 0)
    for i, least in enumerate(full.evidence.tolist()):
        kept = len(fresh([1], policy(Cut(9, least + 1e-9)), 9, 0))
        assert kept == int((full.evidence < least + 1e-9).argmax())
        assert kept <= i


def test_a_cut_ends_a_drawn_draft_behind_the_first_weak_token() -> None:
    drawn = {"draft_temperature": 1.0}
    full = fresh([1], policy(Fixed(9), **drawn), 9, 3)
    least = float(np.median(full.evidence))
    weak = int((full.evidence < least).argmax())
    assert len(fresh([1], policy(Cut(9, least), **drawn), 9, 3)) == weak + 1


def goodput(chance: tuple[float, ...], edges: tuple[float, ...], cost: float) -> Goodput:
    """Each token of a step costs `cost` tokens of the attained rate."""
    return Goodput(9, Calibration({"*": (edges, chance)}), {1: tuple(1 + cost * i for i in range(10))}, {1: 1.0})


def test_goodput_stops_drafting_when_nothing_can_pay() -> None:
    model = Counting()
    drafter = ModelDrafter(model)
    drafter.start(0, [1])
    assert len(propose(drafter, policy(goodput((0.3,), (0.0,), 0.5)))) == 0
    assert model.decoded == 1  # not one draft decode: its best chance is below its cost
    assert len(propose(drafter, policy(goodput((1.0,), (0.0,), 0.5)))) == 9


def test_goodput_keeps_of_a_whole_draft_what_its_evidence_is_worth() -> None:
    full = fresh([1], policy(Fixed(9)), 9, 0)
    p = policy(goodput((0.0, 1.0), (0.0, float(full.evidence.min()) + 1e-9), 0.5))
    assert len(fresh([1], p, 9, 0)) == int(full.evidence.argmin())


@pytest.mark.parametrize(("temperature", "top_p"), [(0.5, 1.0), (1.0, 0.6), (2.0, 0.9)])
def test_q_is_the_law_that_the_tokens_were_drawn_from(temperature: float, top_p: float) -> None:
    p = policy(Fixed(2), draft_temperature=temperature, draft_top_p=top_p)
    model, counts = Counting(), np.zeros(V)
    drafter = ModelDrafter(model)
    drafter.start(0, [1, 2])
    n, rng = 4000, np.random.default_rng(0)
    for _ in range(n):
        got = drafter.propose(0, 2, p, 1, classify, rng)
        assert got.q is not None
        counts[got.tokens[0]] += 1
        second = probabilities(model.logits([1, 2, int(got.tokens[0])]), Sampling(temperature, top_p=top_p))
        np.testing.assert_array_equal(got.q[1], second)
    law = probabilities(model.logits([1, 2]), Sampling(temperature, top_p=top_p))
    np.testing.assert_array_equal(got.q[0], law)
    likely = law > 0
    assert counts[~likely].sum() == 0
    assert ((counts - n * law)[likely] ** 2 / (n * law[likely])).sum() < 25  # at most 5 degrees of freedom


def test_evidence_is_the_softmax_at_temperature_one() -> None:
    got = fresh([1, 2], policy(Fixed(1), draft_temperature=0.5), 1, 0)
    law = probabilities(Counting().logits([1, 2]), Sampling(1.0))
    assert got.evidence[0] == pytest.approx(law[got.tokens[0]], abs=1e-6)
    assert fresh([1, 2], policy(Fixed(1)), 1, 0).q is None


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_model_gone_wrong_is_an_engine_error(temperature: float) -> None:
    class Broken(Counting):
        def logits(self, held: Sequence[int]) -> NDArray[np.float32]:
            return np.full(V, np.nan, np.float32)

    drafter = ModelDrafter(Broken())
    drafter.start(0, [1])
    with pytest.raises(EngineError, match="draft model returned logits that are not finite"):
        propose(drafter, policy(Fixed(1), draft_temperature=temperature))


def test_lookup_keeps_one_index_a_sequence_and_starts_afresh() -> None:
    drafter = LookupDrafter()
    drafter.start(0, [1, 2, 3, 1])
    drafter.start(1, [4, 5, 4])
    assert propose(drafter, policy(Fixed(2))).tokens.tolist() == [2, 3]
    assert propose(drafter, policy(Fixed(2)), 1).tokens.tolist() == [5, 4]
    drafter.extend(0, [2])
    assert propose(drafter, policy(Fixed(2))).tokens.tolist() == [3, 1]
    drafter.start(0, [7, 8])
    assert len(propose(drafter, policy(Fixed(2)))) == 0


def test_lookup_minds_the_limit_and_the_policy() -> None:
    drafter = LookupDrafter()
    drafter.start(0, [1, 2, 3, 4, 5, 1, 2])
    got = propose(drafter, policy(Fixed(3)))
    assert got.tokens.tolist() == [3, 4, 5]
    assert got.q is None
    assert (np.diff(got.evidence) == 1).all()
    assert len(propose(drafter, policy(Fixed(3)), most=1)) == 1
    assert len(propose(drafter, policy(Cut(3, 2.0)))) == 3
    assert len(propose(drafter, policy(Cut(3, 2.5)))) == 0
    assert len(propose(drafter, policy(goodput((0.9,), (0.0,), 0.95)))) == 0
