import json
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from vllm.exceptions import VLLMValidationError
from vllm.platforms import current_platform
from vllm.sampling_params import StructuredOutputsParams

from draftgate.engines.vllm import admission, control, plugin, sampler
from draftgate.engines.vllm.control import Control
from draftgate.engines.vllm.hooks import HOOKS, Hook
from draftgate.engines.vllm.lengths import Lengths, Reach, reach
from draftgate.engines.vllm.plugin import PLUGIN, Plugin, register
from draftgate.engines.vllm.recording import folders, trace_setup
from draftgate.engines.vllm.rows import Ask, Roster, asked, policy_of, unfit
from draftgate.engines.vllm.source import SOURCE, PolicySource
from draftgate.engines.vllm.tables import PolicyTables
from draftgate.errors import ConfigError
from draftgate.experiment.offline import replay
from draftgate.policy.length import Fixed
from draftgate.policy.policy import Policy
from draftgate.policy.policyset import PolicySet, dump
from draftgate.trace.records import RequestRecord, StepRecord
from draftgate.trace.store import TraceStore
from vllm import LLM, SamplingParams

pytestmark = pytest.mark.filterwarnings("ignore")  # vLLM and what it imports warn a lot

K = 5
PROMPTS = (
    (
        "def total(items):\n    result = 0\n    for item in items:\n        result += item\n    return result\n\n"
        "def total("
    ),
    "Repeat: a b c d a b c d a b c d a b",
    "The quick brown fox jumps over",
)
EXACT = Policy("exact-5", "exact", length=Fixed(K))


@dataclass(frozen=True, slots=True)
class Ran:
    """What came of a batch, by request."""

    tokens: list[list[int]]
    drafted: list[int]
    accepted: list[int]

    @property
    def rate(self) -> float:
        return sum(self.accepted) / sum(self.drafted)


class Server:
    """A `vllm.LLM` in this process with the plugin in it."""

    made = 0

    def __init__(self, model: Path, method: dict[str, Any]) -> None:
        register()
        if Server.made:
            # vLLM's search for kernels, once they are replaced, trips over an object of llvmlite in another module.
            type(current_platform).register_triton_kernel_overrides = classmethod(lambda cls: None)
        Server.made += 1
        self.llm = LLM(
            str(model),
            dtype="float32",
            enforce_eager=True,
            max_model_len=512,
            max_num_seqs=4,
            num_gpu_blocks_override=40,  # of 128 tokens; else the cache takes a GiB for each engine
            speculative_config=method | {"num_speculative_tokens": K},
            per_request_spec_decode_metrics="detailed",
        )

    def run(
        self,
        policies: PolicySet | Policy | None,
        temperature: float = 0.0,
        asks: Sequence[dict[str, str] | None] = (None,) * len(PROMPTS),
        max_tokens: int = 40,
        limit_tok: int | None = None,
        **sampling: Any,
    ) -> Ran:
        SOURCE.set(PolicySet((policies,), policies.name) if isinstance(policies, Policy) else policies, limit_tok)
        return self.generate(temperature, asks, max_tokens, **sampling)

    def generate(
        self,
        temperature: float = 0.0,
        asks: Sequence[dict[str, str] | None] = (None,) * len(PROMPTS),
        max_tokens: int = 40,
        **sampling: Any,
    ) -> Ran:
        """Under whatever is in force."""
        params = [
            SamplingParams(temperature=temperature, max_tokens=max_tokens, seed=i, extra_args=ask, **sampling)
            for i, ask in enumerate(asks)
        ]
        outputs = [r.outputs[0] for r in self.llm.generate(list(PROMPTS[: len(asks)]), params, use_tqdm=False)]
        metrics = [output.spec_decode_metrics for output in outputs]
        return Ran(
            [list(output.token_ids) for output in outputs],
            [m.num_draft_tokens for m in metrics],
            [sum(m.per_step_accepted) for m in metrics],
        )


_NGRAM = {"method": "ngram", "prompt_lookup_max": 3, "prompt_lookup_min": 1}


@pytest.fixture(scope="module")
def ngram(tiny_dir: Path) -> Server:
    return Server(tiny_dir, _NGRAM)


@pytest.fixture(scope="module")
def drafting(tiny_dir: Path, tiny_draft_dir: Path) -> Server:
    method = {"method": "draft_model", "model": str(tiny_draft_dir), "draft_sample_method": "probabilistic"}
    return Server(tiny_dir, method)


@pytest.fixture(params=["ngram", "drafting"])
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(request.param)
    return found


@pytest.fixture(autouse=True)
def untouched() -> Iterator[None]:
    """Every test leaves vLLM to itself, and the plugin without faults."""
    PLUGIN.faults.counts.clear()
    PLUGIN.faults.first.clear()
    yield
    SOURCE.set(None, None)
    faults = dict(PLUGIN.faults.first)
    PLUGIN.faults.counts.clear()
    PLUGIN.faults.first.clear()
    assert not faults


@contextmanager
def logged(name: str) -> Iterator[list[str]]:
    """Lines of one logger."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger(name)
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)


def loose(tau: float, name: str = "loose", **more: Any) -> Policy:
    return Policy(name, "threshold-or-lossless", tau, length=Fixed(K), **more)


LOOSE = loose(0.0)


class TestOnRealEngine:
    @pytest.mark.parametrize("rule", ["exact", "lossless"])
    def test_lossless_rules_are_vllms_own_when_greedy(self, server: Server, rule: str) -> None:
        assert server.run(Policy("p", rule, length=Fixed(K))) == server.run(None)

    @pytest.mark.parametrize("rule", ["exact", "lossless"])
    def test_lossless_rules_are_vllms_own_when_sampled(self, ngram: Server, rule: str) -> None:
        assert ngram.run(Policy("p", rule, length=Fixed(K)), temperature=0.8, top_p=0.9) == ngram.run(
            None, temperature=0.8, top_p=0.9
        )

    def test_lossless_beside_another_rule_is_vllms_own(self, ngram: Server) -> None:
        """Then it is not vLLM's function that verifies the batch."""
        policies = PolicySet((EXACT, loose(0.01)), EXACT.name)
        asks = [None, {"draftgate_policy": "loose"}, None]
        for temperature in (0.0, 0.8):
            alone, mixed = ngram.run(None, temperature), ngram.run(policies, temperature, asks)
            for row in (0, 2):
                assert mixed.tokens[row] == alone.tokens[row]

    def test_lower_thresholds_accept_more(self, server: Server) -> None:
        rates = [server.run(loose(tau)).rate for tau in (1.0, 0.2, 0.05, 0.01, 0.0)]
        assert rates[0] == server.run(None).rate
        assert rates[-1] == 1.0
        assert all(low <= high + 0.03 for low, high in pairwise(rates))  # their texts differ
        assert rates[3] > rates[0] + 0.1

    def test_strict_threshold_keeps_the_text_and_accepts_less(self, server: Server) -> None:
        exact, strict = server.run(None), server.run(Policy("strict", "threshold", 0.9, length=Fixed(K)))
        assert strict.tokens == exact.tokens
        assert strict.rate < exact.rate

    def test_each_request_of_a_batch_has_its_policy(self, server: Server) -> None:
        everything, none = loose(0.0, "everything"), Policy("off", length=Fixed(0))
        policies = PolicySet((EXACT, everything, none), EXACT.name, {"work": "everything"})
        asks = [{"draftgate_policy": "off"}, {"draftgate_workload": "work"}, None]
        own, mixed = server.run(None), server.run(policies, asks=asks)
        assert mixed.drafted[0] == 0
        assert mixed.accepted[1] == mixed.drafted[1] > 0
        assert mixed.tokens[0] == own.tokens[0]
        assert (mixed.tokens[2], mixed.drafted[2]) == (own.tokens[2], own.drafted[2])

    def test_unknown_names_get_the_default_and_are_counted(self, ngram: Server) -> None:
        before = sum(state.roster.unknown for state in PLUGIN.runners.values())
        asks = [{"draftgate_policy": "nobody's"}, None, None]
        assert ngram.run(EXACT, asks=asks) == ngram.run(None)
        assert sum(state.roster.unknown for state in PLUGIN.runners.values()) == before + 1

    def test_policies_change_between_steps(self, ngram: Server) -> None:
        first = ngram.run(EXACT)
        assert ngram.run(loose(0.0)).rate == 1.0
        assert ngram.run(EXACT) == first

    @pytest.mark.parametrize("limit_tok", [0, 1, 3])
    def test_limit_cuts_every_draft(self, server: Server, limit_tok: int) -> None:
        own, cut = server.run(None), server.run(None, limit_tok=limit_tok)
        assert cut.tokens == own.tokens
        kept = self._recorded(server, EXACT, limit_tok=limit_tok)
        assert max(step.drafted_n for _, steps in kept for step in steps) == limit_tok
        assert server.run(None) == own

    @pytest.mark.parametrize("k", [0, 1, 3])
    def test_length_of_the_policy_cuts_drafts(self, server: Server, k: int) -> None:
        assert server.run(Policy("short", length=Fixed(k))).tokens == server.run(None).tokens
        kept = self._recorded(server, Policy("short", length=Fixed(k)))
        assert max(step.drafted_n for _, steps in kept for step in steps) == k

    @staticmethod
    def _recorded(
        server: Server, policies: PolicySet | Policy | None, share: float = 1.0, **how: Any
    ) -> list[tuple[RequestRecord, Sequence[StepRecord]]]:
        kept: list[tuple[RequestRecord, Sequence[StepRecord]]] = []
        PLUGIN.record(lambda kind, pairs: kept.extend(pairs), share)
        try:
            server.ran = server.run(policies, **how)  # type: ignore[attr-defined]
        finally:
            PLUGIN.stop_recording()
        return kept

    @pytest.mark.parametrize("temperature", [0.0, 0.8])
    def test_trace_holds_every_drafted_token_and_the_decision(self, server: Server, temperature: float) -> None:
        kept = self._recorded(server, EXACT, temperature=temperature)
        ran: Ran = server.ran  # type: ignore[attr-defined]
        assert sorted(r.output_tokens.tolist() for r, _ in kept) == sorted(ran.tokens)
        assert sum(step.drafted_n for _, steps in kept for step in steps) > 30
        for record, steps in kept:
            assert record.sampling["temperature"] == temperature
            assert record.finish in ("stop", "length")
            assert 1 + sum(step.committed for step in steps) == len(record.output_tokens)
            for step in steps:
                self._consistent(record, step)

    @staticmethod
    def _consistent(record: RequestRecord, step: StepRecord) -> None:
        drafted = step.drafted
        assert drafted is not None
        text = record.output_tokens[step.offset : step.offset + step.committed]
        assert drafted.tokens[: step.accepted].tolist() == text[: step.accepted].tolist()
        law = (drafted.rank == 0).astype(float) if record.sampling["temperature"] == 0 else np.exp(drafted.logp)
        passed = drafted.uniform < np.minimum(1, law / np.exp(drafted.logq))
        assert step.accepted == (len(passed) if passed.all() else passed.argmin())
        assert (drafted.top1_margin >= -1e-4).all()
        assert ((drafted.rank == 0) == (drafted.top1_margin < 1e-4)).all()
        assert (drafted.category < 9).all()
        assert step.verify_s > 0

    def test_recording_does_not_change_what_comes_out(self, ngram: Server) -> None:
        for temperature in (0.0, 0.8):
            self._recorded(ngram, EXACT, temperature=temperature)
            assert ngram.ran == ngram.run(EXACT, temperature)  # type: ignore[attr-defined]

    def test_recording_needs_no_policy(self, ngram: Server) -> None:
        kept = self._recorded(ngram, None)
        assert {record.policy for record, _ in kept} == {"vllm"}
        assert ngram.ran == ngram.run(None)  # type: ignore[attr-defined]

    def test_thresholds_by_class_act_on_that_class_only(self, ngram: Server) -> None:
        """Structural tokens must be near certain, all others are taken."""
        policy = Policy("classes", "threshold", 0.0, category={"structural": 0.99}, length=Fixed(K))
        kept = self._recorded(ngram, policy, asks=[{"draftgate_language": "python"}] * 3, max_tokens=80)
        refused = self._refused(kept)
        assert refused
        assert all(category == 4 and p < 0.99 for category, _, p in refused)

    def test_thresholds_by_offset_act_from_that_offset_on(self, ngram: Server) -> None:
        policy = Policy("offsets", "threshold", position=((20, 0.0), (21, 1.0)), length=Fixed(K))
        kept = self._recorded(ngram, policy, max_tokens=60)
        refused = self._refused(kept)
        assert refused
        assert all(offset > 20 for _, offset, _ in refused)
        accepted = [s.offset + i for _, steps in kept for s in steps for i in range(s.accepted)]
        assert min(accepted) < 20
        assert max(accepted) <= 20

    def test_offsets_of_a_language_act_on_requests_in_it(self, ngram: Server) -> None:
        policy = Policy("languages", "threshold", 0.0, language={"go": 1.0}, length=Fixed(K))
        asks = [{"draftgate_language": "go"}, {"draftgate_language": "python"}, None]
        ran = ngram.run(policy, asks=asks)
        assert ran.accepted[0] == 0
        assert ran.accepted[1:] == ran.drafted[1:]

    @staticmethod
    def _refused(kept: Sequence[tuple[RequestRecord, Sequence[StepRecord]]]) -> list[tuple[int, int, float]]:
        """Class, offset and probability of each token that was the first of its draft not to be kept."""
        return [
            (int(d.category[s.accepted]), s.offset + s.accepted, float(np.exp(d.logp[s.accepted])))
            for _, steps in kept
            for s in steps
            if (d := s.drafted) is not None and s.accepted < min(s.drafted_n, s.committed)
        ]

    def test_share_of_requests(self, ngram: Server) -> None:
        assert self._recorded(ngram, EXACT, share=0.0) == []

    def test_replay_of_the_trace_predicts_the_server(self, ngram: Server, tmp_path: Path) -> None:
        config = ngram.llm.llm_engine.vllm_config
        PLUGIN.record(folders(tmp_path, trace_setup(config)))
        live = ngram.run(EXACT, max_tokens=60)
        PLUGIN.stop_recording()
        trace = tmp_path / "greedy"
        assert TraceStore(trace).setup().engine == "vllm"
        (same, short) = replay(trace, [EXACT, Policy("two", length=Fixed(2))], None)["arms"]
        assert same["acceptance_rate"] == pytest.approx(live.rate, rel=0.05)  # vLLM counts drafts beyond the end
        two = ngram.run(Policy("two", length=Fixed(2)), max_tokens=60)
        assert short["acceptance_rate"] == pytest.approx(two.rate, rel=0.2)

    def test_stop_tokens_end_the_record_as_they_end_the_request(self, ngram: Server) -> None:
        stop = ngram.run(None).tokens[1][7]
        kept = self._recorded(ngram, EXACT, stop_token_ids=[stop])
        ran: Ran = ngram.ran  # type: ignore[attr-defined]
        assert sorted(r.output_tokens.tolist() for r, _ in kept) == sorted(ran.tokens)
        assert "stop" in {record.finish for record, _ in kept}

    def test_status_says_what_is_going_on(self, ngram: Server) -> None:
        ngram.run(loose(0.1))
        found = PLUGIN.status()
        assert set(found["hooks"].values()) == {"ok"}
        assert found["cpu_sampling"] in ("sound", "bug seen, worked around")
        assert found["faults"] == {}
        assert ["loose"] in [runner["policies"] for runner in found["runners"]]
        assert any(runner["verified"] for runner in found["runners"])

    def test_wrong_arguments_are_refused_before_the_engine(self, ngram: Server) -> None:
        with pytest.raises(VLLMValidationError, match="did you mean 'draftgate_policy'"):
            ngram.run(EXACT, asks=[{"draftgate_polcy": "x"}])

    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_grammars_hold_under_a_rule_that_keeps_everything(self, ngram: Server, temperature: float) -> None:
        """vLLM takes from a draft what the grammar refuses, and masks what is drawn, before a rule sees either."""
        grammar = StructuredOutputsParams(regex="( [abcd]){16}")
        ran = ngram.run(loose(0.0), temperature, structured_outputs=grammar)
        assert ran.accepted == ran.drafted
        assert sum(ran.drafted) > 0
        decode = ngram.llm.get_tokenizer().decode
        assert all(re.fullmatch("( [abcd]){16}", decode(tokens, skip_special_tokens=True)) for tokens in ran.tokens)


class TestPolicyFile:
    """A file that cannot be used leaves what was in force, and log and status say why: at the start and later."""

    def test_nothing_then_a_bad_one_then_a_good_one_then_a_bad_one(
        self, ngram: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        own, path = ngram.run(None), tmp_path / "policy.yaml"
        core = ngram.llm.llm_engine.engine_core.engine_core
        monkeypatch.setattr(core, "draftgate", Control(core, path), raising=False)
        monkeypatch.setattr(control, "POLL_S", 0.0)
        everything = PolicySet((loose(0.0),), "loose")
        turns: list[tuple[str | None, str | None, bool]] = [
            (None, "No such file", False),
            ("draftgate: 1\nname: x\nrule: threshold\ntau: .nan", "must be a finite number but got nan", False),
            (json.dumps(dump(everything)), None, True),
            ("draftgate: 1\nname: x\nrule: threshold\ntau: 1.5", "tau must be in [0, 1] but got 1.5", True),
        ]
        for text, told, loosened in turns:
            if text is not None:
                path.write_text(text)
            with logged("vllm.draftgate") as lines:
                ran = ngram.generate()
            assert ran.rate == 1.0 if loosened else ran == own
            error = control.status(ngram.llm)["file"]["error"]
            assert error is None if told is None else told in error
            assert len(lines) == 1
            assert (told or everything.digest()) in lines[0]


class TestFailures:
    """vLLM's own tokens, one line, and a count."""

    def _run(self, server: Server, policy: Policy = LOOSE) -> tuple[Ran, list[str], dict[str, int]]:
        with logged("vllm.draftgate") as lines:
            ran = server.run(policy)
        counts = dict(PLUGIN.faults.counts)
        PLUGIN.faults.counts.clear()
        PLUGIN.faults.first.clear()
        return ran, lines, counts

    def test_a_rule_that_fails(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        def fails(*_: Any, **__: Any) -> Any:
            raise torch.OutOfMemoryError("no room")

        own = server.run(None)
        monkeypatch.setattr(sampler, "verify_v1", fails)
        ran, lines, counts = self._run(server)
        assert ran == own
        assert len(lines) == 1
        assert "no room" in lines[0]
        assert counts["v1.rule"] > 5

    @pytest.mark.parametrize("renamed", ["input_batch", "positions"])
    def test_data_of_the_runner_that_moved(self, ngram: Server, monkeypatch: pytest.MonkeyPatch, renamed: str) -> None:
        own = ngram.run(None)
        for state in PLUGIN.runners.values():
            hidden = {name: value for name, value in vars(state._runner).items() if name != renamed}
            monkeypatch.setattr(state, "_runner", SimpleNamespace(**hidden))
        scheduled = Policy("scheduled", "threshold-or-lossless", position=((0, 0.0), (9, 0.1)), length=Fixed(K))
        ran, lines, counts = self._run(ngram, scheduled)
        assert ran == own
        assert len(lines) == 1
        assert renamed in lines[0]
        assert sum(counts.values()) > 5

    def test_tables_that_cannot_hold_a_policy(self, ngram: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(*_: Any) -> None:
            raise ConfigError("does not fit")

        own = ngram.run(None)
        monkeypatch.setattr(PolicyTables, "set", full)
        ran, lines, counts = self._run(ngram, loose(0.0, "one that no slot holds yet"))
        assert ran == own
        assert len(lines) == 1
        assert counts == {"v1.execute": 1}

    @pytest.mark.parametrize("hook", ["v1.rule", "v1.sample", "schedule.drafts"])
    def test_a_renamed_function(
        self,
        hook: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """As with a vLLM of another release: what is left is installed, and what is missing is told once."""
        pristine(monkeypatch)
        was = HOOKS[hook]
        moved = {**HOOKS, hook: Hook(was.module, was.path + "_renamed", was.parameters, was.serves)}
        monkeypatch.setattr(plugin, "HOOKS", moved)
        fresh = Plugin()
        fresh.log = logging.getLogger("test.fresh")
        fresh.faults._log = fresh.log
        with logged("test.fresh") as lines:
            fresh.install()
        assert [hook in fresh.missing, len(fresh.missing)] == [True, 1]
        assert sum("_renamed is not there" in line and "draftgate: " + hook in line for line in lines) == 1
        assert fresh.faults.counts == {hook: 1}
        assert fresh.status()["hooks"][hook] != "ok"
        if hook == "schedule.drafts":
            assert "_renamed" in (SOURCE.cannot_limit or "")

    def test_another_release_is_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pristine(monkeypatch)
        monkeypatch.setattr("vllm.__version__", "0.99.1")
        with logged("vllm.draftgate") as lines:
            Plugin().install()
        assert any("vLLM 0.99.1 (written for 0.32)" in line for line in lines)


def pristine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo, after the test, whatever wraps vLLM's functions during it, and what it sets in the source."""
    for hook in (*HOOKS.values(), *control.HOOKS.values()):
        owner, name = hook.owner()
        monkeypatch.setattr(owner, name, vars(owner)[name])
    for name in ("check", "cannot_limit", "report"):
        monkeypatch.setattr(SOURCE, name, getattr(SOURCE, name))


def test_renamed_rule_leaves_a_real_engine_exact(tiny_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pristine(monkeypatch)
    register()
    method = {"method": "ngram", "prompt_lookup_max": 2, "prompt_lookup_min": 1}
    own = Server(tiny_dir, method).run(None, max_tokens=30)
    for hook in HOOKS.values():  # back to vLLM's own functions, then a plugin that cannot find the rule
        owner, name = hook.owner()
        function = vars(owner)[name]
        while hasattr(function, "__wrapped__") and "draftgate/engines/vllm/" in function.__code__.co_filename:
            function = function.__wrapped__
        monkeypatch.setattr(owner, name, function)
    was = HOOKS["v1.rule"]
    monkeypatch.setattr(plugin, "HOOKS", {**HOOKS, "v1.rule": Hook(was.module, "ruling", was.parameters, was.serves)})
    fresh = Plugin()
    fresh.installed = True
    monkeypatch.setattr(plugin, "PLUGIN", fresh)
    with logged("vllm.draftgate") as lines:
        fresh.install()
        ran = Server(tiny_dir, method).run(loose(0.0), max_tokens=30)
    assert ran == own
    assert (
        sum("rejection_sampler.ruling is not there" in line and "own behaviour is kept" in line for line in lines) == 1
    )
    assert list(fresh.missing) == ["v1.rule"]
    assert len(fresh.runners) == 1


class TestAsked:
    def test_arguments_are_read(self) -> None:
        extra = {"draftgate_policy": "a", "draftgate_language": "py", "other": [1]}
        assert asked(extra) == Ask("a", None, "py", None)
        assert asked(None) == Ask()

    @pytest.mark.parametrize(
        ("extra", "told"),
        [
            ({"draftgate_polici": "a"}, "did you mean 'draftgate_policy'"),
            ({"draftgate_policy": 3}, "must be text but got 3"),
            ({"draftgate_language": "klingon"}, "klingon"),
        ],
    )
    def test_mistakes_are_told(self, extra: dict[str, Any], told: str) -> None:
        with pytest.raises(ConfigError, match=told):
            asked(extra)

    def test_name_before_workload_before_default(self) -> None:
        policies = PolicySet((EXACT, loose(0.1)), EXACT.name, {"w": "loose"})
        assert policy_of(policies, {"draftgate_workload": "w"})[0].name == "loose"
        assert policy_of(policies, {"draftgate_workload": "w", "draftgate_policy": EXACT.name})[0] == EXACT
        assert policy_of(policies, {"draftgate_policy": "gone"}) == (EXACT, Ask(), False)


class TestUnfit:
    def test_what_a_server_cannot_hold_is_told(self) -> None:
        many = tuple(Policy(f"p{i}") for i in range(17))
        assert "up to 16 policies" in (unfit(PolicySet(many, "p0"), 16) or "")
        points = tuple((i, 0.5) for i in range(40))
        assert "position" in (unfit(PolicySet((Policy("p", "threshold", position=points),), "p"), 16) or "")
        for drawn in (Policy("p", "lossless", draft_temperature=0.5), Policy("p", "lossless", draft_top_p=0.9)):
            assert "draft_sample_method" in (unfit(PolicySet((drawn,), "p"), 16) or "")
        assert unfit(PolicySet(many[:16], "p0"), 16) is None


class TestRoster:
    @staticmethod
    def arriving(*names: str, finished: Sequence[str] = (), extra: dict[str, str] | None = None) -> Any:
        params = SimpleNamespace(extra_args=extra)
        new = [SimpleNamespace(req_id=name, prompt_token_ids=[1] * 4, sampling_params=params) for name in names]
        return SimpleNamespace(scheduled_new_reqs=new, finished_req_ids=set(finished))

    @pytest.fixture
    def roster(self) -> Roster:
        made = Roster(PolicyTables("cpu", 4))
        made.put(PolicySet((EXACT, loose(0.1)), EXACT.name))
        return made

    def test_rows_follow_the_order_of_the_batch(self, roster: Roster) -> None:
        roster.follow(self.arriving("a"))
        roster.follow(self.arriving("b", extra={"draftgate_policy": "loose", "draftgate_language": "go"}))
        for names in (["a", "b"], ["b", "a"]):
            batch = roster.batch(names)
            assert batch.slot.tolist() == [int(name == "b") for name in names]
            assert [bool(language) for language in batch.language.tolist()] == [name == "b" for name in names]
            assert batch.prompt.tolist() == [4, 4]
            assert batch.ours

    def test_unchanged_batch_is_not_uploaded_again(self, roster: Roster) -> None:
        roster.follow(self.arriving("a", "b"))
        first = roster.batch(["a", "b"])
        roster.follow(self.arriving())
        assert roster.batch(["a", "b"]) is first
        assert roster.batch(["a"]) is not first

    def test_an_id_that_comes_again_is_read_again(self, roster: Roster) -> None:
        roster.follow(self.arriving("a"))
        assert not roster.batch(["a"]).ours
        roster.follow(self.arriving("a", finished=["a"], extra={"draftgate_policy": "loose"}))
        assert roster.batch(["a"]).ours

    def test_new_policies_reach_running_requests(self, roster: Roster) -> None:
        roster.follow(self.arriving("a"))
        assert not roster.batch(["a"]).ours
        roster.put(PolicySet((loose(0.2, "now"),), "now"))
        assert roster.batch(["a"]).ours


def scheduler(k: int = K, method: str = "ngram", **more: Any) -> Any:
    spec = SimpleNamespace(method=method, parallel_drafting=False)
    config = SimpleNamespace(speculative_config=spec, parallel_config=SimpleNamespace(data_parallel_size=1))
    base = {"vllm_config": config, "num_spec_tokens": k, "use_v2_model_runner": False, "dynamic_sd_lookup": None}
    return SimpleNamespace(**base | {"requests": {}} | more)


def asking(engine: Any, *names: str, policy: str | None = None) -> None:
    for name in names:
        extra = None if policy is None else {"draftgate_policy": policy}
        engine.requests[name] = SimpleNamespace(
            request_id=name, sampling_params=SimpleNamespace(extra_args=extra), spec_token_ids=[-1] * K
        )


def output(*names: str, finished: Sequence[str] = ()) -> Any:
    return SimpleNamespace(
        num_scheduled_tokens=dict.fromkeys(names, 1), finished_req_ids=set(finished), num_spec_tokens_to_schedule=K
    )


class TestLengths:
    @pytest.fixture
    def source(self) -> PolicySource:
        made = PolicySource()
        made.set(PolicySet((EXACT, Policy("one", length=Fixed(1)), Policy("off", length=Fixed(0))), EXACT.name), None)
        return made

    def test_the_drafter_drafts_what_the_hungriest_request_wants(self, source: PolicySource) -> None:
        lengths, engine = Lengths(source), scheduler()
        asking(engine, "a", policy="one")
        asking(engine, "b", policy="off")
        asking(engine, "c")
        for names, wanted in ((("a", "b"), 1), (("b",), 0), (("a", "b", "c"), K)):
            step = output(*names)
            lengths.drafting(engine, step)
            assert step.num_spec_tokens_to_schedule == wanted

    def test_placeholders_of_an_asynchronous_scheduler_are_cut(self, source: PolicySource) -> None:
        lengths, engine = Lengths(source), scheduler()
        asking(engine, "a", policy="one")
        asking(engine, "c")
        shared = engine.requests["a"].spec_token_ids = engine.requests["c"].spec_token_ids
        lengths.placeholders(engine, output("a", "c"))
        assert len(engine.requests["a"].spec_token_ids) == 1
        assert len(engine.requests["c"].spec_token_ids) == K
        assert shared == [-1] * K  # vLLM gives all requests one list

    def test_drafts_of_a_synchronous_one_are_cut(self, source: PolicySource) -> None:
        lengths, engine = Lengths(source), scheduler()
        asking(engine, "a", policy="one")
        asking(engine, "c")
        drafts = SimpleNamespace(req_ids=["a", "gone", "c"], draft_token_ids=[[1, 2, 3], [4, 5], [6, 7, 8]])
        lengths.drafts(engine, drafts)
        assert drafts.draft_token_ids == [[1], [4, 5], [6, 7, 8]]

    def test_limit_bounds_all_and_can_be_lifted(self, source: PolicySource) -> None:
        lengths, engine = Lengths(source), scheduler()
        asking(engine, "c")
        for limit, wanted in ((2, 2), (0, 0), (None, K)):
            source.set(source.current, limit)
            drafts = SimpleNamespace(req_ids=["c"], draft_token_ids=[[1] * K])
            lengths.drafts(engine, drafts)
            assert len(drafts.draft_token_ids[0]) == wanted

    def test_an_id_that_comes_again_is_read_again(self, source: PolicySource) -> None:
        lengths, engine = Lengths(source), scheduler()
        asking(engine, "a", policy="off")
        lengths.drafting(engine, output("a"))
        asking(engine, "a")
        step = output("a", finished=["a"])
        lengths.drafting(engine, step)
        assert step.num_spec_tokens_to_schedule == K

    @pytest.mark.parametrize(
        ("engine", "lengths"),
        [
            (scheduler(), {0: 0, 2: 2, 5: 5}),
            (scheduler(method="suffix"), {0: 5, 2: 5, 5: 5}),
            (scheduler(use_v2_model_runner=True), {0: 5, 2: 5, 5: 5}),
            (scheduler(use_v2_model_runner=True, dynamic_sd_lookup=[5, 5, 3, 0]), {0: 0, 2: 3, 4: 5, 5: 5}),
        ],
    )
    def test_drafters_are_given_only_what_they_take(self, engine: Any, lengths: dict[int, int]) -> None:
        found: Reach = reach(engine)
        assert {wanted: found.length(wanted, K) for wanted in lengths} == lengths
        assert bool(found.reason) == (found.drafting is not None)

    def test_data_parallel_ranks_must_agree(self) -> None:
        engine = scheduler()
        engine.vllm_config.parallel_config.data_parallel_size = 2
        assert reach(engine).length(0, K) == K


class TestAdmission:
    @pytest.fixture
    def validate(self) -> Callable[..., Any]:
        source = PolicySource()
        source.set(PolicySet((EXACT,), EXACT.name), None)
        wrapped = admission.refusing(PLUGIN.faults, source)(lambda self, params, tasks: "fine")
        return lambda **extra: wrapped(None, SimpleNamespace(extra_args=extra), ())

    def test_names_in_force_pass(self, validate: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DRAFTGATE_UNKNOWN", "refuse")
        assert validate(draftgate_policy=EXACT.name) == "fine"
        assert validate() == "fine"

    def test_unknown_names_are_refused_only_if_asked_for(
        self, validate: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert validate(draftgate_policy="other") == "fine"
        monkeypatch.setenv("DRAFTGATE_UNKNOWN", "refuse")
        with pytest.raises(VLLMValidationError, match="no policy 'other' in force"):
            validate(draftgate_policy="other")

    def test_pooling_requests_pass(self) -> None:
        wrapped = admission.refusing(PLUGIN.faults, PolicySource())(lambda self, params, tasks: "fine")
        assert wrapped(None, object(), ()) == "fine"


def test_registering_twice_wraps_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    fresh = Plugin()
    monkeypatch.setattr(plugin, "PLUGIN", fresh)
    monkeypatch.setattr(fresh, "install", lambda: calls.append(1))
    register()
    register()
    assert calls == [1]


def test_registering_never_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = Plugin()
    monkeypatch.setattr(plugin, "PLUGIN", fresh)

    def fails() -> None:
        raise RuntimeError("anything")

    monkeypatch.setattr(fresh, "install", fails)
    register()
    assert fresh.faults.counts == {"register": 1}
