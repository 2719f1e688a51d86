"""vLLM in this process, on a tiny model: the suite that every engine passes, and what is vLLM's own."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("vllm")

from draftgate.engines.base import Engine, Sampling
from draftgate.engines.vllm.offline import VllmOffline
from draftgate.engines.vllm.stepper import Tick
from draftgate.errors import ConfigError, EngineError
from draftgate.policy.length import Fixed
from draftgate.policy.policy import NONE, Policy
from draftgate.testing.engine import EngineContract, assert_tiled
from draftgate.workload.prompt import Message, Prompt

pytestmark = pytest.mark.filterwarnings("ignore")  # vLLM and numba warn of their own future

OPTIONS = {"dtype": "float32", "enforce_eager": True}
REPEAT = Prompt(id="repeat", prompt="a = 1\nb = 2\nc = 3\na = 1\nb = 2\nc = 3\na = 1\nb =", language="python")


@pytest.fixture(scope="module")
def lookup(tiny_dir: Path) -> Iterator[VllmOffline]:
    with closing(VllmOffline(str(tiny_dir), "ngram", 7, 256, max_batch=4, options=OPTIONS)) as engine:
        yield engine


class TestLookup(EngineContract):
    @pytest.fixture
    def engine(self, lookup: VllmOffline) -> Engine:
        return lookup


def test_a_shorter_draft_is_a_shorter_draft(lookup: VllmOffline) -> None:
    request = lookup.encode(REPEAT, "w", 48, Sampling())
    for k in (0, 1, 2, 7):
        done = lookup.generate([request], Policy(f"exact-k{k}", length=Fixed(k)))[0]
        assert_tiled(done, k)
        assert max(step.drafted_n for step in done.steps) == k


def test_a_loose_rule_keeps_more(lookup: VllmOffline) -> None:
    request = lookup.encode(REPEAT, "w", 64, Sampling())
    rates = []
    for tau in (1.0, 0.2, 0.01, 0.0):
        done = lookup.generate([request], Policy(f"tau-{tau}", "threshold-or-lossless", tau, length=Fixed(5)))[0]
        rates.append(sum(s.accepted for s in done.steps) / sum(s.drafted_n for s in done.steps))
    assert rates == sorted(rates)
    assert rates[0] < rates[-1] == 1.0


def test_what_was_recorded_is_timed_apart(lookup: VllmOffline) -> None:
    request = lookup.encode(REPEAT, "w", 16, Sampling())
    done = lookup.generate([request], Policy("exact", length=Fixed(3)), record=True)[0]
    assert all(step.draft_s > 0 for step in done.steps if step.drafted_n)
    assert sum(step.verify_s + step.draft_s for step in done.steps) <= done.decode_s + done.prefill_s


def test_two_prompts_of_one_name_are_told_apart(lookup: VllmOffline) -> None:
    short, long = (
        lookup.encode(replace(REPEAT, prompt=text), "w", 8, Sampling()) for text in ("x", REPEAT.prompt or "")
    )
    for done in lookup.generate([short, long], Policy("exact", length=Fixed(3)), record=True):
        assert_tiled(done, 3)


@pytest.mark.parametrize("record", [False, True])
def test_an_end_token_inside_a_draft_ends_the_draft(
    record: bool, lookup: VllmOffline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forced drafts are the tokens 1, 2, 3, ..., of which 2 ends SmolLM2's texts; at tau 0 all are kept."""
    stepper = lookup._stepper
    tick = stepper._tick

    def forced() -> Tick:
        seen = tick()
        stepper.draft(5)
        return seen

    monkeypatch.setattr(stepper, "_tick", forced)
    request = lookup.encode(REPEAT, "w", 8, Sampling())
    done = lookup.generate([request], Policy("all", "threshold-or-lossless", 0.0, length=Fixed(7)), record)[0]
    assert (done.finish, done.tokens[1:]) == ("stop", (1, 2))
    assert [(s.drafted_n, s.accepted, s.committed) for s in done.steps] == [(2, 2, 2)]
    assert_tiled(done, 7)


def test_conversations_go_through_the_models_template(lookup: VllmOffline) -> None:
    request = lookup.encode(Prompt(id="chat", messages=(Message("user", "Say hello."),)), "w", 8, Sampling())
    said = lookup._tokenizer.decode(request.tokens)
    assert "<|im_start|>user\nSay hello.<|im_end|>" in said
    assert said.rstrip().endswith("<|im_start|>assistant")


def test_the_cache_holds_what_can_run_at_once_and_little_more(
    lookup: VllmOffline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM writes to all of it when it starts: by default 92% of a machine's memory."""
    config = lookup._llm.llm_engine.vllm_config.cache_config
    assert 4 * 256 <= (config.num_gpu_blocks - 1) * config.block_size <= 4 * 256 * 2
    monkeypatch.setattr(lookup._stepper._scheduler, "_preempt_request", lambda *_: pytest.fail("no room"))
    long = replace(lookup.encode(REPEAT, "w", 8, Sampling()), tokens=(7,) * 190, max_tokens=66)
    for done in lookup.generate([replace(long, id=str(i)) for i in range(4)], Policy("exact", length=Fixed(7))):
        assert len(done.tokens) == 66 or done.finish == "stop"


def test_nothing_of_a_failed_run_stays_behind(lookup: VllmOffline, monkeypatch: pytest.MonkeyPatch) -> None:
    request, policy = lookup.encode(REPEAT, "w", 16, Sampling()), Policy("exact", length=Fixed(3))
    before = lookup.generate([request], policy)[0]
    execute = lookup._stepper._scheduler.update_from_output
    monkeypatch.setattr(lookup._stepper._scheduler, "update_from_output", lambda *_: 1 / 0)
    with pytest.raises(EngineError, match="ZeroDivisionError"):
        lookup.generate([request], policy)
    monkeypatch.setattr(lookup._stepper._scheduler, "update_from_output", execute)
    assert lookup.generate([request], policy)[0].tokens == before.tokens


def test_costs_rise_with_what_is_verified_and_are_of_whole_steps(lookup: VllmOffline) -> None:
    cost = lookup.measure_cost([1, 4, 64], 99, 1.0)
    assert sorted(cost.curves) == [1, 4]  # 64 sequences do not fit
    assert [len(curve.seconds) for curve in cost.curves.values()] == [8, 4]  # 7 drafted tokens and one more
    assert cost.draft_s == 0
    assert all(second > 0 for curve in cost.curves.values() for second in curve.seconds)


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        (Policy("long", length=Fixed(8)), "started with 7"),
        (Policy("warm", "lossless", length=Fixed(3), draft_temperature=0.5), "draft_sample_method"),
    ],
)
def test_policies_that_vllm_cannot_run(policy: Policy, says: str, lookup: VllmOffline) -> None:
    with pytest.raises(ConfigError, match=says):
        lookup.generate([lookup.encode(REPEAT, "w", 8, Sampling())], policy)


@pytest.mark.parametrize(
    ("sampling", "says"), [(Sampling(min_p=0.1), "min-p"), (Sampling(constrained=True), "constrained")]
)
def test_sampling_that_vllm_would_ignore(sampling: Sampling, says: str, lookup: VllmOffline) -> None:
    with pytest.raises(ConfigError, match=says):
        lookup.encode(REPEAT, "w", 8, sampling)


def test_the_setup_tells_configurations_apart(lookup: VllmOffline) -> None:
    setup = lookup.setup
    assert (setup.engine, setup.version, setup.draft[:5]) == ("vllm", "0.32.0", "ngram")
    assert setup.draft != "lookup"  # replay must not draft again: vLLM's lookup is not ours
    assert "prompt_lookup_min 2" in setup.draft


def test_starting_what_cannot_start(tiny_dir: Path, tmp_path: Path) -> None:
    for arguments, says in (
        ({"options": {"model": "x"}}, "'model' is set by draftgate"),
        ({"options": {"no_such_option": 1}}, "no_such_option"),
        ({"n_ctx": 10**9}, "refuses this configuration"),
    ):
        with pytest.raises(ConfigError, match=says):
            VllmOffline(str(tiny_dir), **arguments)


class TestDraftModel(EngineContract):
    """Its draft length follows the policy too, though its drafts stay on the device."""

    lengths = (1, 4)
    max_tokens = 12

    @pytest.fixture(scope="class")
    def drafted(self, tiny_dir: Path, tiny_draft_dir: Path) -> Iterator[VllmOffline]:
        with closing(VllmOffline(str(tiny_dir), str(tiny_draft_dir), 7, 256, max_batch=2, options=OPTIONS)) as engine:
            yield engine

    @pytest.fixture
    def engine(self, drafted: VllmOffline) -> Engine:
        return drafted

    def test_every_step_drafts_as_many_tokens_as_the_policy_says(self, drafted: VllmOffline) -> None:
        request = drafted.encode(REPEAT, "w", 20, Sampling())
        for k in (1, 3, 7):
            done = drafted.generate([request], Policy(f"k{k}", length=Fixed(k)))[0]
            assert {step.drafted_n for step in done.steps[:-1]} == {k}

    def test_none_after_drafts_is_none(self, drafted: VllmOffline) -> None:
        request = drafted.encode(REPEAT, "w", 12, Sampling())
        drafted.generate([request], Policy("k7", length=Fixed(7)))
        assert all(step.drafted_n == 0 for step in drafted.generate([request], NONE)[0].steps)
