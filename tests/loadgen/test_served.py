"""An engine behind its files: what it logs is what it did, and it serves what the policy file says."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from draftgate.control.compose import ALL, compose
from draftgate.control.setting import OFF
from draftgate.control.tail import FileSource
from draftgate.engines.base import Request, Sampling
from draftgate.engines.fake import FakeEngine
from draftgate.errors import ConfigError, InputError
from draftgate.loadgen.served import Served
from draftgate.policy.length import Fixed
from draftgate.policy.policy import NONE, Policy
from draftgate.policy.policyset import PolicySet, save
from draftgate.workload.prompt import Prompt

SET = PolicySet((Policy("mine", length=Fixed(4)), NONE), "mine", {"chat": "none"})


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


def request(engine: FakeEngine, id_: str, workload: str, most: int = 40) -> Request:
    prompt = Prompt(id=id_, prompt="abcab" * (len(id_) + 2))
    return replace(engine.encode(prompt, workload, most, Sampling()), id=id_)


def served(engine: FakeEngine, folder: Path) -> Served:
    save(SET, folder / "policy.yaml")
    return Served(engine, folder / "policy.yaml", folder / "log.jsonl", engine.clock)


def test_the_log_says_what_was_done(tmp_path: Path, engine: FakeEngine) -> None:
    """Lines of a batch add up to its steps, tokens and seconds, and a source takes every one of them."""
    behind = served(engine, tmp_path)
    source = FileSource(tmp_path / "log.jsonl", size=3, clock=engine.clock)
    done = behind.serve([request(engine, "a" * n, "code", 10 * n) for n in (1, 2, 4)])
    (window,) = source.poll()
    assert (source.left_out, window.workload, window.policy, window.requests) == (None, "code", "mine", 3)
    assert window.committed == sum(d.step_tokens for d in done)
    assert window.steps == sum(len(d.steps) for d in done)
    assert window.drafted == sum(s.drafted_n for d in done for s in d.steps) > 0
    assert window.accepted == sum(window.kept) > 0
    assert window.flaw() is None
    assert window.seconds == pytest.approx(max(d.decode_s for d in done))
    assert 1 < (window.batch or 0) < 3


def test_each_workload_has_its_policy_and_answers_come_back(tmp_path: Path, engine: FakeEngine) -> None:
    done = served(engine, tmp_path).serve([request(engine, id_, w) for id_, w in (("1", "chat"), ("22", "code"))])
    assert {d.request.id: any(s.drafted_n for s in d.steps) for d in done} == {"1": False, "22": True}
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [(line["workload"], line["policy"]) for line in lines] == [("code", "mine"), ("chat", "none")]
    assert len({line["id"] for line in lines}) == 2


def test_a_changed_file_is_served_and_a_broken_one_is_not(tmp_path: Path, engine: FakeEngine) -> None:
    behind = served(engine, tmp_path)
    save(PolicySet((NONE,), "none"), tmp_path / "policy.yaml")
    behind.look()
    behind.look()
    assert not behind.policy("code").drafts
    (tmp_path / "policy.yaml").write_text("draftgate: [")
    behind.serve([request(engine, "1", "code")])
    behind.serve([request(engine, "1", "code")])
    assert behind.policy("code").name == "none"


def test_what_cannot_be_served_is_refused(tmp_path: Path, engine: FakeEngine) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        Served(engine, tmp_path / "none.yaml", tmp_path / "log.jsonl", engine.clock)
    save(SET, tmp_path / "policy.yaml")
    with pytest.raises(InputError, match="cannot be written"):
        Served(engine, tmp_path / "policy.yaml", tmp_path / "no" / "log.jsonl", engine.clock)


def test_a_request_of_one_token_has_no_steps(tmp_path: Path, engine: FakeEngine) -> None:
    behind = served(engine, tmp_path)
    source = FileSource(tmp_path / "log.jsonl", size=1, clock=engine.clock)
    behind.serve([request(engine, "1", "code", 1)])
    (window,) = source.poll()
    assert (source.left_out, window.steps, window.seconds, window.tokens_per_s) == (None, 0, 0.0, None)


def test_what_runs_without_drafts_has_a_shadow_if_its_policy_could_draft(tmp_path: Path, engine: FakeEngine) -> None:
    """A window of its own; none where the operator wants no drafts, where drafts run, or where a rule is lossy."""
    behind = served(engine, tmp_path)
    source = FileSource(tmp_path / "log.jsonl", size=1, clock=engine.clock)
    behind.serve([request(engine, "1", "chat"), request(engine, "22", "code")])
    assert [w.shadow for w in source.poll()] == [False, False]
    save(compose(SET, {ALL: OFF}), tmp_path / "policy.yaml")
    behind.look()
    behind.look()
    behind.serve([request(engine, "333", "chat"), request(engine, "4444", "code")])
    windows = source.poll()
    assert (source.left_out, sorted((w.workload, w.shadow) for w in windows)) == (
        None, [("chat", False), ("code", False), ("code", True)],
    )  # fmt: skip
    (shadow,) = [w for w in windows if w.shadow]
    assert (shadow.flaw(), shadow.seconds, shadow.policy) == (None, 0.0, "mine")
    assert 0 < shadow.accepted <= shadow.drafted
    lossy = PolicySet((Policy("mine", "threshold", 0.5, length=Fixed(0)), NONE), "mine", {"chat": "none"})
    save(lossy, tmp_path / "policy.yaml")
    behind.look()
    behind.look()
    behind.serve([request(engine, "5", "code")])
    assert [w.shadow for w in source.poll()] == [False]
