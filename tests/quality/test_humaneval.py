"""The problem format, and verdicts on HumanEval: the short form of benchmarks/sandbox.py."""

import gzip
import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from draftgate.errors import WorkloadError
from draftgate.quality.humaneval import Problem, load_problems, parse_problems
from draftgate.quality.sandbox import find_sandbox

BENCHMARK = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "sandbox.py"))
LINE = {"id": "a", "prompt": "def f(x):\n", "tests": "assert f(1) == 1"}


@pytest.fixture(scope="module")
def humaneval() -> tuple[Problem, ...]:
    problems: tuple[Problem, ...] = BENCHMARK["humaneval"]()
    return problems


def line(**changed: Any) -> bytes:
    return json.dumps({key: value for key, value in (LINE | changed).items() if value != "-"}).encode()


def test_humaneval_is_read(humaneval: tuple[Problem, ...]) -> None:
    assert len(humaneval) == 164
    first = humaneval[0]
    assert (first.task_id, first.entry_point, first.tested()) == (
        "HumanEval/0",
        "has_close_elements",
        "has_close_elements",
    )
    assert all(problem.solution and problem.own_code() == problem.prompt for problem in humaneval)
    assert all(problem.program("x") == problem.prompt + "x" for problem in humaneval)
    assert [
        problem.task_id for problem in humaneval if Problem("", problem.prompt, "").tested() != problem.entry_point
    ] == []


def test_solutions_pass_and_verdicts_are_those_of_a_plain_script(humaneval: tuple[Problem, ...]) -> None:
    """30 of the 164 problems, two mutants of each."""
    chosen = humaneval[::5][:30]
    right = [(problem, problem.solution) for problem in chosen]
    different, outcomes = BENCHMARK["disagree"](right, find_sandbox(), 2)
    assert (different, outcomes) == ([], {"passed": 30})
    spread, mutants = BENCHMARK["spread"], BENCHMARK["mutants"]
    wrong = [(problem, text) for problem in chosen for text in spread(list(mutants(problem)), 2)]
    different, outcomes = BENCHMARK["disagree"](wrong, find_sandbox(), 2)
    assert different == []
    assert len(wrong) >= 55
    assert outcomes["failed"] > 40


def test_mutants_repeat_themselves(humaneval: tuple[Problem, ...]) -> None:
    mutants = BENCHMARK["mutants"]
    assert list(mutants(humaneval[0])) == list(mutants(humaneval[0]))
    assert len(set(mutants(humaneval[0]))) > 5


def test_both_names_of_a_field_are_read() -> None:
    theirs = {"task_id": "a", "prompt": "p", "test": "t", "entry_point": "f", "canonical_solution": "s"}
    assert parse_problems(json.dumps(theirs).encode(), "") == (Problem("a", "p", "t", "f", solution="s"),)
    own = {
        "id": "a",
        "prompt": "p",
        "tests": "t",
        "objects": True,
        "language": "python",
        "max_tokens": 9,
        "workload": "w",
    }
    assert parse_problems(b"\n" + json.dumps(own).encode() + b"\n\n", "") == (Problem("a", "p", "t", objects=True),)


def test_gzip_is_read(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl.gz").write_bytes(gzip.compress(line()))
    (tmp_path / "p.jsonl").write_bytes(line())
    assert load_problems(tmp_path / "p.jsonl.gz") == load_problems(tmp_path / "p.jsonl")
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(line())[:-9])
    with pytest.raises(WorkloadError, match=r"cut\.jsonl\.gz: cannot read"):
        load_problems(tmp_path / "cut.jsonl.gz")
    damaged = bytearray(gzip.compress(line()))
    damaged[12:20] = b"\xff" * 8
    (tmp_path / "bad.jsonl.gz").write_bytes(damaged)
    with pytest.raises(WorkloadError, match=r"bad\.jsonl\.gz: cannot read"):
        load_problems(tmp_path / "bad.jsonl.gz")
    with pytest.raises(WorkloadError, match=r"none\.jsonl: cannot read"):
        load_problems(tmp_path / "none.jsonl")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "f: no problems"),
        (b"{", "f:1: not valid JSON"),
        (b"[]", "f:1: must be a JSON object but got list"),
        (b"\xff", "f:1: not valid JSON"),
        (b"[" * 100_000, "f:1: not valid JSON"),
        (line(test_="x"), "f:1: unknown key 'test_'; did you mean 'test'?"),
        (line(test="x"), "f:1: 'test' says tests a second time"),
        (line(prompt=3), "f:1: prompt must be a str but got 3"),
        (line(objects=1), "f:1: objects must be a bool but got 1"),
        (line(tests="-"), "f:1: needs tests"),
        (line(tests=None), "f:1: needs tests"),
        (line(id=""), "f:1: needs task_id"),
        (line() + b"\n" + line(), "f:2: 'a' is used twice"),
    ],
)
def test_wrong_lines_are_named(data: bytes, message: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        parse_problems(data, "f")
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("prompt", "code", "tested"),
    [
        ("def f(x):\n", "def f(x):\n\n    pass\n", "f"),
        ("import math\n\ndef g(): ...\n\nclass C:\n", "import math\n\ndef g(): ...\n\nclass C:\n\n    pass\n", "C"),
        ("import math\n", "import math\n", None),
        ("Sort", "", None),
        ("Write a function f.", "", None),
        ("def f(x)", "", None),
        ("", "", None),
    ],
)
def test_prompt_is_code_or_not(prompt: str, code: str, tested: str | None) -> None:
    problem = Problem("a", prompt, "")
    assert (problem.own_code(), problem.tested()) == (code, tested)


def test_named_entry_point_comes_first() -> None:
    assert Problem("a", "def f(): ...\n", "", "g").tested() == "g"


@pytest.mark.parametrize(
    ("completion", "program"),
    [
        ("f = 1\n", "f = 1\n"),
        ("Sure:\n```python\nf = 1\n```\nDone.", "f = 1\n"),
        ("```\nf = 1\n", "f = 1\n"),
        ("f = '```'\n", "f = '```'\n"),
    ],
)
def test_fences_are_taken_off(completion: str, program: str) -> None:
    assert Problem("a", "Set f.", "").program(completion) == program
