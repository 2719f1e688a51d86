import json

import pytest

from draftgate.errors import WorkloadError
from draftgate.quality.examine import examine, max_chars
from draftgate.quality.judgement import CHECKS, Judgement, Status, Task

TOOLS = ({"type": "function", "function": {"name": "add"}},)


def status(task: Task, text: str, cut: bool = False) -> str:
    return examine(task, text, "length" if cut else "stop").status.value


@pytest.mark.parametrize(
    ("text", "whole", "cut", "form"),
    [
        ('{"a": [1, 2.5e3, true, null]}', "valid", "valid", "bare"),
        (' ```json\n{"a": 1}\n``` ', "valid", "valid", "fenced"),
        ("```\n[]\n```", "valid", "valid", "fenced"),
        ('{"a": 1', "invalid", "truncated", "bare"),
        ('```json\n{"a": 1', "invalid", "truncated", "fenced"),
        ("```json", "invalid", "truncated", "fenced"),
        ('```json\n{"a": 1}\n```\nHere it is.', "valid", "valid", "fenced"),
        ('```json\n{"a": }\n```\nHere it', "invalid", "invalid", "fenced"),
        ('Here: {"a": 1} as asked', "valid", "valid", "prose"),
        ('{"a": "```\\n```json"}', "valid", "valid", "bare"),
        ("", "invalid", "truncated", "bare"),
        ("NaN", "invalid", "invalid", "bare"),
        ("{'a': 1}", "invalid", "invalid", "bare"),
        ("I cannot do that.", "invalid", "invalid", "bare"),
    ],
)
@pytest.mark.parametrize("check", ["json", "json-prefix"])
def test_json(text: str, whole: str, cut: str, form: str, check: str) -> None:
    task = Task(check=check)
    assert (status(task, text), status(task, text, cut=True)) == (whole, cut)
    assert examine(task, text).form == form


@pytest.mark.parametrize(
    ("text", "whole", "cut"),
    [
        ("    return x\n", "valid", "valid"),
        ("    return (x +\n            y)\n    z = 'unfini", "invalid", "truncated"),
        ("    return foo(\n", "invalid", "truncated"),
        ("    return x x\n", "invalid", "invalid"),
        ("  return\n return\n", "invalid", "invalid"),
        ("    return x\n```\nThis function returns x.\n", "invalid", "invalid"),
    ],
)
def test_a_program_goes_on_with_its_prompt(text: str, whole: str, cut: str) -> None:
    task = Task(language="python", prefix="def f(x, y):\n")
    assert (status(task, text), status(task, text, cut=True)) == (whole, cut)


@pytest.mark.parametrize(
    ("language", "prefix", "good", "bad"),
    [
        ("python", "def f(a", ", b):\n    return a\n", " b):\n    return a\n"),
        ("javascript", "function f(a) {\n  return [", "a];\n}\n", "a);\n}\n"),
        ("json", '{"a": ', "1}", "1]"),
        ("python", "Write a function that adds.\n", "def f(): return 1\n", "def f() return 1\n"),
        ("json", "Give me JSON.\n", "[1]", "[1"),
        ("yaml", "Write YAML.\n", "a: 1\n", "a: b: c\n"),
    ],
)
def test_prompts_and_outputs_of_all_kinds(language: str, prefix: str, good: str, bad: str) -> None:
    assert status(Task(language=language, prefix=prefix), good) == "valid"
    assert status(Task(language=language, prefix=prefix), bad) == "invalid"


def test_places_are_in_the_output() -> None:
    def place(task: Task, text: str) -> tuple[int | None, int | None]:
        finding = examine(task, text).findings[0]
        return finding.line, finding.column

    assert place(Task(language="python", prefix="x = 1\ny ="), " = 2") == (1, 2)
    assert place(Task(language="python", prefix="x = 1\ny = 1"), "\nz = = 2") == (2, 5)
    assert place(Task(language="python"), "Sure:\n- so\n  ```python\n  x = = 1\n  ```") == (4, 7)
    assert place(Task(language="go", prefix="package a\nfunc f("), ") {") == (1, 4)


def test_all_blocks_of_a_program_must_hold_and_the_first_of_data() -> None:
    good, bad = "```python\nx = 1\n```\n", "```python\nx = = 1\n```\n"
    assert status(Task(language="python"), good + good) == "valid"
    assert status(Task(language="python"), good + bad) == "invalid"
    assert status(Task(language="python"), good + "```python\nx = (1", cut=True) == "truncated"
    assert status(Task(language="python"), good + "```python\nx = (1") == "invalid"
    assert status(Task(language="json"), "```json\n[1]\n```\nor\n```json\n[1\n```") == "valid"


def test_fences_within_a_string_are_text() -> None:
    assert examine(Task(language="python"), 'DOC = """\n```python\nx = = 1\n```\n"""\n').form == "bare"


def test_nothing_said_is_no_program() -> None:
    assert examine(Task(language="python"), " \n").findings[0].kind == "empty"
    assert status(Task(language="java"), "```java\n```") == "invalid"
    assert status(Task(language="java"), "", cut=True) == "truncated"
    assert status(Task(language="python", prefix="x = 1\n"), "") == "valid"


def test_what_has_no_parser_is_unchecked() -> None:
    unchecked = Judgement(Status.UNCHECKED, ())
    assert examine(Task(), "{") == unchecked
    assert examine(Task(language="klingon"), "{") == unchecked
    assert examine(Task(language="prose"), "{") == unchecked
    assert examine(Task(language="json", check="none"), "{") == unchecked


@pytest.mark.parametrize("check", CHECKS)
def test_every_named_check_exists(check: str) -> None:
    assert examine(Task(check=check, tools=TOOLS), "'").status in (Status.UNCHECKED, Status.INVALID)


def test_tools_come_before_the_language() -> None:
    call = '{"name": "add", "arguments": {}}'
    assert examine(Task(language="json", tools=TOOLS), call).checked == ("tool-call",)
    assert examine(Task(check="json", tools=TOOLS), call).checked == ("json",)


SCHEMA = {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("language", "good", "bad"),
    [
        (None, '{"a": 1}', '{"a": "1"}'),
        ("json", '```json\n{"a": 1}\n```', '```json\n{"b": 1}\n```'),
        ("yaml", "a: 1\n", "a: 2024-01-01\n"),
        ("toml", "a = 1\n", "a = 1.5\n"),
        ("jsonl", '{"a": 1}\n{"a": 2}\n', '{"a": 1}\n{"b": 2}\n'),
    ],
)
def test_a_schema_describes_data(language: str | None, good: str, bad: str) -> None:
    task = Task(language=language, schema=SCHEMA)
    assert examine(task, good) == Judgement(
        Status.VALID, (language or "json", "json-schema"), (), examine(task, good).form
    )
    judgement = examine(task, bad)
    assert (judgement.status, judgement.findings[0].kind) == (Status.INVALID, "schema")


def test_a_cut_value_is_not_held_against_the_schema() -> None:
    judgement = examine(Task(schema=SCHEMA), '{"b": ', "length")
    assert (judgement.status, judgement.checked) == (Status.TRUNCATED, ("json",))


def test_a_wrong_schema_is_told_whatever_the_output() -> None:
    with pytest.raises(WorkloadError, match="a schema describes json, jsonl, toml or yaml, but the language is python"):
        examine(Task(language="python", schema=SCHEMA), "")
    with pytest.raises(WorkloadError, match="leads nowhere"):
        examine(Task(schema={"$ref": "#/a"}), "not json")


@pytest.mark.parametrize("language", ["python", "json", "java"])
def test_too_long_is_unchecked_and_says_so(language: str) -> None:
    judgement = examine(Task(language=language), " " * (max_chars(language) + 1))
    assert (judgement.status, judgement.findings[0].kind) == (Status.UNCHECKED, "limit")


def test_ten_megabytes_of_json() -> None:
    text = json.dumps([{"id": i, "text": "x" * 1000} for i in range(10_000)])
    assert len(text) > 10_000_000
    assert status(Task(language="json"), text) == "valid"
    assert status(Task(language="json"), text[:-1], cut=True) == "truncated"
