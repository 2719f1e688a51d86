"""Every verb from end to end on the fake engine."""

import json
import signal
from pathlib import Path

import pytest

from draftgate.cli import options
from draftgate.engines.fake import FakeEngine
from draftgate.errors import InputError

_EXAMPLE = Path(__file__).parents[2] / "examples" / "prompts.jsonl"
_SHORT = ("--max-tokens", 24, "--budget", "2s")


@pytest.fixture
def run(draftgate, tmp_path) -> Path:
    """A finished run."""
    said = draftgate("tune", "-w", "code-edit", "--out", tmp_path / "run", *_SHORT)
    assert said.code == 0, said.err
    return tmp_path / "run"


def test_tune_prints_tables_on_stdout_and_progress_on_stderr(draftgate, tmp_path):
    said = draftgate("tune", "-w", "code-edit", "-w", "chat", "--out", tmp_path / "run", *_SHORT)
    assert said.code == 0
    assert "code-edit: use " in said.out
    assert "why: " in said.out
    assert f"report: {tmp_path / 'run' / 'report.html'}" in said.out
    assert ": record" not in said.out
    assert said.err.startswith(f"run directory {tmp_path / 'run'}; resume with --out {tmp_path / 'run'}\n")
    for phase in ("step cost", "code-edit: record", "code-edit: search", "code-edit: prove", "chat: prove"):
        assert f"{phase}\n" in said.err
    assert "\x1b" not in said.out + said.err  # colour is for terminals
    assert (tmp_path / "run" / "report.html").is_file()


def test_a_table_in_a_pipe_keeps_every_arm_on_one_line(draftgate, tmp_path):
    said = draftgate("tune", "-w", "code-edit", "--out", tmp_path / "run", *_SHORT)
    result = json.loads((tmp_path / "run" / "result.json").read_text())["workloads"][0]
    lines = said.out.splitlines()
    assert lines[1].split() == ["arm", "speedup", "interval", "replay", "tok/s", "rate", "len", "cover", "valid", "n"]
    for arm, line in zip(result["arms"], lines[2:], strict=False):
        chosen = ">" if arm["arm"] == result["recommended"] else ""
        assert f"{chosen} {arm['arm']} ".strip() in line
        assert ("(lossy)" in line) == (not arm["lossless"])
        assert line.split()[-1] == str(arm["requests"])


def test_tune_json_is_one_object_and_nothing_else(draftgate, tmp_path):
    said = draftgate("tune", "-w", "code-edit", "--out", tmp_path / "run", "--json", *_SHORT)
    result = json.loads(said.out, parse_constant=pytest.fail)
    assert result["schema"] == 1
    assert [w["name"] for w in result["workloads"]] == ["code-edit"]
    assert "none" in [arm["arm"] for arm in result["workloads"][0]["arms"]]


def test_resuming_says_so_and_other_settings_are_refused(draftgate, run):
    said = draftgate("tune", "-w", "code-edit", "--out", run, *_SHORT)
    assert said.code == 0
    assert f"resuming {run}\n" in said.err
    said = draftgate("tune", "-w", "code-edit", "--out", run, *_SHORT, "--seed", 3)
    assert said.code == 2
    assert "holds a run with sampling.seed = 0, not 3" in said.err


def test_a_users_own_file_is_tuned_and_too_few_prompts_are_inconclusive(draftgate, tmp_path):
    said = draftgate("tune", "-w", _EXAMPLE, "--out", tmp_path / "run", *_SHORT)
    assert said.code == 3
    assert "prompts: inconclusive" in said.out
    assert "add prompts" in said.out


def test_a_users_own_file_is_benched(draftgate):
    said = draftgate("bench", "-w", _EXAMPLE, "-a", "exact", "--json", *_SHORT)
    assert said.code == 0
    none, exact = json.loads(said.out)["arms"]
    assert (none["arm"], none["speedup"]["estimate"], none["requests"]) == ("none", 1.0, exact["requests"])
    assert exact["speedup"]["n"] == len(_EXAMPLE.read_text().splitlines())


def test_bench_prints_a_table_and_is_inconclusive_on_too_little(draftgate, tmp_path):
    said = draftgate("bench", "-w", "chat", "-a", "exact", "-a", "code", "--budget", "0.001s", "--max-tokens", 8)
    assert said.code == 3
    assert said.out.startswith("chat")
    assert [line.split()[0] for line in said.out.splitlines()[2:]] == ["none", "exact", "code"]
    assert list(tmp_path.iterdir()) == []


def test_replay_prints_predictions_and_how_far_to_trust_them(draftgate, run):
    said = draftgate("replay", run / "code-edit" / "trace", "-p", "exact", "-p", "loose")
    assert said.code == 0
    assert "exact: trajectory estimator, length within 1%" in said.out
    assert "loose (lossy)" in said.out
    said = draftgate("replay", run / "code-edit" / "trace", "-p", "exact", "--json")
    assert json.loads(said.out)["arms"][0]["speedup"]["how"] == "replayed"


def test_export_prints_settings_on_stdout_and_notes_on_stderr(draftgate, run):
    said = draftgate("export", run / "code-edit" / "policies" / "goodput.yaml", "--to", "llamacpp")
    assert said.code == 0
    assert said.out.startswith("--spec-")
    assert said.err.startswith("note: ")


def test_models_are_listed(draftgate):
    said = draftgate("models", "list")
    assert said.code == 0
    assert "smollm2-135m-draft8" in said.out
    assert " no " in said.out


class _Interrupted(FakeEngine):
    """Ctrl-C at the 30th completion."""

    calls = 0
    closed = False

    def generate(self, requests, policy, record=False):
        self.calls += 1
        if self.calls == 30:
            signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background starts without one
            signal.raise_signal(signal.SIGINT)
        return super().generate(requests, policy, record)

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("verb", [["tune"], ["bench", "-a", "exact"]])
def test_ctrl_c_says_how_to_go_on_and_going_on_works(verb, draftgate, tmp_path, monkeypatch):
    command = (*verb, "-w", "code-edit", "--out", tmp_path / "run", *_SHORT)
    with monkeypatch.context() as patch:
        engine = _Interrupted()
        patch.setattr(options, "open_engine", lambda *names: engine)
        said = draftgate(*command)
    assert (said.code, said.out) == (130, "")
    assert said.err.endswith(f"draftgate: interrupted; to go on, give the same command with --out {tmp_path / 'run'}\n")
    assert engine.closed
    assert draftgate(*command).code == 0


def test_ctrl_c_elsewhere_is_exit_130(draftgate, monkeypatch):
    def interrupt(*names: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(options, "open_engine", interrupt)
    said = draftgate("bench", "-w", "chat", "-a", "exact")
    assert (said.code, said.err.strip()) == (130, "draftgate: interrupted")


def test_a_resumed_run_keeps_its_threads(draftgate, run, monkeypatch):
    """Threads are chosen by timing, which may come out differently the second time."""
    settings = json.loads((run / "run.json").read_text())
    settings["setup"]["threads"] = 7
    (run / "run.json").write_text(json.dumps(settings))
    asked = []

    def opened(choice):
        asked.append(choice.threads)
        raise InputError("enough")

    monkeypatch.setattr(options, "open_engine", opened)
    draftgate("tune", "-w", "code-edit", "--out", run)
    draftgate("bench", "-w", "code-edit", "-a", "exact", "--out", run)
    draftgate("tune", "-w", "code-edit", "--out", run, "--threads", 3)
    assert asked == [7, 7, 3]
