from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from draftgate.engines.base import Completion, Engine, Request, Sampling
from draftgate.engines.drafters import Classify, LookupDrafter, ModelDrafter
from draftgate.engines.fake import FakeEngine
from draftgate.engines.loop import Speculator, Vocabulary
from draftgate.engines.verify import Proposal
from draftgate.errors import ConfigError, EngineError
from draftgate.policy.category import category_table
from draftgate.policy.length import Cut, Fixed
from draftgate.policy.policy import NONE, Policy
from draftgate.testing.engine import EngineContract, assert_tiled

END = 0
PIECES = tuple(b"" if i == END else bytes([96 + i]) for i in range(8))
VOCABULARY = Vocabulary(PIECES, frozenset({END}), lambda language: category_table(PIECES, language))


class TestFakeEngine(EngineContract):
    @pytest.fixture
    def engine(self) -> Engine:
        return FakeEngine(seed=3)


class Rows:
    """A forward pass whose logits depend on the last token only, through a table [V, V]; checks every position."""

    def __init__(self, logits: NDArray[np.float32]) -> None:
        self.logits = logits
        self.held: dict[int, list[int]] = {}
        self.prefills = 0

    def prefill(self, sequence: int, tokens: Sequence[int]) -> NDArray[np.float32]:
        self.prefills += 1
        self.held[sequence] = []
        return self.decode([(sequence, 0, tokens)], last_only=True)[0]

    def decode(self, rows: Sequence[tuple[int, int, Sequence[int]]], last_only: bool = False) -> NDArray[np.float32]:
        out = []
        for sequence, start, tokens in rows:
            assert start == len(self.held[sequence])
            self.held[sequence].extend(tokens)
            out += [self.logits[token] for token in (tokens[-1:] if last_only else tokens)]
        return np.array(out)

    def rollback(self, sequence: int, position: int) -> None:
        assert position <= len(self.held[sequence])
        del self.held[sequence][position:]


class Scripted:
    """Drafts what it is told to, step after step, then nothing."""

    def __init__(self, *drafts: Sequence[int]) -> None:
        self.drafts = list(drafts)

    def start(self, sequence: int, prompt: Sequence[int]) -> None:
        pass

    def extend(self, sequence: int, tokens: Sequence[int]) -> None:
        pass

    def propose(
        self, sequence: int, most: int, policy: Policy, batch: int, classify: Classify, rng: np.random.Generator
    ) -> Proposal:
        tokens = (self.drafts.pop(0) if self.drafts else [])[:most]
        return Proposal(np.array(tokens, np.int32), np.ones(len(tokens)), classify(tokens))


def counting() -> NDArray[np.float32]:
    """After token i comes i + 1, and after the last one the end."""
    return 5 * np.roll(np.eye(len(PIECES), dtype=np.float32), 1, axis=1)


def speculator(target: Rows, *drafts: Sequence[int], n_ctx: int = 64, n_batch: int = 32) -> Speculator:
    return Speculator(target, Scripted(*drafts), VOCABULARY, n_ctx, n_batch)


def request(tokens: tuple[int, ...] = (1, 2), max_tokens: int = 20, **more: object) -> Request:
    return replace(Request("r", tokens, max_tokens), **more)


def steps(done: Completion) -> list[tuple[int, int, int]]:
    return [(step.drafted_n, step.accepted, step.committed) for step in done.steps]


EXACT = Policy("exact", length=Fixed(7))


def test_a_scripted_run_is_counted_right() -> None:
    done = speculator(Rows(counting()), [4, 5, 1], [7]).run([request()], EXACT, False)[0]
    assert done.tokens == (3, 4, 5, 6, 7, END)
    assert steps(done) == [(3, 2, 3), (1, 1, 2)]
    assert [step.offset for step in done.steps] == [1, 4]
    assert (done.finish, done.text) == ("stop", "cdefg")


def test_an_end_token_inside_a_draft_ends_the_request() -> None:
    done = speculator(Rows(counting()), [4, 5, 6, 7, END]).run([request()], EXACT, True)[0]
    assert done.tokens == (3, 4, 5, 6, 7, END)
    assert steps(done) == [(5, 5, 5)]  # no bonus token behind the end
    assert done.finish == "stop"
    assert_tiled(done, 5)


def test_an_end_token_as_bonus_or_as_first_token() -> None:
    assert steps(speculator(Rows(counting()), [4, 5, 6, 7]).run([request()], EXACT, False)[0]) == [(4, 4, 5)]
    done = speculator(Rows(counting())).run([request((7,))], EXACT, False)[0]
    assert (done.tokens, done.steps, done.finish, done.decode_s >= 0) == ((END,), (), "stop", True)


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5])
def test_the_limit_cuts_drafts_not_outputs(limit: int) -> None:
    done = speculator(Rows(counting()), [4, 5, 6, 7]).run([request(max_tokens=limit)], EXACT, False)[0]
    assert done.tokens == (3, 4, 5, 6, 7)[:limit]
    assert done.finish == "length"
    assert steps(done) == ([] if limit == 1 else [(limit - 2, limit - 2, limit - 1)])


def test_a_batch_shares_decodes_and_members_leave_when_done() -> None:
    target = Rows(counting())
    requests = [request(id="a"), request((4, 5), id="b")]
    done = speculator(target).run(requests, EXACT, False)
    assert [d.tokens for d in done] == [(3, 4, 5, 6, 7, END), (6, 7, END)]
    assert [step.batch for step in done[0].steps] == [2, 2, 1, 1, 1]


def test_a_prompt_that_is_held_is_not_decoded_again_until_forgotten() -> None:
    target = Rows(counting())
    loop = speculator(target)
    first = loop.run([request()], EXACT, False)[0]
    again = loop.run([request()], NONE, False)[0]
    assert (target.prefills, again.tokens, again.prefill_s) == (1, first.tokens, first.prefill_s)
    loop.run([request((2, 3))], NONE, False)
    loop.forget()
    loop.run([request((2, 3))], NONE, False)
    assert target.prefills == 3


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_logits_that_are_not_finite_are_an_engine_error(wrong: float) -> None:
    logits = counting()
    logits[5, 6] = wrong
    with pytest.raises(EngineError, match="not finite at output offset 3"):
        speculator(Rows(logits)).run([request()], NONE, True)
    with pytest.raises(EngineError, match=r"prompt 'r'.*not finite"):
        speculator(Rows(logits)).run([request((5,))], NONE, False)


def test_a_failed_prefill_is_tried_again() -> None:
    class Failing(Rows):
        def decode(
            self, rows: Sequence[tuple[int, int, Sequence[int]]], last_only: bool = False
        ) -> NDArray[np.float32]:
            if self.prefills == 2:
                raise EngineError("out of memory")
            return super().decode(rows, last_only)

    target = Failing(counting())
    loop = speculator(target)
    loop.run([request()], NONE, False)
    with pytest.raises(EngineError):
        loop.run([request((2, 3))], NONE, False)
    assert loop.run([request()], NONE, False)[0].tokens == (3, 4, 5, 6, 7, END)


@pytest.mark.parametrize(
    ("wrong", "policy", "message"),
    [
        ([request(())], NONE, "prompt 'r': needs at least one prompt token"),
        ([request(max_tokens=0)], NONE, "at least one prompt token and one output token"),
        ([request((1,) * 50)], NONE, "50 prompt tokens and 20 output tokens do not fit the context of 64"),
        ([request()], Policy("p", length=Fixed(64)), "policy 'p': k = 64 .* context of 64; lower k"),
        ([request()], Policy("p", length=Fixed(40)), "k = 40 for 1 requests takes 41 tokens .* one decode of 32"),
        ([request(), request()], Policy("p", length=Fixed(20)), "takes 42 tokens"),
    ],
)
def test_what_does_not_fit_is_refused(wrong: list[Request], policy: Policy, message: str) -> None:
    target = Rows(counting())
    with pytest.raises(ConfigError, match=message):
        speculator(target).run(wrong, policy, False)
    assert target.prefills == 0


def test_categories_are_known_when_recording_and_follow_the_lexed_text() -> None:
    def categories(lexed: str, record: bool) -> list[int]:
        loop = speculator(Rows(counting()), [4, 5])
        drafted = loop.run([request(language="python", lexed=lexed)], EXACT, record)[0].steps[0].drafted
        return [] if drafted is None else drafted.category.tolist()

    assert categories("x = 1\n# ", True) == [7, 7]
    assert categories("x = ", True) != [7, 7]
    assert categories("", False) == []


def law_of_pairs(outputs: list[tuple[int, ...]], n: int) -> NDArray[np.float64]:
    counts = np.zeros((n, n))
    for a, b in outputs:
        counts[a, b] += 1
    return counts


@pytest.mark.parametrize("rule", ["lossless", "exact"])
@pytest.mark.parametrize("length", [Fixed(2), Cut(2, 0.45)], ids=["fixed", "cut"])
def test_a_drawn_draft_leaves_the_law_of_the_output_alone(rule: str, length: Fixed | Cut) -> None:
    """Chi-square over pairs of tokens. A cut that looks at the drawn token fails this by a wide margin."""
    rng = np.random.default_rng(5)
    n, trials = 4, 6_000
    target, draft = (rng.normal(0, 1.2, (n, n)).astype(np.float32) for _ in range(2))
    pieces = tuple(bytes([97 + i]) for i in range(n))
    vocabulary = Vocabulary(pieces, frozenset(), lambda language: category_table(pieces, language))
    loop = Speculator(Rows(target), ModelDrafter(Rows(draft)), vocabulary, 16, 8)
    policy = Policy("p", rule, length=length, draft_temperature=1.0)
    outputs = []
    for seed in range(trials):
        drawn = request((1,), 4, sampling=Sampling(1.0, seed=seed))
        outputs.append(loop.run([drawn], policy, False)[0].tokens[1:3])
    p = np.exp(target.astype(np.float64))
    p /= p.sum(axis=1, keepdims=True)
    expected = trials * (p[1] @ p)[:, None] * p
    chi = ((law_of_pairs(outputs, n) - expected) ** 2 / expected).sum()
    assert chi < 40, chi  # 15 degrees of freedom: chance of 5e-4


def test_lookup_drafts_end_at_the_limit_and_tile() -> None:
    cycle = 5 * np.roll(np.eye(8, dtype=np.float32), 1, axis=1)
    cycle[7] = 0
    cycle[7, 1] = 5
    done = Speculator(Rows(cycle), LookupDrafter(), VOCABULARY, 128, 32).run(
        [request((1, 2, 3, 4, 5, 6, 7, 1, 2), 40)], EXACT, True
    )[0]
    assert_tiled(done, 7)
    assert len(done.tokens) == 40
    assert len(done.steps) == 5
