"""What is known about an output before it is judged, and what judging it found."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from draftgate.errors import WorkloadError, nearest

__all__ = ["CHECKS", "Finding", "Judgement", "Reading", "Status", "Task", "place"]

CHECKS = ("json", "json-prefix", "none", "python", "tool-call")


class Status(StrEnum):
    """TRUNCATED: ended by the token limit, and a valid beginning as far as can be told."""

    VALID = "valid"
    INVALID = "invalid"
    TRUNCATED = "truncated"
    UNCHECKED = "unchecked"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong with an output; line and column count from 1 in the output, columns in characters.

    Attributes:
        kind: "syntax", "schema", "tool-call", "tests"; "encoding": not UTF-8, or a NUL; "empty": nothing was said;
            "duplicate-key"; "depth": nested deeper than parsers go; "unsafe": would expand to far more than it is;
            "limit": too large to look at, or the parser had to be stopped.
        message: one sentence, at most `MESSAGE_CHARS` characters; may quote the output, so it is hostile text.
        line: None where the place is not known, or lies in the prompt.
        column: None where it is not known.
    """

    kind: str
    message: str
    line: int | None = None
    column: int | None = None


@dataclass(frozen=True, slots=True)
class Judgement:
    """The result of judging one output.

    Attributes:
        checked: names of the checks that ran, such as ("python",) or ("json", "json-schema").
        findings: why it is not valid, the first few.
        form: how the answer was wrapped: "bare", "fenced" (Markdown), "prose" (JSON between sentences); for tool calls
            the name of their format; None when nothing was looked at.
    """

    status: Status
    checked: tuple[str, ...]
    findings: tuple[Finding, ...] = ()
    form: str | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """What one parser made of one text; `value` is what a data format holds, None for a program."""

    status: Status
    findings: tuple[Finding, ...] = ()
    value: Any = None


@dataclass(frozen=True, slots=True)
class Task:
    """What an output should be.

    Attributes:
        language: of the output, in any common spelling; one without a parser leaves it unchecked.
        schema: JSON Schema (draft 2020-12 unless `$schema` says otherwise) of a JSON, YAML or TOML output.
        tools: those on offer, as `{"type": "function", "function": {"name": ..., "parameters": SCHEMA}}`.
        tests: source that exercises the output. Judging does not run it.
        prefix: raw prompt text that the output continues; "" for an answer in a conversation.
        check: one of `CHECKS`; comes before the fields above. None decides by them: tools, then language, then schema.
        entry_point: the function under test.

    Raises:
        WorkloadError: no such check.
    """

    language: str | None = None
    schema: Mapping[str, Any] | None = None
    tools: tuple[Mapping[str, Any], ...] | None = None
    tests: str | None = None
    prefix: str = ""
    check: str | None = None
    entry_point: str | None = None

    def __post_init__(self) -> None:
        if self.check is not None and self.check not in CHECKS:
            raise WorkloadError(f"unknown check {self.check!r}; {nearest(self.check, CHECKS)}")


def place(text: str, offset: int) -> tuple[int, int]:
    """Line and column of an offset [characters], counted from 1.

    >>> place("ab\\ncd", 4)
    (2, 2)
    """
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)
