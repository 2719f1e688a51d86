import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftgate.errors import InputError, WorkloadError
from draftgate.quality.judgement import Judgement, Status
from draftgate.quality.toolcalls import ToolCall, check_tool_calls, parse_tool_calls
from draftgate.workload import load


def tool(name: str, **parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **parameters}}


ADD = tool(
    "add",
    parameters={
        "type": "object",
        "properties": {"a": {"type": "integer"}, "note": {"type": "string"}},
        "required": ["a"],
        "additionalProperties": False,
    },
)
TOOLS = (ADD, tool("now"))
CALL = '{"name": "add", "arguments": {"a": 1}}'


def check(output: str | Mapping[str, Any], finish: str | None = "stop") -> Judgement:
    return check_tool_calls(output, TOOLS, finish)


def faults(output: str | Mapping[str, Any], finish: str | None = "stop") -> list[str]:
    return [finding.message for finding in check(output, finish).findings]


# Each format as its model's template writes it, and back.

Calls = Sequence[ToolCall]


def plain(call: ToolCall, key: str = "arguments") -> str:
    return json.dumps({"name": call.name, key: call.arguments})


def message(calls: Calls) -> dict[str, Any]:
    functions = [{"name": call.name, "arguments": json.dumps(call.arguments)} for call in calls]
    listed = [{"id": f"call_{i}", "type": "function", "function": f} for i, f in enumerate(functions)]
    return {"role": "assistant", "content": None, "tool_calls": listed}


def qwen3_coder(calls: Calls, wrapped: bool = True) -> str:
    def body(call: ToolCall) -> str:
        values = (f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in call.arguments.items())
        return f"<function={call.name}>\n{''.join(values)}</function>"

    return "\n".join(f"<tool_call>\n{body(call)}\n</tool_call>" if wrapped else body(call) for call in calls)


def mistral_v11(calls: Calls, marks: str) -> str:
    return "".join(f"[TOOL_CALLS]{call.name}{marks}{json.dumps(call.arguments)}" for call in calls)


JSON_FORMATS: Mapping[str, tuple[str, Callable[[Calls], str]]] = {
    "openai": ("openai", lambda calls: json.dumps(message(calls))),
    "hermes": ("hermes", lambda calls: "\n".join(f"<tool_call>\n{plain(c)}\n</tool_call>" for c in calls)),
    "hermes in a line": ("hermes", lambda calls: "".join(f"<tool_call>{plain(c)}</tool_call>" for c in calls)),
    "llama3": ("llama3", lambda calls: "<|python_tag|>" + "; ".join(plain(c, "parameters") for c in calls)),
    "llama3 without the tag": ("llama3", lambda calls: ";".join(plain(c, "parameters") for c in calls)),
    "mistral": ("mistral", lambda calls: f"[TOOL_CALLS] [{', '.join(plain(c) for c in calls)}]"),
    "mistral v11": ("mistral-v11", lambda calls: mistral_v11(calls, "[ARGS]")),
    "mistral v11 with ids": ("mistral-v11", lambda calls: mistral_v11(calls, "[CALL_ID]a1B2c3D4e[ARGS]")),
    "mistral v11 decoded without marks": ("mistral-v11", lambda calls: mistral_v11(calls, "")),
    "array": ("json", lambda calls: f"[{', '.join(plain(c) for c in calls)}]"),
    "fenced": ("fenced", lambda calls: f"```json\n[{', '.join(plain(c) for c in calls)}]\n```"),
    "fenced with tildes": ("fenced", lambda calls: f"~~~\n[{', '.join(plain(c) for c in calls)}]\n~~~\n"),
}
XML_FORMATS: Mapping[str, tuple[str, Callable[[Calls], str]]] = {
    "qwen3-coder": ("qwen3-coder", qwen3_coder),
    "qwen3-coder without the outer tag": ("qwen3-coder", lambda calls: qwen3_coder(calls, wrapped=False)),
}
BEFORE_TAGS = (
    "",
    "I will look that up.\n",
    "{note} ",
    "[1] ",
    "<think>\nPerhaps <tool_call>?\n</think>\n\n",
    "Use [TOOL CALLS].\n</think>\n",
)
END_TOKENS = ("", "\n", "</s>", "<|im_end|>\n", " <|eom_id|><|eot_id|>")

NAMES = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_-]{0,12}", fullmatch=True)
MARKS = st.sampled_from(
    ["<tool_call>", "</tool_call>", "<function=", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "```", "</think>", ";"]
)
TEXTS = st.lists(st.text(max_size=6) | MARKS, max_size=3).map("".join)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


def some_calls(arguments: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[list[ToolCall]]:
    return st.lists(st.builds(ToolCall, NAMES, arguments), min_size=1, max_size=3)


JSON_CALLS = some_calls(st.dictionaries(TEXTS, VALUES, max_size=3))
# A value of the XML format ends at any of these: that much it cannot say.
ENDS = ("</parameter>", "<parameter=", "</function>")
XML_TEXTS = TEXTS.filter(lambda text: not any(end in text for end in ENDS))
XML_CALLS = some_calls(st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), XML_TEXTS, max_size=3))
ANY_RENDERED = st.one_of(
    *(st.builds(write, JSON_CALLS) for _, write in JSON_FORMATS.values()),
    *(st.builds(write, XML_CALLS) for _, write in XML_FORMATS.values()),
)


@pytest.mark.parametrize("name", JSON_FORMATS)
@given(calls=JSON_CALLS)
def test_calls_written_as_json_are_read_back(name: str, calls: Calls) -> None:
    form, write = JSON_FORMATS[name]
    assert parse_tool_calls(write(calls)) == calls
    judged = check_tool_calls(write(calls), None)
    assert (judged.status, judged.form) == (Status.VALID, form)


@pytest.mark.parametrize("name", XML_FORMATS)
@given(calls=XML_CALLS)
def test_calls_written_as_tags_are_read_back(name: str, calls: Calls) -> None:
    form, write = XML_FORMATS[name]
    assert parse_tool_calls(write(calls)) == calls
    assert check_tool_calls(write(calls), None).form == form


@given(JSON_CALLS)
def test_messages_are_read_back(calls: Calls) -> None:
    assert parse_tool_calls(message(calls)) == calls
    assert parse_tool_calls(message(calls)["tool_calls"][0]) == calls[:1]
    assert check_tool_calls(message(calls), None).form == "openai"


@given(st.sampled_from(["hermes", "llama3", "mistral", "mistral v11"]), JSON_CALLS, st.sampled_from(BEFORE_TAGS))
def test_text_may_stand_before_a_tag(name: str, calls: Calls, before: str) -> None:
    assert parse_tool_calls(before + JSON_FORMATS[name][1](calls)) == calls


@pytest.mark.parametrize("before", ["", "\n", "<think>Hm.</think>\n", "I see.</think>"])
@pytest.mark.parametrize("after", END_TOKENS)
@pytest.mark.parametrize("text", [CALL, f"```json\n{CALL}\n```", f"<tool_call>{CALL}</tool_call>"])
def test_thoughts_and_end_tokens_are_no_part_of_the_answer(before: str, after: str, text: str) -> None:
    assert check(before + text + after).status is Status.VALID


# What is wrong, and where.


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("", "no tool call"),
        ("I would add them.", "no tool call"),
        ("[]", "no tool call"),
        ("12", "no tool call"),
        ({"role": "assistant", "content": None, "tool_calls": []}, "no tool call"),
        ({"role": "assistant", "content": "It is 3."}, "no tool call"),
        ('{"name": "ad", "arguments": {}}', "unknown tool 'ad'; did you mean 'add'?"),
        ('[TOOL_CALLS]subtract{"a": 1}', "unknown tool 'subtract'; valid: add, now"),
        ('{"name": "add", "arguments": {"a": 1}', "the output ends inside a call"),
        ("{'name': 'add'}", "not JSON: expected a key in double quotes"),
        ('{"name": "add", "arguments": {"a": NaN}}', "not JSON: expected a value"),
        ('{"name": "add", "arguments": {"a": 1, "a": 2}}', "the key 'a' is given twice"),
        (
            "<function=add><parameter=a>1</parameter><parameter=a>2</parameter></function>",
            "parameter 'a' is given twice",
        ),
        ("<function=add ></function>", "unknown tool 'add '; did you mean 'add'?"),
        ("<function=add><parameter=a>1<parameter=b>2</parameter></function>", "'a' is not closed by </parameter>"),
        ("<function=add><parameter=a>1</function>", "'a' is not closed by </parameter>"),
        ('{"name": "add"}', "the arguments of 'add' must be an object"),
        ('{"name": "add", "arguments": []}', "the arguments of 'add' must be an object"),
        ('{"name": "add", "arguments": "{\\"a\\": 1}"}', "the arguments of 'add' must be an object"),
        ('{"name": "add", "arguments": {}, "parameters": {}}', "either arguments or parameters, not both"),
        ('{"name": ["add"], "arguments": {}}', "a call must have a name"),
        ('{"arguments": {}}', "a call must have a name"),
        ('[TOOL_CALLS]{"a": 1}', "a call must have a name"),
        ('[TOOL_CALLS] ["add"]', "expected [CALL_ID] or [ARGS] or {: '[\"add\"]'"),
        ('<tool_call>["add"]</tool_call>', "a call must be an object with a name and arguments"),
        ('<tool_call>{"name": "now", "parameters": {}}</tool_call>', "the arguments of 'now' must be an object"),
        (f"{CALL}\nHere it is.", "text after the call: 'Here it is.'"),
        (f"```json\n{CALL}\n```\nHere it is.", "text after the call: '```\\nHere it is.'"),
        (f"<tool_call>{CALL}</tool_call> Done.", "text after the call: 'Done.'"),
        (f"[TOOL_CALLS] [{CALL}] Done.", "text after the call: 'Done.'"),
        (f"<tool_call>{CALL}", "the output ends inside a call"),
        (f"<tool_call>{CALL}<tool_call>", "expected </tool_call>: '<tool_call>'"),
        ("<function=add>1</function>", "expected <parameter= or </function>: '1</function>'"),
        ("<function=add\n<parameter=a>", "the tag is not closed by '>' after 'add'"),
        ("<tool_call>add(1)</tool_call>", "not JSON: expected a value"),
        (
            message([ToolCall("add", {"a": 1})]) | {"tool_calls": [7]},
            "a call must be an object with a name and arguments",
        ),
        ({"function": {"name": "add", "arguments": '{"a": 1'}}, "the output ends inside a call"),
        ({"function": {"name": "add", "arguments": "a=1"}}, "the arguments: not JSON: expected a value"),
        ('{"function": {"name": "add", "arguments": "{"}}', "the arguments: not JSON: they end too early"),
    ],
)
def test_faults(output: str | Mapping[str, Any], message: str) -> None:
    judged = check(output)
    assert judged.status is Status.INVALID
    assert [finding.kind for finding in judged.findings] == ["tool-call"]
    assert message in judged.findings[0].message


def test_arguments_must_fit_the_tools_schema() -> None:
    judged = check('{"name": "add", "arguments": {"a": "1", "b": 2}}')
    assert judged.status is Status.INVALID
    assert {finding.kind for finding in judged.findings} == {"schema"}
    told = " ".join(finding.message for finding in judged.findings)
    assert "add" in told
    assert "a: '1' is not of type 'integer'" in told
    assert "'b' was unexpected" in told


def test_every_call_is_judged_and_every_finding_has_its_place() -> None:
    text = f'<tool_call>{CALL}</tool_call>\n<tool_call>{{"name": "ad", "arguments": {{}}}}</tool_call>\n\n  oops'
    assert [(f.line, f.column) for f in check(text).findings] == [(2, 1), (4, 3)]
    assert [(f.line, f.column) for f in check('{"name": "add",\n "arguments": {"a": 1,}}').findings] == [(2, 23)]


def test_a_tool_without_parameters_takes_any_arguments() -> None:
    assert check('{"name": "now", "arguments": {"zone": "UTC"}}').status is Status.VALID


def test_without_tools_names_and_arguments_are_free() -> None:
    assert check_tool_calls('{"name": "any", "arguments": {"a": []}}', None).status is Status.VALID


def test_a_message_whose_server_found_no_call_is_judged_by_its_content() -> None:
    assert (
        check({"role": "assistant", "content": f"<tool_call>{CALL}</tool_call>", "tool_calls": None}).form == "hermes"
    )


@pytest.mark.parametrize("tools", [[{}], [{"function": {}}], [{"function": "add"}], ["add"]])
def test_tools_must_have_names(tools: list[Any]) -> None:
    with pytest.raises(WorkloadError, match=r"tools\[0\] must be like"):
        check_tool_calls(CALL, tools)


@pytest.mark.parametrize("name", ["add", "another"])
def test_a_schema_that_is_none_is_the_users_error_whatever_is_called(name: str) -> None:
    with pytest.raises(InputError):
        check_tool_calls(CALL, [tool(name, parameters={"type": "integr"})])


def test_a_number_may_have_any_number_of_digits() -> None:
    text = f'{{"name": "now", "arguments": {{"x": {"1" * 9999}}}}}'
    assert check(f"<tool_call>{text}</tool_call>").status is Status.VALID


def test_messages_are_short_whatever_they_quote() -> None:
    many = [tool(f"a_tool_with_a_rather_long_name_{i}") for i in range(100)]
    (finding,) = check_tool_calls('{"name": "zzz", "arguments": {}}', many).findings
    assert len(finding.message) == 200
    (finding,) = check(json.dumps({"name": "add", "arguments": {"a": "x" * 1_000_000}})).findings
    assert len(finding.message) <= 200


# Values that are written without their types.


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "integer"}, "12", 12),
        ({"type": "integer"}, "twelve", "twelve"),
        ({"type": "number"}, "1.5e3", 1500.0),
        ({"type": "boolean"}, "True", True),
        ({"type": ["integer", "null"]}, "None", None),
        ({"type": "array"}, "[1, 2]", [1, 2]),
        ({"type": "object"}, '{"x": {}}', {"x": {}}),
        ({"type": "object"}, "{'x': 1}", "{'x': 1}"),
        ({"type": "object"}, '{"x": ', '{"x": '),
        ({"type": "string"}, "12", "12"),
        ({"type": ["string", "null"]}, "null", "null"),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "12", "12"),
        ({"oneOf": [{"type": "boolean"}, {"type": "integer"}]}, "12", 12),
        ({"$ref": "#/$defs/x"}, "[1]", [1]),
        ({}, "12", "12"),
        (True, "12", "12"),
    ],
)
def test_untyped_values_follow_the_schema(schema: Any, text: str, value: Any) -> None:
    f = tool("f", parameters={"type": "object", "properties": {"x": schema}, "$defs": {"x": {}}})
    (call,) = parse_tool_calls(f"<function=f><parameter=x>{text}</parameter></function>", [f])
    assert call.arguments == {"x": value}
    assert type(call.arguments["x"]) is type(value)


def test_a_value_keeps_its_own_lines() -> None:
    (call,) = parse_tool_calls("<function=f>\n<parameter=x>\n\n  two\nlines\n\n</parameter>\n</function>")
    assert call.arguments == {"x": "\n  two\nlines\n"}


# The token limit.


@given(ANY_RENDERED)
def test_a_cut_anywhere_is_no_fault(text: str) -> None:
    for end in range(len(text)):
        assert check_tool_calls(text[:end], None, "length").status is not Status.INVALID, text[:end]


@given(ANY_RENDERED)
def test_a_cut_without_the_limit_is_a_fault(text: str) -> None:
    first = check_tool_calls(text[: len(text) // 2], None, "length")
    if first.status is Status.TRUNCATED:
        assert check_tool_calls(text[: len(text) // 2], None, "stop").status is Status.INVALID


@pytest.mark.parametrize(
    ("output", "status"),
    [
        (CALL, Status.VALID),
        (f"<tool_call>{CALL}</tool_call><tool_", Status.TRUNCATED),
        ('<tool_call>{"name": "ad", "arguments": {}}</tool_call><tool_call>{"na', Status.INVALID),
        ("I would", Status.INVALID),
        ("<think>I would", Status.TRUNCATED),
        ({"tool_calls": [{"function": {"name": "add", "arguments": '{"a": 1'}}]}, Status.TRUNCATED),
        ({"tool_calls": [{"function": {"name": "add", "arguments": '{"a": 1'}}] * 2}, Status.INVALID),
        ('{"function": {"name": "add", "arguments": "{"}}', Status.INVALID),
    ],
)
def test_the_limit_excuses_only_what_it_cut(output: str | Mapping[str, Any], status: Status) -> None:
    assert check(output, "length").status is status


# Hostile text.


@given(st.lists(st.text(max_size=5) | MARKS | st.sampled_from(["{", "}", '"name": "add"', "[", "<parameter=", ">"])))
def test_any_text_is_judged(parts: list[str]) -> None:
    text = "".join(parts)
    for finish in ("stop", "length"):
        judged = check(text, finish)
        assert bool(judged.findings) is (judged.status is Status.INVALID)
        assert all(1 <= (f.line or 1) <= text.count("\n") + 1 for f in judged.findings)


@given(ANY_RENDERED, st.data())
def test_any_mutation_is_judged(text: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(at, min(len(text), at + 3)))
    mutated = text[:at] + data.draw(st.text(max_size=2) | MARKS) + text[end:]
    assert check(mutated).status in (Status.VALID, Status.INVALID)
    parse_tool_calls(mutated, TOOLS)


@given(VALUES)
def test_any_object_is_judged(value: Any) -> None:
    for output in ({"tool_calls": value}, {"content": value}, {"function": value}, {"tool_calls": [value, value]}):
        assert check(output).status is Status.INVALID


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a":' * 100_000,
        "<tool_call>" * 100_000,
        "<tool_call> " * 100_000 + "<function",
        "[TOOL_CALLS]" * 100_000,
        "[TOOL_CALLS]" + " " * 1_000_000,
        "</s> " * 200_000 + "x",
        "x" + "</s>" * 200_000,
        "```" * 300_000,
        "<" * 1_000_000,
        " " * 1_000_000,
        "</think>" * 100_000,
        "<function=f>" + "<parameter=x>1</parameter>" * 50_000,
        "<function=" + "f" * 1_000_000 + ">",
        json.dumps([{"name": "x", "arguments": {}}] * 100_000),
        '{"name": "' + "x" * 1_000_000 + '", "arguments": {}}',
        '{"name": "add", "arguments": {"a": ' + "1" * 100_000 + "}}",
        '{"name": "add", "arguments": {' + ", ".join(f'"k{i}": 1' for i in range(100_000)) + ', "k0": 1}}',
    ],
    ids=lambda text: repr(text[:16]),
)
def test_large_hostile_texts_are_judged_at_once(text: str) -> None:
    judged = check(text)
    assert judged.status is Status.INVALID
    assert len(judged.findings) <= 20
    assert all(len(finding.message) < 300 for finding in judged.findings)


def test_control_characters_do_not_reach_a_message() -> None:
    assert faults('{"name": "\x1b[2J", "arguments": {}}') == ["not JSON: a character or escape that no string may hold"]
    assert "\x1b" not in faults('{"name": "\\u001b[2J", "arguments": {}}')[0]
    assert "\x1b" not in faults(f"{CALL} \x1b[2J")[0]


# What the models of the shipped pack are asked for.


def test_the_packs_own_answers_are_valid() -> None:
    answers = [
        (m.content, p.tools) for p in load("tool-calls").prompts for m in p.messages or () if m.role == "assistant"
    ]
    assert len(answers) >= 10
    for text, tools in answers:
        assert check_tool_calls(text, tools).status is Status.VALID, text


@pytest.mark.parametrize(
    ("text", "whole", "cut"),
    [
        (CALL, Status.VALID, Status.VALID),
        ('```json\n{"name": "now", "arguments": {}}\n```', Status.VALID, Status.VALID),
        ('```\n{"name": "now", "arguments": {}}', Status.VALID, Status.VALID),
        ('{"name": "add", "argum', Status.INVALID, Status.TRUNCATED),
        ("```json", Status.INVALID, Status.TRUNCATED),
        ("", Status.INVALID, Status.TRUNCATED),
        ('{"name": "subtract", "arguments": {}}', Status.INVALID, Status.INVALID),
        ('{"name": "add", "arguments": []}', Status.INVALID, Status.INVALID),
        ("I would add them.", Status.INVALID, Status.INVALID),
    ],
)
def test_bare_answers(text: str, whole: Status, cut: Status) -> None:
    assert check(text).status is whole
    assert check(text, "length").status is cut
