# ruff: noqa: D102 (the name of a test says what it checks)
"""What every engine must do.

Inherit `EngineContract`, give the class a fixture `engine`, and pytest runs the suite on it:

    class TestMine(EngineContract):
        @pytest.fixture
        def engine(self) -> Engine:
            return MyEngine()

`pytest.register_assert_rewrite("draftgate.testing.engine")` in conftest.py shows the values of a failed assertion.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from draftgate.engines.base import Completion, Engine, Request, Sampling, near_tie
from draftgate.errors import ConfigError
from draftgate.policy.length import Cut, Fixed
from draftgate.policy.policy import NONE, Policy
from draftgate.trace.records import DRAFTED_TYPES, Drafted
from draftgate.workload.prompt import Prompt

__all__ = ["EngineContract", "assert_same_text", "assert_tiled"]

_GREEDY = Sampling()
_DRAWN = Sampling(temperature=0.8, top_p=0.9, seed=7)


def assert_same_text(engine: Engine, mine: Completion, other: Completion) -> None:
    """Fail unless two greedy outputs are equal, or first differ at a near-tie of the engine's logits."""
    pairs = enumerate(zip(mine.tokens, other.tokens, strict=False))
    at = next((i for i, (a, b) in pairs if a != b), None)
    if at is None:
        assert mine.tokens == other.tokens, "one output is longer"
        return
    gap, noise = engine.logit_gap(mine.request.tokens, mine.tokens[:at], mine.tokens[at], other.tokens[at])
    assert near_tie(gap, noise), f"outputs differ at {at} by {gap} in logits, which rounding ({noise}) does not explain"


def assert_tiled(done: Completion, k: int) -> None:
    """Fail unless the steps account for every token of the output but the first, once, and for every draft."""
    offset = 1
    for i, step in enumerate(done.steps):
        assert (step.step, step.offset) == (i, offset)
        assert 0 <= step.accepted <= step.drafted_n <= k
        assert step.accepted <= step.committed <= step.accepted + 1
        assert step.committed >= 1
        assert step.verify_s > 0
        assert step.draft_s >= 0
        offset += step.committed
    assert offset == len(done.tokens)
    assert done.step_tokens == sum(step.committed for step in done.steps)


class EngineContract:
    """Tests of one engine.

    Attributes:
        prompts: what to complete; texts that repeat themselves, so that lookup drafts too are sometimes right.
        max_tokens: output limit.
        lengths: draft lengths to try.
    """

    prompts: Sequence[Prompt] = (
        Prompt(id="loop", prompt="for i in range(3):\n    print(i)\nfor j in range(3):\n    print(j)\nfor k in"),
        Prompt(id="list", prompt='[{"id": 1, "name": "a"}, {"id": 2, "name": "b"}, {"id":', language="json"),
    )
    max_tokens = 16
    lengths = (1, 3, 7)

    def requests(self, engine: Engine, sampling: Sampling = _GREEDY) -> list[Request]:
        """The prompts, encoded."""
        return [engine.encode(prompt, "contract", self.max_tokens, sampling) for prompt in self.prompts]

    def run(
        self, engine: Engine, policy: Policy, sampling: Sampling = _GREEDY, record: bool = False
    ) -> list[Completion]:
        """Every prompt, one at a time."""
        return [engine.generate([request], policy, record)[0] for request in self.requests(engine, sampling)]

    def test_no_speculation_drafts_nothing(self, engine: Engine) -> None:
        for done in self.run(engine, NONE):
            assert_tiled(done, 0)
            assert {step.committed for step in done.steps} <= {1}

    def test_lossless_greedy_arms_give_the_text_of_no_speculation(self, engine: Engine) -> None:
        baseline = self.run(engine, NONE)
        drafted = 0
        for rule, k in [("exact", k) for k in self.lengths] + [("lossless", max(self.lengths))]:
            for none, done in zip(baseline, self.run(engine, Policy(rule, rule, length=Fixed(k))), strict=True):
                assert_tiled(done, k)
                assert_same_text(engine, none, done)
                drafted += sum(step.drafted_n for step in done.steps)
        assert drafted > 0, "no arm drafted anything, so nothing was tested; give prompts that repeat themselves"

    @pytest.mark.parametrize("sampling", [_GREEDY, _DRAWN], ids=["greedy", "drawn"])
    def test_recording_changes_nothing(self, engine: Engine, sampling: Sampling) -> None:
        policy = Policy("loose", "threshold-or-lossless", 0.2, length=Fixed(3))
        if not engine.capabilities.records_drafted:
            _assert_refuses_to_record(engine, self.requests(engine, sampling)[0], policy)
            return
        plain, recorded = (self.run(engine, policy, sampling, record) for record in (False, True))
        for a, b in zip(plain, recorded, strict=True):
            assert a.tokens == b.tokens
            assert [(s.drafted_n, s.accepted) for s in a.steps] == [(s.drafted_n, s.accepted) for s in b.steps]
            assert all(step.drafted is None for step in a.steps)

    @pytest.mark.parametrize("sampling", [_GREEDY, _DRAWN], ids=["greedy", "drawn"])
    def test_records_cover_every_drafted_token(self, engine: Engine, sampling: Sampling) -> None:
        policy = Policy("exact", length=Fixed(5))
        if not engine.capabilities.records_drafted:
            _assert_refuses_to_record(engine, self.requests(engine, sampling)[0], policy)
            return
        for done in self.run(engine, policy, sampling, record=True):
            for step in done.steps:
                assert step.drafted is not None
                assert len(step.drafted) == step.drafted_n
                _assert_consistent(step.drafted)
                kept = done.tokens[step.offset : step.offset + step.accepted]
                assert step.drafted.tokens[: step.accepted].tolist() == list(kept)
                if sampling.greedy:
                    assert (step.drafted.rank[: step.accepted] == 0).all()
                    assert (step.drafted.rank[step.accepted : step.accepted + 1] > 0).all()

    @pytest.mark.parametrize("limit", [1, 2, 5])
    def test_the_token_limit_is_exact(self, engine: Engine, limit: int) -> None:
        for request in self.requests(engine):
            done = engine.generate([replace(request, max_tokens=limit)], Policy("exact", length=Fixed(7)))[0]
            assert_tiled(done, 7)
            assert (len(done.tokens) == limit) if done.finish == "length" else (done.tokens[-1] in engine.end_tokens)

    def test_only_the_last_token_ends(self, engine: Engine) -> None:
        for done in self.run(engine, Policy("exact", length=Fixed(7)), _DRAWN):
            assert not engine.end_tokens.intersection(done.tokens[:-1])
            assert (done.finish == "stop") == (done.tokens[-1] in engine.end_tokens)

    def test_a_batch_gives_the_texts_of_its_members(self, engine: Engine) -> None:
        if engine.capabilities.max_batch < len(self.prompts):
            pytest.skip("this engine's batch is smaller than the list of prompts")
        policy = Policy("exact", length=Fixed(3))
        together = engine.generate(self.requests(engine), policy)
        for a, b in zip(self.run(engine, policy), together, strict=True):
            assert_tiled(b, 3)
            assert_same_text(engine, a, b)
        assert max(step.batch for done in together for step in done.steps) == len(self.prompts)

    def test_a_seed_reproduces(self, engine: Engine) -> None:
        policy = Policy("lossless", "lossless", length=Fixed(3))
        first, again, other = (
            [done.tokens for done in self.run(engine, policy, replace(_DRAWN, temperature=1.5, top_p=1.0, seed=seed))]
            for seed in (1, 1, 2)
        )
        assert first == again
        assert first != other

    def test_measuring_leaves_requests_as_they_were(self, engine: Engine) -> None:
        """One prompt all along, so that an engine which keeps prompts in memory has it there."""
        request, policy = self.requests(engine)[0], Policy("exact", length=Fixed(3))
        before = engine.generate([request], policy)[0]
        for measure in (
            lambda: _costs(engine, 3),
            lambda: engine.logit_gap(request.tokens[:2], request.tokens[:2], 1, 2),
        ):
            measure()
            after = engine.generate([request], policy)[0]
            assert after.tokens == before.tokens
            assert [s.accepted for s in after.steps] == [s.accepted for s in before.steps]

    def test_a_draft_is_cut_by_evidence_where_there_is_any(self, engine: Engine) -> None:
        policy = Policy("cut", length=Cut(3, 1e9))
        if engine.capabilities.evidence:
            assert all(step.drafted_n == 0 for done in self.run(engine, policy) for step in done.steps)
        else:
            with pytest.raises(ConfigError):
                engine.generate(self.requests(engine)[:1], policy)

    def test_the_chosen_token_has_the_greatest_logit(self, engine: Engine) -> None:
        done = self.run(engine, NONE)[0]
        first, second = done.tokens[0], done.tokens[0] + 1
        gap, noise = engine.logit_gap(done.request.tokens, (), first, second)
        assert gap > 0
        assert engine.logit_gap(done.request.tokens, (), second, first) == (-gap, noise)

    def test_what_does_not_fit_is_refused(self, engine: Engine) -> None:
        request = self.requests(engine)[0]
        for wrong, policy in (
            (request, Policy("long", length=Fixed(10**6))),
            (replace(request, tokens=request.tokens * 10**5), NONE),
            (replace(request, max_tokens=10**9), NONE),
            (replace(request, tokens=()), NONE),
            (replace(request, max_tokens=0), NONE),
        ):
            with pytest.raises(ConfigError):
                engine.generate([wrong], policy)


def _assert_refuses_to_record(engine: Engine, request: Request, policy: Policy) -> None:
    with pytest.raises(ConfigError):
        engine.generate([request], policy, record=True)


def _costs(engine: Engine, most: int) -> None:
    """Measure, or be refused by an engine that records nothing: then nothing is replayed, and no cost is needed."""
    if engine.capabilities.records_drafted:
        assert len(engine.measure_cost([1], most, 0.1).curve(1).seconds) == most
    else:
        with pytest.raises(ConfigError):
            engine.measure_cost([1], most, 0.1)


def _assert_consistent(drafted: Drafted) -> None:
    """Fail unless one step's scores agree with each other."""
    for name, kind in DRAFTED_TYPES.items():
        assert getattr(drafted, name).dtype == kind, name
        assert getattr(drafted, name).shape == drafted.tokens.shape, name
    assert (drafted.logp <= 0).all()
    assert (drafted.logq <= 0).all()
    assert (drafted.entropy >= -1e-6).all()
    assert ((drafted.uniform > 0) & (drafted.uniform < 1)).all()
    assert np.array_equal(drafted.rank == 0, drafted.top1_margin == 0)
    assert (drafted.top1_margin >= 0).all()
