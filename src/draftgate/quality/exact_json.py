"""JSON (RFC 8259), exactly: whole, cut off anywhere, one value a line, or between sentences.

Stricter than `json.loads` in two ways: NaN and Infinity are no JSON, and a key that is given twice is refused, because
parsers differ in which value they keep (RFC 8259, section 4). A number may have any number of digits. Nesting is
limited by Python's recursion limit, about a thousand levels.
"""

import json
import re
import sys
from collections import Counter
from typing import Any, NoReturn

from draftgate.quality.judgement import Finding, Reading, Status, place

__all__ = ["is_prefix", "parse", "parse_embedded", "parse_lines"]


def parse(text: str, cut: bool) -> Reading:
    """Read one JSON value; with `cut`, a text that some continuation completes is TRUNCATED.

    >>> parse('[1, {"a": tr', cut=True).status.value
    'truncated'
    >>> parse("[1, 2,]", cut=False).findings[0]
    Finding(kind='syntax', message='expected a value', line=1, column=7)
    """
    try:
        return Reading(Status.VALID, value=_DECODER.decode(text))
    except _DuplicateKeyError as error:
        return Reading(Status.INVALID, (Finding("duplicate-key", str(error)),))
    except RecursionError:
        return _TOO_DEEP
    except ValueError as error:
        if _is_digits(error):
            return _with_long_numbers(text)
    return _broken(text, cut)


def parse_lines(text: str, cut: bool) -> Reading:
    """Read JSON Lines: one value a line, blank lines skipped; the value is the list of them."""
    values, lines = [], text.split("\n")
    for i, line in enumerate(lines):
        if line.strip():
            reading = parse(line, cut and i == len(lines) - 1)
            if reading.status is not Status.VALID:
                return Reading(reading.status, tuple(_on_line(finding, i + 1) for finding in reading.findings))
            values.append(reading.value)
    return Reading(Status.VALID, value=values)


def _on_line(finding: Finding, line: int) -> Finding:
    return Finding(finding.kind, finding.message, line, finding.column)


_TRIES = 64  # brackets that may open the value; later ones are not looked at


def parse_embedded(text: str, cut: bool) -> Reading | None:
    """The longest object or array between sentences; with `cut`, one that runs to the end if there is no whole one.

    >>> parse_embedded('See [1]: {"a": 1}. Done.', cut=False).value
    {'a': 1}

    Returns:
        None when there is none.
    """
    found, longest, at = None, 0, 0
    for _ in range(_TRIES):
        if not (start := _OPENER.search(text, at)):
            break
        try:
            value, at = _DECODER.raw_decode(text, start.start())
        except (ValueError, RecursionError):
            at = max(_scan(text, start.start())[0], start.end())
            if at == len(text):
                return Reading(Status.TRUNCATED) if cut and found is None else found
        else:
            if at - start.start() > longest:
                found, longest = Reading(Status.VALID, value=value), at - start.start()
    return found


class _DuplicateKeyError(ValueError):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise _DuplicateKeyError(f"the key {twice[:40]!a} is given twice")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise json.JSONDecodeError(f"{name} is not JSON", "", 0)


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_constant)
_LONG_NUMBERS = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_int=float)
_TOO_DEEP = Reading(Status.INVALID, (Finding("depth", "nested deeper than JSON parsers go"),))
_OPENER = re.compile(r"[\[{]")


def _is_digits(error: ValueError) -> bool:
    return not isinstance(error, json.JSONDecodeError)  # then int() refused more digits than sys.int_info allows


def _with_long_numbers(text: str) -> Reading:
    try:
        return Reading(Status.VALID, value=_LONG_NUMBERS.decode(text))
    except ValueError:
        return _broken(text, cut=False)


def _broken(text: str, cut: bool) -> Reading:
    at, expected = _scan(text)
    if at < 0:
        return _TOO_DEEP
    if cut and at == len(text):
        return Reading(Status.TRUNCATED)
    message = "the text ends before the value does" if at == len(text) else expected
    return Reading(Status.INVALID, (Finding("syntax", message, *place(text, at)),))


def is_prefix(text: str) -> bool:
    """Whether some continuation of `text` is one JSON value: one scan, a stack of open brackets.

    >>> [is_prefix(text) for text in ('[1, {"a": tr', "[1 2", '{"a": 1}}')]
    [True, False, False]
    """
    return _scan(text)[0] == len(text)


_VALUE = "sv{["  # kinds of token: s string, v other scalar, and each mark as itself
_STRING = r'"(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+'  # possessive: nothing is tried twice
_INTEGER = r"-?(?:0|[1-9][0-9]*+)"
_TOKEN = re.compile(
    rf'(?:(?P<s>{_STRING}")|(?P<mark>[][{{}}:,])'
    rf"|(?P<v>(?:{_INTEGER}(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?|true|false|null)(?![\w.+-])))[ \t\n\r]*+"
)
_CUT_STRING = re.compile(rf"{_STRING}(?:\\(?:u[0-9a-fA-F]{{0,3}})?\Z)?")
_CUT_SCALAR = re.compile(rf"-|{_INTEGER}(?:\.|(?:\.[0-9]+)?[eE][+-]?)|t(?:ru?)?|f(?:a(?:ls?)?)?|n(?:ul?)?")
_SPACE = re.compile(r"[ \t\n\r]*+")


def _scan(text: str, at: int = 0) -> tuple[int, str]:
    """How far the text from `at` on is the beginning of a JSON value, and what should stand there.

    Returns:
        The length of the text if it is one as a whole; -1 if it nests deeper than the recursion limit.
    """
    stack: list[str] = []
    expected, at = _VALUE, _SPACE.match(text, at).end()  # type: ignore[union-attr]  # an empty space matches, too
    while token := _TOKEN.match(text, at):
        kind = token["mark"] or str(token.lastgroup)
        if kind not in expected:
            return at, _wanted(expected)
        expected, at = _after(kind, expected, stack), token.end()
        if len(stack) > sys.getrecursionlimit():
            return -1, ""
    if "s" in expected and (string := _CUT_STRING.match(text, at)):
        return string.end(), "a character or escape that no string may hold"
    whole = "v" in expected and _CUT_SCALAR.fullmatch(text, at)
    return len(text) if whole else at, _wanted(expected)


def _after(kind: str, expected: str, stack: list[str]) -> str:
    """Kinds of token that may follow; opens and closes brackets on the stack."""
    if kind in "{[":
        stack.append(kind)
        return "s}" if kind == "{" else _VALUE + "]"
    if kind == ",":
        return "s" if stack[-1] == "{" else _VALUE
    if kind == ":":
        return _VALUE
    if kind == "s" and "v" not in expected:  # a key: only there may a string stand and a number not
        return ":"
    if kind in "}]":
        stack.pop()
    return {"{": ",}", "[": ",]"}[stack[-1]] if stack else ""


def _wanted(expected: str) -> str:
    key = "a key in double quotes" if expected.startswith("s") and "v" not in expected else ""
    names = ["a value" if "v" in expected else key, *(repr(mark) for mark in expected if mark in ":,]}")]
    return f"expected {' or '.join(filter(None, names))}" if expected else "text after the value"
