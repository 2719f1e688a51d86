import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from draftgate.engines.base import Sampling
from draftgate.engines.fake import FakeEngine
from draftgate.errors import ConfigError, InputError, TraceError
from draftgate.experiment import plan
from draftgate.experiment.bench import bench
from draftgate.experiment.judging import GateSettings
from draftgate.experiment.offline import replay
from draftgate.experiment.record import traces_beside
from draftgate.experiment.tune import Settings, tune
from draftgate.experiment.watch import Silent
from draftgate.policy.file import load, resolve
from draftgate.policy.length import Fixed
from draftgate.policy.policy import NONE, Policy
from draftgate.trace.store import TraceStore
from draftgate.workload.packs import load as load_workload
from draftgate.workload.prompt import Workload

SETTINGS = Settings(budget_s=40.0, max_tokens=24)
ARM_KEYS = {"arm", "rule", "lossless", "speedup", "tokens_per_s", "acceptance_rate", "acceptance_length", "coverage"}


@pytest.fixture(autouse=True)
def _search_less(monkeypatch):
    monkeypatch.setattr(plan, "_SEARCHED", 200)


def tuned(workloads: list[Workload], out: Path, settings: Settings = SETTINGS, engine: FakeEngine | None = None):
    engine = engine or FakeEngine()
    return tune(engine, workloads, settings, out, Silent(), clock=engine.clock)


def test_the_result_has_the_schema_and_the_files(small_workload, tmp_path):
    result = tuned([small_workload()], tmp_path / "run")
    assert (result["schema"], result["setup"]["engine"]) == (1, "fake")
    (w,) = result["workloads"]
    assert {"name", "verdict", "recommended", "policy", "arms"} <= w.keys()
    for arm in w["arms"]:
        assert ARM_KEYS | {"requests"} <= arm.keys()
        assert arm["speedup"].keys() == {"estimate", "low", "high", "n", "how"}
    none = next(arm for arm in w["arms"] if arm["arm"] == "none")
    assert none["speedup"]["estimate"] == 1.0
    assert none["acceptance_rate"] is None  # nothing drafted is not an acceptance of 0
    assert load(Path(w["policy"])).name == w["recommended"]
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == json.loads(json.dumps(result, allow_nan=False))


def test_recording_and_proof_use_different_prompts(small_workload, tmp_path):
    tuned([small_workload()], tmp_path / "run")
    proven = {json.loads(line)["prompt"] for line in (tmp_path / "run/small/live.jsonl").read_text().splitlines()}
    assert len(proven) == 12
    recorded = replay(tmp_path / "run/small/trace", [NONE], None)["arms"][0]["requests"]
    assert recorded == 6


@pytest.mark.parametrize("share_s", [14.0, 14.5, 15.0])
def test_the_budget_is_shared_by_workloads_and_covers_recording(share_s, small_workload, tmp_path):
    tuned([small_workload(name=name) for name in "ab"], tmp_path / "run", replace(SETTINGS, budget_s=2 * share_s))
    for name in "ab":
        blocks = [json.loads(line) for line in (tmp_path / "run" / name / "live.jsonl").read_text().splitlines()]
        assert len(blocks) > 3
        traces = traces_beside(tmp_path / "run" / name / "trace")
        assert len(traces) == 3
        recorded_s = sum(r.prefill_s + r.decode_s for path in traces for r in TraceStore(path).requests())
        assert recorded_s + sum(b["seconds"] for b in blocks[:-1]) < share_s
        assert recorded_s + sum(b["seconds"] for b in blocks) >= share_s


def test_a_finished_run_is_only_read(small_workload, tmp_path):
    first = tuned([small_workload()], tmp_path / "run")
    engine = FakeEngine()
    assert tuned([small_workload()], tmp_path / "run", engine=engine) == first
    assert engine.clock() == 0.0


def test_sampled_decoding_goes_through_with_truncated_laws(small_workload, tmp_path):
    sampling = Sampling(temperature=1.0, top_k=4, top_p=0.9)
    result = tuned([small_workload()], tmp_path / "run", replace(SETTINGS, sampling=sampling))
    assert result["workloads"][0]["differences"] == []  # sampled texts may differ
    json.dumps(result, allow_nan=False)


@pytest.mark.parametrize(
    ("change", "key"),
    [({"seed": 1}, "seed"), ({"max_tokens": 25}, "max_tokens"), ({"sampling": Sampling(top_k=1)}, r"sampling\.top_k")],
)
def test_changed_settings_are_refused_by_name(change, key, small_workload, tmp_path):
    tuned([small_workload()], tmp_path / "run")
    with pytest.raises(ConfigError, match=f"a run with {key} ="):
        tuned([small_workload()], tmp_path / "run", replace(SETTINGS, **change))


def test_a_changed_workload_or_engine_is_refused(small_workload, tmp_path):
    tuned([small_workload()], tmp_path / "run")
    with pytest.raises(ConfigError, match=r"workloads\.small ="):
        tuned([small_workload(19)], tmp_path / "run")
    with pytest.raises(ConfigError, match=r"setup\.target ="):
        tuned([small_workload()], tmp_path / "run", engine=FakeEngine(seed=1))


@pytest.mark.parametrize(
    "name", ["cost.json", "small/arms.json", "small/live.jsonl", "small/trace/steps-000002.parquet"]
)
def test_damaged_files_are_named(name, small_workload, tmp_path):
    tuned([small_workload()], tmp_path / "run")
    path = tmp_path / "run" / name
    data = bytearray(path.read_bytes())
    data[: len(data) // 2] = b"\xff" * (len(data) // 2)
    path.write_bytes(bytes(data))
    with pytest.raises(TraceError, match=Path(name).name.replace(".", r"\.")):
        tuned([small_workload()], tmp_path / "run")


def test_arms_of_another_version_are_named(small_workload, tmp_path):
    tuned([small_workload()], tmp_path / "run")
    (tmp_path / "run/small/arms.json").write_text('{"arms": [{"policy": {}}]}')
    with pytest.raises(TraceError, match=r"arms\.json.*remove the folder"):
        tuned([small_workload()], tmp_path / "run")


@pytest.mark.parametrize("writes", [0, 1, 2, 5, 16, 18])
def test_a_full_disk_is_one_error_and_the_run_goes_on_later(writes, small_workload, tmp_path, monkeypatch):
    whole = tuned([small_workload()], tmp_path / "whole")
    fsync, left = os.fsync, [writes]

    def full(file: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(file)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(InputError, match="No space left on device"):
            tuned([small_workload()], tmp_path / "run")
    assert not [p for p in (tmp_path / "run").rglob(".*") if p.name != ".lock"]
    after = tuned([small_workload()], tmp_path / "run")
    assert after["workloads"][0]["arms"] == whole["workloads"][0]["arms"]


@pytest.mark.parametrize("name", ["../up", "a b/c", "..", "run.json", "größe\n"])
def test_a_strange_workload_name_stays_inside_the_run(name, small_workload, tmp_path):
    result = tuned([small_workload(name=name)], tmp_path / "run")
    assert result["workloads"][0]["name"] == name
    assert [p.name for p in tmp_path.iterdir()] == ["run"]
    assert load(Path(result["workloads"][0]["policy"]))


def test_wrong_requests_are_refused_before_anything_is_written(small_workload, tmp_path):
    for workloads, settings, message in (
        ([small_workload(5)], SETTINGS, "needs at least 6 prompts but has 5"),
        ([small_workload(), small_workload()], SETTINGS, "two workloads have the same name"),
        ([small_workload()], replace(SETTINGS, record_k=16), "record k <= most"),
    ):
        with pytest.raises(ConfigError, match=message):
            tuned(workloads, tmp_path / "run", settings)
    assert not (tmp_path / "run").exists()


def benched(workload: Workload, policies, out: Path | None, engine: FakeEngine | None = None):
    engine = engine or FakeEngine()
    return bench(engine, workload, policies, Sampling(), 24, 20.0, out, Silent(), GateSettings(), engine.clock)


def test_bench_has_the_same_arm_objects_and_resumes(small_workload, tmp_path):
    goodput = load(Path(tuned([small_workload()], tmp_path / "tune")["workloads"][0]["policy"]).with_stem("goodput"))
    policies = [resolve("exact"), goodput, NONE]
    result = benched(small_workload(), policies, tmp_path / "run")
    assert [arm["arm"] for arm in result["arms"]] == ["none", "exact", "goodput"]
    assert all(arm.keys() >= ARM_KEYS for arm in result["arms"])
    engine = FakeEngine()
    assert benched(small_workload(), policies, tmp_path / "run", engine) == result
    assert engine.clock() == 0.0
    with pytest.raises(ConfigError, match=r"arms\.goodput"):
        benched(small_workload(), policies[:1], tmp_path / "run")


@pytest.mark.parametrize("name", ["exact", "none"])
def test_bench_refuses_two_arms_of_one_name(name, small_workload, tmp_path):
    with pytest.raises(ConfigError, match=f"two arms are called '{name}'"):
        benched(small_workload(), [resolve("exact"), Policy(name, length=Fixed(9))], tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_bench_keeps_nothing_unless_told(small_workload, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    benched(small_workload(6), [resolve("exact")], None)
    assert list(tmp_path.iterdir()) == []


def test_copying_at_tau_zero_drafts_most_and_fails_the_gate(llama):
    """Every draft is kept, so each answer is the one in the prompt: well formed, for another customer."""
    orders = load_workload(Path(__file__).parents[2] / "examples" / "orders.jsonl")
    orders = replace(orders, prompts=orders.prompts[:16])
    copying = Policy("copying", "threshold", 0.0, length=Fixed(7))
    result = bench(llama, orders, [copying], Sampling(), 64, 3600.0, None, Silent(), GateSettings())
    none, arm = result["arms"]
    assert arm["acceptance_rate"] == 1.0
    assert arm["acceptance_length"] > 7
    assert none["valid"]["estimate"] > 0.6
    assert arm["valid"]["estimate"] == 0.0
    assert arm["quality"]["verdict"] == "failed"


def test_replay_finds_the_costs_of_its_run_also_by_a_relative_path(small_workload, tmp_path, monkeypatch):
    tuned([small_workload()], tmp_path / "run")
    monkeypatch.chdir(tmp_path / "run" / "small")
    (arm,) = replay(Path("trace"), [resolve("exact")], None)["arms"]
    assert arm["speedup"]["how"] == "replayed"
    assert arm["speedup"]["estimate"] is not None
    with pytest.raises(ConfigError, match="no such file"):
        replay(Path("trace"), [resolve("exact")], Path("no.json"))


def test_replay_without_costs_predicts_no_time(small_workload, tmp_path):
    tuned([small_workload()], tmp_path / "run")
    (tmp_path / "run" / "cost.json").unlink()
    (arm,) = replay(tmp_path / "run" / "small" / "trace", [resolve("exact")], None)["arms"]
    assert arm["speedup"] == {"estimate": None, "low": None, "high": None, "n": 6, "how": "replayed"}
    assert arm["acceptance_length"] > 1
