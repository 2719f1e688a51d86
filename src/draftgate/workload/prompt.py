"""One prompt, a named list of them, and the JSONL form that users write."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from draftgate.errors import WorkloadError, nearest

__all__ = ["CHECK_NAMES", "ROLES", "Message", "Prompt", "Workload", "load_jsonl", "parse_jsonl"]

CHECK_NAMES = ("json", "json-prefix", "none", "python", "tool-call")
ROLES = ("assistant", "system", "tool", "user")


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: str
    content: str

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise WorkloadError(f"unknown role {self.role!r}; {nearest(self.role, ROLES)}")


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request: raw text to continue (`prompt`), or a conversation to answer (`messages`), never both.

    Attributes:
        id: unique within its workload; pairs the arms of a comparison.
        language: of the output, such as "python" or "json".
        workload: label when one file mixes several; otherwise the name of the `Workload` holds.
        max_tokens: output limit [tok]; None leaves it to the runner.
        tests: source that exercises the output, for a quality gate that runs code.
        schema: JSON Schema of the output.
        tools: the tools on offer, as `{"type": "function", "function": {"name": ..., ...}}`.
        check: how the output can be checked, one of `CHECK_NAMES`.

    Raises:
        WorkloadError: the fields contradict each other.
    """

    id: str
    prompt: str | None = None
    messages: tuple[Message, ...] | None = None
    language: str | None = None
    workload: str | None = None
    max_tokens: int | None = None
    tests: str | None = None
    schema: Mapping[str, Any] | None = None
    tools: tuple[Mapping[str, Any], ...] | None = None
    check: str | None = None

    def __post_init__(self) -> None:
        if (self.prompt is None) == (self.messages is None):
            raise WorkloadError("give exactly one of 'prompt' and 'messages'")
        if not (self.prompt or self.messages):
            raise WorkloadError("the prompt is empty; an engine needs at least one token to start from")
        if self.max_tokens is not None and self.max_tokens <= 0:
            raise WorkloadError(f"max_tokens must be at least 1 but got {self.max_tokens}")
        if self.check is not None and self.check not in CHECK_NAMES:
            raise WorkloadError(f"unknown check {self.check!r}; {nearest(self.check, CHECK_NAMES)}")
        if self.check == "tool-call" and not self.tools:
            raise WorkloadError("check 'tool-call' needs 'tools': list the tools that the output may name")


@dataclass(frozen=True, slots=True)
class Workload:
    """Prompts in the order they were written."""

    name: str
    prompts: tuple[Prompt, ...]


def load_jsonl(path: str | Path) -> Workload:
    """Read one prompt a line; keys are the fields of `Prompt`, blank lines are skipped.

    A prompt without an `id` is called after its line, "line-7". The workload is named after the file.

    Raises:
        WorkloadError: the file cannot be read, or a line is wrong; names the file and the line.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise WorkloadError(f"{path}: cannot read the workload: {error.strerror or error}") from error
    return parse_jsonl(data, path.stem, str(path))


def parse_jsonl(data: bytes, name: str, where: str) -> Workload:
    """Parse the bytes of a JSONL file; `where` opens every error message.

    >>> parse_jsonl(b'{"prompt": "def add(a, b):"}', "mine", "mine.jsonl").prompts[0].id
    'line-1'

    Raises:
        WorkloadError: as `load_jsonl`.
    """
    prompts: dict[str, Prompt] = {}
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            prompt = _prompt(_object(line), f"line-{number}")
            if prompt.id in prompts:
                raise WorkloadError(f"id {prompt.id!r} is used twice; give every prompt its own")
        except WorkloadError as error:
            raise WorkloadError(f"{where}:{number}: {error}") from error
        prompts[prompt.id] = prompt
    if not prompts:
        raise WorkloadError(f"{where}: no prompts; write one JSON object a line")
    return Workload(name, tuple(prompts.values()))


def _object(line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise WorkloadError(f"not UTF-8 at byte {error.start} of the line; save the file as UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise WorkloadError(f"not valid JSON ({error}); write one JSON object a line") from error
    if not isinstance(record, dict):
        raise WorkloadError(f"must be a JSON object but got {_kind(record)}")
    return record


def _prompt(record: Mapping[str, Any], default_id: str) -> Prompt:
    _refuse_unknown(record, _READERS)
    # An explicit null means the same as leaving the key out.
    known = {key: _READERS[key](key, value) for key, value in record.items() if value is not None}
    return Prompt(**{"id": default_id} | known)


def _refuse_unknown(record: Mapping[str, Any], valid: Iterable[str]) -> None:
    for key in record:
        if key not in valid:
            raise WorkloadError(f"unknown key {key!r}; {nearest(key, valid)}")


def _text(key: str, value: Any) -> str:
    _refuse_other(key, value, str)
    if not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
        raise WorkloadError(f"{key} holds half of a surrogate pair, which is not text; write the whole character")
    return str(value)


def _count(key: str, value: Any) -> int:
    _refuse_other(key, value, int)
    return int(value)


def _mapping(key: str, value: Any) -> Mapping[str, Any]:
    _refuse_other(key, value, dict)
    return dict(value)


def _messages(key: str, value: Any) -> tuple[Message, ...]:
    _refuse_other(key, value, list)
    return tuple(_message(f"{key}[{i}]", item) for i, item in enumerate(value))


def _message(where: str, item: Any) -> Message:
    _refuse_other(where, item, dict)
    valid = [field.name for field in fields(Message)]
    _refuse_unknown(item, valid)
    return Message(*(_text(f"{where}.{name}", item.get(name)) for name in valid))


def _tools(key: str, value: Any) -> tuple[Mapping[str, Any], ...]:
    _refuse_other(key, value, list)
    for i, tool in enumerate(value):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise WorkloadError(f'{key}[{i}] must be like {{"type": "function", "function": {{"name": ...}}}}')
    return tuple(value)


def _refuse_other(key: str, value: Any, kind: type) -> None:
    # type() and not isinstance(): true is not a number here.
    if type(value) is not kind:
        raise WorkloadError(f"{key} must be {_KINDS[kind]} but got {_kind(value)}")


def _kind(value: Any) -> str:
    return _KINDS.get(type(value), "null")


_KINDS = {
    bool: "true or false",
    dict: "an object",
    float: "a decimal number",
    int: "a whole number",
    list: "a list",
    str: "a string",
}
_READERS: Mapping[str, Callable[[str, Any], Any]] = {
    "id": _text,
    "prompt": _text,
    "messages": _messages,
    "language": _text,
    "workload": _text,
    "max_tokens": _count,
    "tests": _text,
    "schema": _mapping,
    "tools": _tools,
    "check": _text,
}
