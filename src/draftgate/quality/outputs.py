"""Outputs to be judged, from anywhere: JSONL, one object a line, read as a stream."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from draftgate.errors import WorkloadError, nearest
from draftgate.quality.judgement import Task
from draftgate.quality.languages import resolve
from draftgate.quality.scan import Broken, Cut, parse_json, short

__all__ = ["MAX_LINE_BYTES", "Output", "parse_output", "read_outputs"]

MAX_LINE_BYTES = 64 << 20  # the most that is held in memory of a file of any size


@dataclass(frozen=True, slots=True)
class Output:
    """One output and what is known about it.

    Attributes:
        id: as the line gives it, or "line-7".
        line: number of its line, from 1.
        said: the text, or a message object of the OpenAI API.
        finish: why the engine stopped, such as "stop" or "length"; None when unknown.
        task: what the output should be.
        objects: its tests use objects that stay in the program; see `draftgate.quality.humaneval.Problem`.
    """

    id: str
    line: int
    said: str | Mapping[str, Any]
    finish: str | None
    task: Task
    objects: bool = False


def read_outputs(
    lines: Iterable[bytes], where: str, language: str | None = None, schema: Mapping[str, Any] | None = None
) -> Iterator[Output]:
    """Parse lines one by one; blank ones are skipped.

    Args:
        lines: each at most `MAX_LINE_BYTES` long; the reader of a file should not hand on more.
        where: opens every error message.
        language: of lines that name none.
        schema: JSON Schema of lines that bring none, and whose outputs it can describe.

    Raises:
        WorkloadError: a line is wrong; names it.
    """
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield parse_output(line, number, language, schema)
        except WorkloadError as error:
            raise WorkloadError(f"{where}:{number}: {error}") from error


def parse_output(
    line: bytes, number: int = 1, language: str | None = None, schema: Mapping[str, Any] | None = None
) -> Output:
    """Parse one line; the other arguments are as in `read_outputs`.

    >>> parse_output(b'{"language": "json", "output": "{}"}').said
    '{}'

    Raises:
        WorkloadError: it is not a JSON object with an output, or a key is unknown or has a wrong value.
    """
    # An explicit null means the same as leaving the key out.
    record = {key: _READERS[key](key, value) for key, value in _object(line).items() if value is not None}
    if "output" not in record:
        raise WorkloadError("no output; every line needs the key 'output'")
    if "prefix" in record and "prompt" in record:
        raise WorkloadError("give one of 'prompt' and 'prefix', not both; they mean the same")
    if not isinstance(record["output"], str) and "tools" not in record:
        raise WorkloadError("an output that is an object is a message with tool calls; give 'tools', too")
    language = record.get("language", language)
    describes = "tools" not in record and (language is None or resolve(language) in _DATA)
    task = Task(
        language=language,
        schema=record.get("schema", schema if describes else None),
        tools=record.get("tools"),
        tests=record.get("tests"),
        prefix=record.get("prefix", record.get("prompt", "")),
        entry_point=record.get("entry_point"),
    )
    return Output(
        id=str(record.get("id", f"line-{number}")),
        line=number,
        said=record["output"],
        finish=record.get("finish"),
        task=task,
        objects=record.get("objects", False),
    )


def _object(line: bytes) -> Mapping[str, Any]:
    if len(line) > MAX_LINE_BYTES:
        raise WorkloadError(f"longer than {MAX_LINE_BYTES >> 20} MiB; write one JSON object a line")
    try:
        record = parse_json(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise WorkloadError(f"not UTF-8 at byte {error.start} of the line; save the file as UTF-8") from error
    except Broken as error:
        raise WorkloadError(f"{error}; write one JSON object a line") from error
    except Cut as error:
        raise WorkloadError("the JSON ends too early; write one JSON object a line") from error
    if not isinstance(record, dict):
        raise WorkloadError('must be a JSON object, such as {"language": "python", "output": "x = 1"}')
    for key in record:
        if key not in _READERS:
            raise WorkloadError(f"unknown key {short(key)}; {nearest(key[:100], _READERS)}")
    return record


def _is(called: str, *kinds: type) -> Callable[[str, Any], Any]:
    def read(key: str, value: Any) -> Any:
        if type(value) not in kinds:  # not isinstance(): true is no number here
            raise WorkloadError(f"{key} must be {called} but got {_KINDS[type(value)]}")
        return value

    return read


def _tools(key: str, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list) or not value:
        raise WorkloadError(f"{key} must be a list of at least one tool")
    return tuple(value)


_DATA = ("json", "jsonl", "toml", "yaml")
_KINDS = {bool: "true or false", dict: "an object", float: "a number", int: "a number", list: "a list", str: "a string"}
_text = _is("a string", str)
_READERS: Mapping[str, Callable[[str, Any], Any]] = {
    "entry_point": _text,
    "finish": _text,
    "id": _is("a string or a number", str, int),
    "language": _text,
    "objects": _is("true or false", bool),
    "output": _is("a string or a message object", str, dict),
    "prefix": _text,
    "prompt": _text,
    "schema": _is("an object", dict),
    "tests": _text,
    "tools": _tools,
}
