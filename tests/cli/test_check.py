"""`draftgate check` from end to end."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftgate.cli.check import _lines, _shown
from draftgate.errors import WorkloadError
from draftgate.quality.outputs import MAX_LINE_BYTES, parse_output, read_outputs

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    },
}
CALL = '{"name": "add", "arguments": {"a": 1}}'
GOOD = {"language": "python", "output": "x = 1\n"}
BAD = {"language": "python", "output": "x = = 1\n", "id": "second"}


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes records, or lines as they are, to a file."""

    def write(*lines: object) -> Path:
        path = tmp_path / "outputs.jsonl"
        path.write_bytes(b"".join(_line(line) + b"\n" for line in lines))
        return path

    return write


def _line(line: object) -> bytes:
    return line if isinstance(line, bytes) else json.dumps(line).encode()


def test_all_valid_is_exit_0(draftgate, write):
    said = draftgate("check", write(GOOD, b"", {"language": "json", "output": "{}"}))
    assert said.code == 0
    assert [line.split()[:3] for line in said.out.splitlines()] == [
        ["language", "n", "valid"],
        ["python", "1", "100.0%"],
        ["json", "1", "100.0%"],
    ]


def test_some_invalid_is_exit_1_and_the_fault_has_its_place(draftgate, write):
    said = draftgate("check", write(GOOD, BAD, GOOD | {"language": "py"}))
    assert said.code == 1
    assert said.out.splitlines()[1].split() == ["python", "3", "66.7%", "20.8%..93.9%", "1", "0", "0"]
    assert said.out.splitlines()[2].startswith("  line 2, second at 1:")
    assert "syntax" in said.out.splitlines()[2]


def test_progress_is_on_stderr(draftgate, write):
    path = write(GOOD)
    assert draftgate("check", path).err == f"check {path}\n"


def test_json_is_one_object_and_nothing_else(draftgate, write):
    path = write(GOOD, BAD, {"language": "python", "output": "x = (", "finish": "length"}, {"output": "?"})
    said = draftgate("check", path, "--json")
    assert said.code == 1
    result = json.loads(said.out, parse_constant=pytest.fail)
    assert (result["schema"], result["file"]) == (1, str(path))
    python, unknown = result["languages"]
    counts = {"n": 3, "valid": 1, "invalid": 1, "truncated": 1, "unchecked": 0}
    assert {key: python[key] for key in ("language", *counts)} == {"language": "python"} | counts
    assert python["rate"]["n"] == 2
    assert python["rate"]["low"] < python["rate"]["estimate"] == 0.5 < python["rate"]["high"]
    (fault,) = python["faults"]
    assert (fault["line"], fault["id"], fault["kind"], fault["at_line"]) == (2, "second", "syntax", 1)
    assert (unknown["language"], unknown["unchecked"]) == ("no language", 1)
    assert unknown["rate"] == {"estimate": None, "low": None, "high": None, "n": 0}


def test_nothing_to_judge_is_exit_3_and_says_so(draftgate, write):
    said = draftgate("check", write({"output": "anything"}, {"output": "", "language": "klingon"}))
    assert said.code == 3
    assert "note: 2 not judged" in said.err
    assert "klingon" in said.out


def test_an_output_cut_by_the_token_limit_is_neither_valid_nor_invalid(draftgate, write):
    said = draftgate("check", write({"language": "json", "output": '{"a": ', "finish": "length"}, GOOD))
    assert said.code == 0
    assert said.out.splitlines()[1].split() == ["json", "1", "-", "-", "0", "1", "0"]


def test_schemas_tools_and_prompts_are_used(draftgate, write):
    said = draftgate(
        "check",
        write(
            {"output": '{"a": 1}', "schema": {"required": ["a"]}},
            {"output": "{}", "schema": {"required": ["a"]}, "id": "lacks a"},
            {"output": CALL, "tools": [ADD]},
            {"output": CALL.replace("1", '"1"'), "tools": [ADD], "id": "text"},
            {"output": "    return x\n", "language": "python", "prompt": "def f(x):\n"},
            {"output": "    return x\n", "language": "python", "prefix": "def f(x):\n"},
        ),
        "--json",
    )
    assert said.code == 1
    json_, tools, python = json.loads(said.out)["languages"]
    assert [g["language"] for g in (json_, tools, python)] == ["json", "tool calls", "python"]
    assert [(g["valid"], g["invalid"]) for g in (json_, tools, python)] == [(1, 1), (1, 1), (2, 0)]
    assert [json_["faults"][0]["id"], tools["faults"][0]["id"]] == ["lacks a", "text"]


def test_a_message_with_tool_calls_may_be_the_output(draftgate, write):
    arguments = {"cut": '{"a": ', "whole": '{"a": 1}', "wrong": "{}"}
    calls = {
        name: {"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": text}}]}
        for name, text in arguments.items()
    }
    said = draftgate(
        "check",
        write(
            {"output": calls["whole"], "tools": [ADD]},
            {"output": calls["cut"], "tools": [ADD], "finish": "length"},
            {"output": calls["wrong"], "tools": [ADD]},
        ),
    )
    assert said.code == 1
    assert said.out.splitlines()[1].split()[-3:] == ["1", "1", "0"]


def test_language_and_schema_are_for_lines_that_bring_none(draftgate, write, tmp_path):
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "array"}')
    path = write({"output": "[]"}, {"output": "{}"}, {"output": "{}", "schema": {"type": "object"}}, GOOD)
    said = draftgate("check", path, "--language", "json", "--schema", schema, "--json")
    groups = json.loads(said.out)["languages"]
    assert [(g["language"], g["valid"], g["invalid"]) for g in groups] == [("json", 2, 1), ("python", 1, 0)]


def test_an_output_too_large_for_its_parser_is_named(draftgate, write):
    said = draftgate("check", write({"language": "css", "output": " " * (2 << 20)}))
    assert said.code == 3
    assert "limit: longer than" in said.out
    assert "or too large" in said.err


def test_tests_of_another_language_are_refused(draftgate, write):
    path = write(GOOD, {"language": "javascript", "output": "let x = 1", "tests": "check(x)"})
    assert draftgate("check", path).code == 0
    said = draftgate("check", path, "--run-tests")
    assert (said.code, said.out) == (2, "")
    assert f"{path}:2: tests are run as Python, not javascript" in said.err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "the JSON ends too early"),
        (b"x", "not JSON: expected a value"),
        (b'{"output": "a", "output": "b"}', "the key 'output' is given twice"),
        (b'{"output": "\xff"}', "not UTF-8 at byte 12"),
        (b"[]", "must be a JSON object"),
        (b"{}", "no output; every line needs the key 'output'"),
        (b'{"output": null}', "no output"),
        (b'{"outptu": ""}', "unknown key 'outptu'; did you mean 'output'?"),
        (b'{"\\u001b[2J": ""}', "unknown key '\\x1b[2J'; valid: "),
        (b'{"output": 1}', "output must be a string or a message object but got a number"),
        (b'{"output": {}}', "give 'tools', too"),
        (b'{"output": "", "id": true}', "id must be a string or a number but got true or false"),
        (b'{"output": "", "tools": []}', "tools must be a list of at least one tool"),
        (b'{"output": "", "tools": [{}]}', "tools[0] must be like"),
        (b'{"output": "{}", "schema": []}', "schema must be an object but got a list"),
        (b'{"output": "{}", "schema": {"type": "integr"}}', "the schema breaks JSON Schema"),
        (b'{"output": "x", "language": "python", "schema": {}}', "a schema describes json"),
        (b'{"output": "", "prompt": "a", "prefix": "a"}', "not both"),
    ],
)
def test_a_bad_line_is_exit_2_with_its_number_and_nothing_else(line, message, draftgate, write):
    path = write(BAD, b" ", line, GOOD)
    for form in ([], ["--json"]):
        said = draftgate("check", path, *form)
        assert (said.code, said.out) == (2, "")
        told = said.err.splitlines()[-1]
        assert told.startswith(f"draftgate: {path}:3: ")
        assert message in told


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["no.jsonl"], "no.jsonl: cannot be read: No such file"),
        (["."], ".: cannot be read: Is a directory"),
        (["empty.jsonl"], "empty.jsonl: no outputs"),
        (["empty.jsonl", "--schema", "no.json"], "no.json: cannot be read"),
        (["empty.jsonl", "--schema", "empty.jsonl"], "empty.jsonl: is not JSON: it ends too early"),
        (["empty.jsonl", "--schema", "list.json"], "list.json: a JSON Schema must be an object"),
        (["empty.jsonl", "--language", "pythn"], "no parser for 'pythn'; did you mean 'python'?"),
        ([], "Missing argument"),
    ],
)
def test_wrong_words(words, message, draftgate, tmp_path):
    (tmp_path / "empty.jsonl").write_bytes(b"\n")
    (tmp_path / "list.json").write_bytes(b"[]")
    said = draftgate("check", *words)
    assert (said.code, said.out) == (2, "")
    assert message in said.err


def test_stdin(draftgate, write, monkeypatch):
    with write(GOOD, b"?").open() as file:
        monkeypatch.setattr(sys, "stdin", file)
        said = draftgate("check", "-")
    assert (said.code, said.out) == (2, "")
    assert "-:2: not JSON" in said.err


HOSTILE = "\x1b[2J\x1b]0;owned\x07[bold]\u202e\r\n\ud800[/] " + "x" * 1000


def test_hostile_text_does_not_reach_the_terminal(draftgate, write):
    lines = [
        {"language": HOSTILE, "output": "x"},
        {"language": "python", "output": HOSTILE, "id": HOSTILE},
        {"language": "json", "output": HOSTILE, "id": "[/red]"},
        {"tools": [ADD], "output": json.dumps({"name": HOSTILE, "arguments": {}})},
        {"schema": {"const": 1}, "output": json.dumps(HOSTILE)},
    ]
    said = draftgate("check", write(*lines))
    assert said.code == 1
    assert all(line.isprintable() for line in said.out.splitlines())
    assert "[/red]" in said.out
    assert max(map(len, said.out.splitlines())) < 600
    for wrong in (
        {"schema": {"properties": {HOSTILE[:9]: {"type": 1}}}, "output": "1"},
        {"tests": "", "language": HOSTILE, "output": "x = 1"},
    ):
        said = draftgate("check", write(wrong), "--run-tests")
        assert said.code == 2
        assert all(line.isprintable() for line in said.err.splitlines())


@given(st.text())
def test_shown_text_is_one_printable_line(text):
    assert _shown(text).isprintable()
    if text.isprintable() and len(text) < 200:
        assert _shown(text) == text


def test_faults_named_and_languages_told_apart_are_few(draftgate, write):
    lines = [BAD] * 50 + [{"language": f"tongue-{i}", "output": ""} for i in range(150)]
    said = draftgate("check", write(*lines), "--json")
    groups = json.loads(said.out)["languages"]
    assert len(groups[0]["faults"]) == 5
    assert len(groups) == 101
    assert (groups[-1]["language"], groups[-1]["n"]) == ("others", 51)


def test_lines_are_judged_as_they_come(tmp_path):
    """Line by line from a pipe that stays open: a line after a bad one is never read."""
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    code = f"from draftgate.cli import main; main(['check', {str(fifo)!r}])"
    with os.fdopen(os.open(fifo, os.O_RDWR), "wb", buffering=0) as pipe:
        pipe.write(_line(GOOD) + b"\n{\n")
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{fifo}:2: the JSON ends too early" in done.stderr


class Progress:
    bytes = 0

    def advance(self, amount: int) -> None:
        self.bytes += amount


def test_a_line_that_never_ends_is_refused_before_it_fills_the_memory():
    class Endless(io.RawIOBase):
        """A line of a terabyte."""

        given = 0

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            self.given += len(buffer)
            buffer[:] = b"x" * len(buffer)
            return len(buffer)

    raw, read = Endless(), Progress()
    with pytest.raises(WorkloadError, match="endless:1: longer than 64 MiB"):
        next(read_outputs(_lines(io.BufferedReader(raw), read), "endless"))
    assert raw.given < 2 * MAX_LINE_BYTES


def test_progress_is_told_in_bytes_after_each_line():
    read = Progress()
    lines = _lines(io.BytesIO(b"a\n\nbcd"), read)
    assert [(line, read.bytes) for line in lines] == [(b"a\n", 0), (b"\n", 2), (b"bcd", 3)]
    assert read.bytes == 6


@given(st.binary() | st.text().map(str.encode))
def test_any_line_is_parsed_or_refused(line):
    try:
        parse_output(line)
    except WorkloadError:
        return


RECORDS = st.dictionaries(
    st.sampled_from(
        ["id", "output", "language", "schema", "tools", "tests", "prompt", "prefix", "finish", "entry_point"]
    ),
    st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.text()) | st.dictionaries(st.text(), st.text()),
)


@given(RECORDS)
def test_any_record_is_parsed_or_refused(record):
    try:
        output = parse_output(_line(record))
    except WorkloadError:
        return
    assert output.said == record["output"]


def test_tests_are_run_when_asked_for(draftgate, write):
    task = {"language": "python", "tests": "assert double(2) == 4", "entry_point": "double"}
    right, wrong = "def double(x):\n    return 2 * x\n", "def double(x):\n    return x\n"
    path = write(task | {"output": right}, task | {"output": wrong, "id": "wrong"}, task | {"output": "def"})
    assert json.loads(draftgate("check", path, "--json").out)["languages"][0]["valid"] == 2
    said = draftgate("check", path, "--run-tests", "--json")
    assert said.code == 1
    (python,) = json.loads(said.out)["languages"]
    assert (python["valid"], python["invalid"]) == (1, 2)
    assert [fault["kind"] for fault in python["faults"]] == ["tests", "syntax"]
