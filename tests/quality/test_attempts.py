import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from draftgate.errors import WorkloadError
from draftgate.quality import attempts
from draftgate.quality.attempts import Attempt, run_all
from draftgate.quality.humaneval import Problem
from draftgate.quality.sandbox import Limits, Sandbox, find_sandbox

ADD = Problem("add", "def add(a, b):\n", "assert add(1, 2) == 3\nassert add(2, 2) == 4\n")
NEG = Problem("neg", "Write neg(x), minus x.", "assert neg(1) == -1\n", "neg")
COMPLETIONS = {"add": ["    return a + b\n", "    return 3\n"], "neg": ["def neg(x): return -x", "neg = abs", "1 / 0"]}
EXPECTED = [True, False, True, False, False]


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    return find_sandbox()


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Programs that were really run."""
    seen: list[str] = []
    real = attempts.put_to_tests

    def counted(case, walls, limits):  # type: ignore[no-untyped-def]
        seen.append(case.source)
        return real(case, walls, limits)

    monkeypatch.setattr(attempts, "put_to_tests", counted)
    return seen


def test_every_completion_is_judged_in_order(sandbox: Sandbox, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    done = run_all([ADD, NEG], COMPLETIONS, sandbox, tmp_path / "a" / "out.jsonl", progress=lambda *p: told.append(p))
    assert [(a.task_id, a.index) for a in done] == [("add", 0), ("add", 1), ("neg", 0), ("neg", 1), ("neg", 2)]
    assert [a.passed for a in done] == EXPECTED
    assert told == [(i, 5) for i in range(1, 6)]
    assert "ZeroDivisionError" in done[4].detail


def test_finished_ones_are_not_run_again(sandbox: Sandbox, tmp_path: Path, runs: list[str]) -> None:
    out = tmp_path / "out.jsonl"
    first = run_all([ADD, NEG], COMPLETIONS, sandbox, out)
    assert len(runs) == 5
    assert run_all([ADD, NEG], COMPLETIONS, sandbox, out) == first
    assert len(runs) == 5


@pytest.mark.parametrize("cut", [1, 40, 41])
def test_interrupted_run_goes_on(sandbox: Sandbox, tmp_path: Path, runs: list[str], cut: int) -> None:
    out = tmp_path / "out.jsonl"

    def interrupt(done: int, of: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_all([ADD, NEG], COMPLETIONS, sandbox, out, workers=1, progress=interrupt)
    lines = out.read_text().splitlines(keepends=True)
    assert len(lines) == 3
    out.write_text("".join(lines[:2]) + lines[2][:cut])  # killed while it wrote the third
    runs.clear()
    assert [a.passed for a in run_all([ADD, NEG], COMPLETIONS, sandbox, out)] == EXPECTED
    assert len(runs) == 3
    assert len(out.read_text().splitlines()) == 5


def test_what_changed_is_run_again(sandbox: Sandbox, tmp_path: Path, runs: list[str]) -> None:
    out = tmp_path / "out.jsonl"
    one = {"add": COMPLETIONS["add"][:1]}
    run_all([ADD], one, sandbox, out)
    for problem, completions, limits in (
        (ADD, {"add": ["    return b + a\n"]}, Limits()),
        (replace(ADD, tests=ADD.tests + "assert add(0, 0) == 0\n"), one, Limits()),
        (ADD, one, Limits(wall_s=9)),
    ):
        runs.clear()
        assert run_all([problem], completions, sandbox, out, limits)[0].passed
        assert len(runs) == 1


def test_completions_for_no_problem_are_refused(sandbox: Sandbox, tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"'ad', which is no problem; did you mean 'add'"):
        run_all([ADD], {"ad": [""]}, sandbox, tmp_path / "out.jsonl")


@pytest.mark.parametrize("line", ["{}", "[]", "nonsense", json.dumps({"key": "x", "task_id": "y"})])
def test_other_files_are_refused_and_kept(sandbox: Sandbox, tmp_path: Path, line: str) -> None:
    out = tmp_path / "precious.jsonl"
    out.write_text(line + "\n")
    with pytest.raises(WorkloadError, match=re.escape(f"{out}:1: is no result of a test run")):
        run_all([ADD], {}, sandbox, out)
    assert out.read_text() == line + "\n"


def test_attempt_is_a_line(sandbox: Sandbox, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    (done,) = run_all([NEG], {"neg": ["def neg(x): return '\\ud800'"]}, sandbox, out)
    record = json.loads(out.read_text())
    assert Attempt(**{key: value for key, value in record.items() if key != "key"}) == done
