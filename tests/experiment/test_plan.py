from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from draftgate.engines.base import Sampling
from draftgate.engines.fake import FakeEngine
from draftgate.errors import ConfigError
from draftgate.experiment import plan
from draftgate.experiment.oracle import Oracle
from draftgate.experiment.plan import Plan, make_plan
from draftgate.experiment.record import record, recording_policies
from draftgate.experiment.rundir import read_json, write_json
from draftgate.experiment.watch import Silent
from draftgate.policy.length import Cut, Fixed, Goodput
from draftgate.policy.policy import NONE
from draftgate.replay.accept import Replayable
from draftgate.replay.blend import Recording
from draftgate.trace.records import DRAFTED_TYPES
from draftgate.trace.store import TraceStore
from draftgate.workload.prompt import Workload

ABLE = FakeEngine().capabilities


@pytest.fixture(autouse=True)
def _search_less(monkeypatch):
    monkeypatch.setattr(plan, "_SEARCHED", 200)


@pytest.fixture
def oracle_of(small_workload: Callable[..., Workload], tmp_path: Path) -> Callable[..., Oracle]:
    def make(lookup: bool = True, temperature: float = 0.0, token_s: float = 0.001) -> Oracle:
        engine, workload = FakeEngine(token_s=token_s), small_workload(8)
        requests = [engine.encode(p, "small", 32, Sampling(temperature)) for p in workload.prompts]
        stores = []
        for name, policy in recording_policies(7, temperature == 0).items():
            stores.append(TraceStore.create(tmp_path / name, engine.setup))
            record(engine, requests, policy, stores[-1], Silent())
        return Oracle.of(stores, engine.measure_cost((1,), 16, 1.0), lookup, 15, engine.end_tokens)

    return make


@pytest.mark.parametrize("workload", ["code-edit", "chat", "json-records", "mine"])
@pytest.mark.parametrize("lookup", [True, False])
def test_every_plan_has_the_arms_that_must_be_there(workload, lookup, oracle_of):
    found = make_plan(oracle_of(lookup), ABLE, workload, True, 15, 0, Silent())
    by_name = {arm.name: arm for arm in found.arms}
    assert len(by_name) == len(found.arms)
    assert found.arms[0].policy == NONE
    assert by_name["engine-default"].policy.length == (Cut(48, 12.0) if lookup else Fixed(3))
    assert isinstance(by_name["goodput"].policy.length, Goodput)
    if lookup:  # with a draft model the best fixed length may be the engine's default
        assert any(isinstance(a.policy.length, Fixed) for a in found.arms if a.origin == "lossless")
    assert any(a.origin == "source preset" for a in found.arms)
    presets = {"code-edit": "code", "chat": "chat", "json-records": "structured", "mine": "code"}
    assert presets[workload] in by_name
    assert 200 <= found.searched < 400
    assert all(point["speedup"] is not None for point in found.pareto)


def test_a_plan_is_the_same_for_a_seed(oracle_of):
    oracle = oracle_of()
    first, again = (make_plan(oracle, ABLE, "mine", True, 15, 5, Silent()).to_mapping() for _ in range(2))
    assert first == again


def test_a_plan_survives_json(oracle_of, tmp_path):
    """Batch sizes are whole-number keys, which JSON turns into text."""
    found = make_plan(oracle_of(), ABLE, "mine", True, 15, 0, Silent())
    write_json(tmp_path / "arms.json", found.to_mapping())
    back = Plan.from_mapping(read_json(tmp_path / "arms.json"))
    assert [arm.policy for arm in back.arms] == [arm.policy for arm in found.arms]
    assert [arm.origin for arm in back.arms] == [arm.origin for arm in found.arms]


def test_sampled_decoding_uses_the_lossless_rule(oracle_of):
    found = make_plan(oracle_of(temperature=0.8), ABLE, "mine", False, 15, 0, Silent())
    assert {arm.policy.rule for arm in found.arms if arm.origin in ("lossless", "engine default")} == {"lossless"}


def test_a_policy_that_comes_up_twice_is_one_arm(oracle_of, monkeypatch):
    """With a draft model, the best fixed length can be the engine's default: it is not run twice."""
    oracle = oracle_of(lookup=False)
    found = make_plan(oracle, ABLE, "mine", True, 15, 0, Silent())
    fixed = next(a for a in found.arms if a.origin == "lossless" and isinstance(a.policy.length, Fixed))
    monkeypatch.setitem(plan.ENGINE_DEFAULTS, False, fixed.policy.length)
    again = make_plan(oracle, ABLE, "mine", True, 15, 0, Silent())
    assert fixed.name not in [arm.name for arm in again.arms]
    assert len(again.arms) == len(found.arms) - 1


def test_without_costs_there_is_no_goodput_length(oracle_of):
    with pytest.raises(ConfigError, match=r"cost\.json"):
        replace(oracle_of(), cost=None).goodput(15)


BLIND = replace(ABLE, evidence=False, truncates=False, max_draft=7)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_without_evidence_only_fixed_lengths_are_proposed(temperature, oracle_of):
    found = make_plan(oracle_of(False, temperature), BLIND, "mine", temperature == 0, 7, 0, Silent())
    assert all(isinstance(arm.policy.length, Fixed) for arm in found.arms)
    assert all("cut" not in point["policy"] and "goodput" not in point["policy"] for point in found.pareto)
    assert not any(arm.policy.truncate for arm in found.arms)
    default = next(arm for arm in found.arms if arm.origin == "engine default")
    assert default.policy.length == Fixed(7)  # what the server was started with
    assert any(arm.origin == "source preset" for arm in found.arms)


def test_what_the_engine_cannot_run_is_not_proposed(oracle_of):
    able = replace(BLIND, rules=frozenset({"exact", "lossless"}), max_draft=4)
    found = make_plan(oracle_of(False), able, "mine", True, 4, 0, Silent())
    assert {arm.policy.rule for arm in found.arms} == {"exact"}
    assert all(arm.policy.length.most <= 4 for arm in found.arms)
    assert all(point["lossless"] for point in found.pareto)


def test_a_recording_without_a_single_draft_leaves_the_engines_default(oracle_of):
    """A drafter that found nothing: nothing can be predicted, and the run still says so."""
    oracle = oracle_of(False)
    drafted = replace(oracle.replayable.columns, drafted_n=oracle.replayable.columns.drafted_n * 0)
    nothing = replace(drafted, **{name: getattr(drafted, name)[:0] for name in DRAFTED_TYPES})
    silent = replace(oracle, recordings=[Recording.of(Replayable.of(nothing))])
    found = make_plan(silent, BLIND, "mine", True, 7, 0, Silent())
    assert (found.fixed, found.searched) == ([], 0)
    assert {arm.origin for arm in found.arms} == {"baseline", "engine default", "source preset"}
    assert Plan.from_mapping(found.to_mapping()) == found
