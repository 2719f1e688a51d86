"""Whether an output calls the tools on offer, and calls them right.

A call is valid when it is written in one of the formats of `callformats`, names a tool that was offered, and its
arguments fit the tool's JSON Schema. Whether it was the right tool to call is no question for a parser.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

from draftgate.errors import WorkloadError, nearest
from draftgate.quality.callformats import Reading, Written, read
from draftgate.quality.judgement import Finding, Judgement, Status, place
from draftgate.quality.scan import Broken, Cut, parse_json, short
from draftgate.quality.schema import check_schema, schema_findings

__all__ = ["ToolCall", "check_tool_calls", "parse_tool_calls"]

_MAX_FINDINGS = 20  # a hostile output can hold a million wrong calls
_MAX_MESSAGE = 200  # characters


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool's name and its arguments by parameter."""

    name: str
    arguments: Mapping[str, Any]


def parse_tool_calls(
    output: str | Mapping[str, Any], tools: Sequence[Mapping[str, Any]] | None = None
) -> list[ToolCall]:
    """The well-formed calls of an output, in order; what is wrong with the rest, `check_tool_calls` says.

    Args:
        output: a text in any format of `callformats`, or a message object of the OpenAI API.
        tools: those on offer. The qwen3-coder format writes values without types; without the tools they stay text.

    >>> parse_tool_calls('{"name": "add", "arguments": {"a": 1}}')
    [ToolCall(name='add', arguments={'a': 1})]

    Raises:
        WorkloadError: a tool without a name.
    """
    schemas = _schemas(tools)
    reading = read(_said(output))
    calls = []
    for written in reading.calls:
        with suppress(Broken):
            calls.append(_tool_call(written, schemas))
    return calls


def check_tool_calls(
    output: str | Mapping[str, Any], tools: Sequence[Mapping[str, Any]] | None, finish: str | None = None
) -> Judgement:
    """Judge the calls of an output.

    Args:
        output: as in `parse_tool_calls`.
        tools: those on offer, as `{"type": "function", "function": {"name": ..., "parameters": SCHEMA}}`; None leaves
            names and arguments unchecked. A tool without `parameters` takes any arguments.
        finish: why the engine stopped; "length" means that the token limit cut the output.

    Returns:
        VALID: at least one call, all of them right. TRUNCATED: cut inside a call, and nothing wrong before. INVALID:
        anything else, no call at all included. `form` names the format; a cut call is judged by its beginning alone.

    Raises:
        WorkloadError: a tool without a name, or with a schema that is none.

    >>> tools = [{"type": "function", "function": {"name": "add"}}]
    >>> judgement = check_tool_calls('[TOOL_CALLS]ad[ARGS]{"a": 1}', tools)
    >>> str(judgement.status), judgement.form, judgement.findings[0].message
    ('invalid', 'mistral-v11', "unknown tool 'ad'; did you mean 'add'?")
    """
    schemas = _schemas(tools)
    said = _said(output)
    reading = read(said)
    text = said if isinstance(said, str) else ""
    findings = tuple(islice(_findings(reading, schemas, text, finish == "length"), _MAX_FINDINGS))
    cut = reading.cut and finish == "length"
    status = Status.INVALID if findings else Status.TRUNCATED if cut else Status.VALID
    return Judgement(status, ("tool-call",), findings, reading.form)


def _said(output: str | Mapping[str, Any]) -> str | Mapping[str, Any]:
    """The part of an output that may hold calls: a message without any says it all in its content."""
    if isinstance(output, Mapping) and not output.get("tool_calls") and isinstance(output.get("content"), str):
        return str(output["content"])
    return output


_Schemas = Mapping[str, Any] | None  # parameters by tool; None: any tool will do


def _schemas(tools: Sequence[Mapping[str, Any]] | None) -> _Schemas:
    return None if tools is None else dict(_declared(i, tool) for i, tool in enumerate(tools))


def _declared(i: int, tool: Mapping[str, Any]) -> tuple[str, Any]:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise WorkloadError(f'tools[{i}] must be like {{"type": "function", "function": {{"name": ...}}}}')
    if (parameters := function.get("parameters")) is not None:
        check_schema(parameters)  # of every tool: whether one is refused must not depend on the output
    return function["name"], parameters


def _findings(reading: Reading, schemas: _Schemas, text: str, limited: bool) -> Iterator[Finding]:
    for written in reading.calls:
        for kind, message in _faults(written, schemas):
            yield _finding(kind, message, text, written.at)
    if reading.broken:
        yield _finding("tool-call", str(reading.broken), text, reading.broken.at)
    elif reading.cut and not limited and reading.form:
        yield _finding("tool-call", "the output ends inside a call", text, len(text) or None)
    elif not reading.calls and not (reading.cut and limited):
        yield Finding("tool-call", "no tool call")


def _finding(kind: str, message: str, text: str, at: int | None) -> Finding:
    line, column = (None, None) if at is None else place(text, at)
    return Finding(kind, message[:_MAX_MESSAGE], line, column)


def _faults(written: Written, schemas: _Schemas) -> Iterator[tuple[str, str]]:
    """What is wrong with one complete call: (kind, message) each."""
    try:
        call = _tool_call(written, schemas)
    except Broken as error:
        yield "tool-call", str(error)
        return
    if schemas is None:
        return
    if call.name not in schemas:
        yield "tool-call", f"unknown tool {short(call.name)}; {nearest(call.name[:100], schemas)}"
    elif schemas[call.name] is not None:
        for finding in schema_findings(schemas[call.name], call.arguments):
            yield "schema", f"{call.name}: {finding.message}"


def _tool_call(written: Written, schemas: _Schemas) -> ToolCall:
    call = written.value
    if not isinstance(call, Mapping):
        raise Broken("a call must be an object with a name and arguments")
    name, arguments = call.get("name"), call.get("arguments")
    if not isinstance(name, str) or not name:
        raise Broken("a call must have a name")
    if not isinstance(arguments, Mapping):
        raise Broken(f"the arguments of {short(name)} must be an object")
    if written.form == "qwen3-coder":
        arguments = {key: _typed(text, _schema_of(key, name, schemas)) for key, text in arguments.items()}
    return ToolCall(name, arguments)


def _schema_of(key: str, name: str, schemas: _Schemas) -> Any:
    parameters = (schemas or {}).get(name)
    properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
    return properties.get(key) if isinstance(properties, Mapping) else None


def _typed(text: str, schema: Any) -> Any:
    """A value that was written without its type: text where the schema admits text, else JSON if it is JSON."""
    if _admits_text(schema):
        return text
    word = text.strip().lower()
    with suppress(Broken, Cut):
        return parse_json(_WORDS.get(word, text))
    return text


def _admits_text(schema: Any) -> bool:
    if not isinstance(schema, Mapping):
        return True
    if "type" in schema:
        types = schema["type"]
        return types == "string" or (isinstance(types, list) and "string" in types)
    choices = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(choices, list):
        return any(_admits_text(choice) for choice in choices)
    return "$ref" not in schema  # what it refers to is most often an object


_WORDS = {"true": "true", "false": "false", "null": "null", "none": "null"}  # as Python writes them, too
