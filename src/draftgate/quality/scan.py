"""Reading marks, words and JSON values in a hostile text, one after the other from an offset.

Every function takes the text and an offset, steps over white space, and returns an offset. Two things can go wrong: the
text is broken here (`Broken`), or it ends too early and may yet become right (`Cut`). All time is linear in the text.
"""

import json
import re
from typing import Any, NoReturn

from draftgate.quality.exact_json import parse
from draftgate.quality.judgement import Reading, Status

__all__ = [
    "Broken",
    "Cut",
    "expect",
    "is_cut",
    "more",
    "name_in_tag",
    "parse_json",
    "read_json",
    "short",
    "skip",
    "word",
]


class Broken(ValueError):
    """No continuation makes the text right; `at` is where it breaks [characters], None where that cannot be said."""

    def __init__(self, message: str, at: int | None = None) -> None:
        super().__init__(message)
        self.at = at


class Cut(Exception):
    """The text ends inside what is read."""


# Possessive quantifiers (*+) never try a match again, so no text makes them slow.
_SPACE = re.compile(r"\s*+")
_NAME = re.compile(r"[^<>\n]*+")
_WORD = re.compile(r"\s*+([^\s\[\]{}]*+)\s*+")


def skip(text: str, at: int) -> int:
    """The offset after white space."""
    space = _SPACE.match(text, at)
    return space.end() if space else at


def expect(text: str, at: int, *marks: str) -> tuple[str, int]:
    """The one of the marks that stands next, and the offset after it.

    >>> expect("  [ARGS]{}", 0, "{", "[ARGS]")
    ('[ARGS]', 8)

    Raises:
        Broken: another text stands next.
        Cut: the text ends before or inside a mark.
    """
    at = skip(text, at)
    for mark in marks:
        if text.startswith(mark, at):
            return mark, at + len(mark)
    return _refuse(text, at, marks, f"expected {' or '.join(marks)}")


def more(text: str, at: int, *openers: str) -> bool:
    """Whether one of the openers stands next; if not, nothing may.

    Raises:
        Broken: another text stands next.
        Cut: the text ends inside an opener.
    """
    at = skip(text, at)
    if at < len(text) and not text.startswith(openers, at):
        _refuse(text, at, openers, "text after the call")
    return at < len(text)


def is_cut(text: str, at: int, *marks: str) -> bool:
    """Whether the text ends before or inside one of the marks."""
    left = len(text) - at
    return any(left < len(mark) and mark.startswith(text[at:]) for mark in marks)


def _refuse(text: str, at: int, marks: tuple[str, ...], problem: str) -> NoReturn:
    if is_cut(text, at, *marks):
        raise Cut
    raise Broken(f"{problem}: {short(text[at : at + 80])}", at)


def name_in_tag(text: str, at: int) -> tuple[str, int]:
    """The rest of a tag such as `<function=NAME>`, and the offset after it.

    Raises:
        Broken: a line or another tag begins before the tag is closed.
        Cut: the text ends before that.
    """
    name = _NAME.match(text, at)
    assert name  # an empty name matches, too
    if name.end() == len(text):
        raise Cut
    if text[name.end()] != ">":
        raise Broken(f"the tag is not closed by '>' after {short(name[0])}", at)
    return name[0], name.end() + 1  # as it stands: engines do not strip it, either


def word(text: str, at: int) -> tuple[str, int]:
    """Characters up to white space or a bracket, perhaps none, and the offset after them."""
    found = _WORD.match(text, at)
    assert found  # an empty word matches, too
    return found[1], found.end()


def read_json(text: str, at: int) -> tuple[Any, int]:
    """The JSON value that stands next, and the offset after it; as strict as `exact_json`.

    Raises:
        Broken: it is no JSON, names a key twice, or is nested too deeply.
        Cut: the text ends before the value does.
    """
    at = skip(text, at)
    try:
        _, end = _BOUNDS.raw_decode(text, at)
    except (ValueError, RecursionError):
        end = len(text)
    return _value(parse(text[at:end], cut=True), text, at), end


def parse_json(text: str) -> Any:
    """The JSON value that a whole text is.

    Raises:
        Broken: as `read_json`, or something follows the value.
        Cut: as `read_json`.
    """
    return _value(parse(text, cut=True), text, 0)


def _value(reading: Reading, text: str, at: int) -> Any:
    if reading.status is Status.TRUNCATED:
        raise Cut
    if reading.status is Status.VALID:
        return reading.value
    first = reading.findings[0]
    for _ in range(1, first.line or 1):
        at = text.index("\n", at) + 1
    problem = f"not JSON: {first.message}" if first.kind == "syntax" else first.message
    raise Broken(problem, at + (first.column or 1) - 1)


def short(text: str) -> str:
    r"""A hostile text in a message: quoted, escaped, and cut after 40 characters.

    >>> short("\n" + "a" * 80)
    "'\\naaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'..."
    """
    return ascii(text[:40]) + "..." * (len(text) > 40)


_BOUNDS = json.JSONDecoder(parse_int=float)  # finds where a value ends; int() refuses thousands of digits
