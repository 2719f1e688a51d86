import json
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftgate.errors import WorkloadError
from draftgate.workload import Message, Prompt, load_jsonl
from draftgate.workload.prompt import parse_jsonl

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
FULL = {
    "id": "p1",
    "messages": [{"role": "user", "content": "2 + 3?"}],
    "language": "json",
    "workload": "sums",
    "max_tokens": 16,
    "tests": "assert answer == 5",
    "schema": {"type": "object"},
    "tools": [TOOL],
    "check": "tool-call",
}


def parse(*records: object) -> tuple[Prompt, ...]:
    return parse_jsonl(b"\n".join(json.dumps(record).encode() for record in records), "w", "w.jsonl").prompts


def test_every_field_is_read() -> None:
    assert parse(FULL, {"id": "p2", "prompt": "def f():"}) == (
        Prompt(
            id="p1",
            messages=(Message("user", "2 + 3?"),),
            language="json",
            workload="sums",
            max_tokens=16,
            tests="assert answer == 5",
            schema={"type": "object"},
            tools=(TOOL,),
            check="tool-call",
        ),
        Prompt("p2", prompt="def f():"),
    )
    assert {*FULL, "prompt"} == {field.name for field in fields(Prompt)}


def test_file_gives_the_name_and_blank_lines_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\r\n\r\n  \n{"prompt": "b\\u2028c"}')
    workload = load_jsonl(path)
    assert workload.name == "mine"
    assert [(prompt.id, prompt.prompt) for prompt in workload.prompts] == [("line-1", "a"), ("line-4", "b\u2028c")]


def test_null_is_the_same_as_a_missing_key() -> None:
    assert parse({"id": None, "prompt": "a", "messages": None, "max_tokens": None}) == (Prompt("line-1", prompt="a"),)


def test_prompts_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        Prompt("a", prompt="x").prompt = "y"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"promt": "x"}, r"unknown key 'promt'; did you mean 'prompt'\?"),
        ({"messages": None}, "exactly one of 'prompt' and 'messages'"),
        ({"prompt": "x"}, "exactly one of 'prompt' and 'messages'"),
        ({"messages": []}, "the prompt is empty"),
        ({"messages": None, "prompt": ""}, "the prompt is empty"),
        ({"messages": None, "prompt": ["x"]}, "prompt must be a string but got a list"),
        ({"messages": None, "prompt": "\ud800"}, "prompt holds half of a surrogate pair"),
        ({"messages": "hello"}, "messages must be a list but got a string"),
        ({"messages": ["hello"]}, r"messages\[0\] must be an object but got a string"),
        ({"messages": [{"role": "user"}]}, r"messages\[0\].content must be a string but got null"),
        ({"messages": [{"role": "usr", "content": "x"}]}, r"unknown role 'usr'; did you mean 'user'\?"),
        ({"messages": [{"role": "user", "content": "x", "nam": 1}]}, "unknown key 'nam'"),
        ({"id": 7}, "id must be a string but got a whole number"),
        ({"max_tokens": 0}, "max_tokens must be at least 1 but got 0"),
        ({"max_tokens": -5}, "max_tokens must be at least 1 but got -5"),
        ({"max_tokens": 1.5}, "max_tokens must be a whole number but got a decimal number"),
        ({"max_tokens": True}, "max_tokens must be a whole number but got true or false"),
        ({"schema": []}, "schema must be an object but got a list"),
        ({"tools": {}}, "tools must be a list but got an object"),
        ({"tools": [{"name": "add"}]}, r"tools\[0\] must be like"),
        ({"tools": None}, "check 'tool-call' needs 'tools'"),
        ({"check": "jsn"}, r"unknown check 'jsn'; did you mean 'json'\?"),
    ],
)
def test_wrong_record_names_file_line_and_remedy(change: dict[str, object], message: str) -> None:
    with pytest.raises(WorkloadError, match=rf"^w\.jsonl:2: .*{message}"):
        parse({"prompt": "x"}, FULL | change)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"prompt": "x"', "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b'["prompt"]', "must be a JSON object but got a list"),
        (b"null", "must be a JSON object but got null"),
        (b'{"prompt": "caf\xe9"}', "not UTF-8 at byte 15 of the line"),
        (b'{"id": "line-1", "prompt": "x"}', "id 'line-1' is used twice"),
    ],
)
def test_wrong_line_names_file_and_line(line: bytes, message: str) -> None:
    with pytest.raises(WorkloadError, match=rf"^w\.jsonl:3: {message}"):
        parse_jsonl(b'{"prompt": "x"}\n\n' + line, "w", "w.jsonl")


@pytest.mark.parametrize("data", [b"", b"\n \n"])
def test_file_without_prompts_is_refused(data: bytes) -> None:
    with pytest.raises(WorkloadError, match="no prompts"):
        parse_jsonl(data, "w", "w.jsonl")


def test_unreadable_file_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.jsonl", tmp_path):
        with pytest.raises(WorkloadError, match=f"{path}: cannot read the workload"):
            load_jsonl(path)


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes_give_a_workload_or_a_workload_error(data: bytes) -> None:
    try:
        assert parse_jsonl(data, "w", "w.jsonl").prompts
    except WorkloadError as error:
        assert str(error).startswith("w.jsonl:")  # noqa: PT017 - both outcomes are allowed


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats() | st.text(max_size=5),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=5), children, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from([field.name for field in fields(Prompt)]), JSON))
def test_any_value_in_any_field_gives_a_prompt_or_a_workload_error(record: dict[str, object]) -> None:
    try:
        parse(record)
    except WorkloadError as error:
        assert str(error).startswith("w.jsonl:1: ")  # noqa: PT017 - both outcomes are allowed
