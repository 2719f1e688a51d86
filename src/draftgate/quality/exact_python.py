"""Python, by the parser of the running interpreter, and by tree-sitter where the syntax is newer than that.

Whole texts are decided as by `ast.parse`: no name, type or scope is looked at. When it refuses, syntax that came with
Python 3.12 to 3.14 is rewritten to older syntax (`older`) and it decides again, so the verdict does not depend on the
interpreter: PEP 695 and 696 (type parameters, `type` statements), PEP 701 (any expression in an f-string), PEP 750
(t-strings) and PEP 758 (`except A, B:`).

A text that the token limit cut is TRUNCATED when it parses but for its last line, as CPython's own interactive prompt
decides (`codeop`). An error in the last line of a cut text is not seen.
"""

import ast
import re
import sys
import warnings
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

from draftgate.errors import require
from draftgate.quality.judgement import Finding, Reading, Status

if TYPE_CHECKING:
    from tree_sitter import Language, Node, Query

__all__ = ["older", "parse"]

# Flags of compile(), as `codeop` passes them (CPython, Include/cpython/compile.h).
_DONT_IMPLY_DEDENT, _ALLOW_INCOMPLETE_INPUT = 0x200, 0x4000
_NEWEST = (3, 14)  # an interpreter of this version parses all that `older` rewrites


def parse(text: str, cut: bool) -> Reading:
    """Parse a module.

    >>> parse("def f[T](x: T) -> T:\\n    return x\\n", cut=False).status.value
    'valid'
    >>> parse("def f(x):\\n    return (x +\\n", cut=True).status.value
    'truncated'
    >>> parse("x = = 1", cut=False).findings
    (Finding(kind='syntax', message='invalid syntax', line=1, column=5),)
    """
    if sys.version_info < _NEWEST:
        _python()  # a missing extra is told at the first text, not at the first that does not parse
    try:
        reading = _parse(text, cut)
        if reading.status is Status.INVALID and (rewritten := older(text)) != text:
            return _parse(rewritten, cut)
    except RecursionError:
        return _TOO_DEEP
    return reading


_TOO_DEEP = Reading(Status.INVALID, (Finding("depth", "nested deeper than Python's parser goes"),))


def _parse(text: str, cut: bool) -> Reading:
    try:
        _compile(text)
    except SyntaxError as error:
        if cut and _is_beginning(text):
            return Reading(Status.TRUNCATED)
        return Reading(Status.INVALID, (_finding(error),))
    except MemoryError:  # its stack of rules is full
        return _TOO_DEEP
    return Reading(Status.VALID)


def _compile(text: str, flags: int = 0) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the code's own, such as an invalid escape: legal, so no failure
        compile(text, "<output>", "exec", ast.PyCF_ONLY_AST | flags, dont_inherit=True)


def _finding(error: SyntaxError) -> Finding:
    # At the end of the text there is no place: 0 lines, or column 0.
    return Finding("syntax", error.msg[:200], error.lineno or None, error.offset or None)


def _is_beginning(text: str) -> bool:
    """Whether only the end is missing: the parser asks for more behind the last whole line."""
    lines = text.split("\n")[:-1]
    while lines and lines[-1].endswith("\\"):  # joined to the line that is cut
        lines.pop()
    try:
        _compile("\n".join([*lines, ""]), _ALLOW_INCOMPLETE_INPUT | _DONT_IMPLY_DEDENT)
    except SyntaxError as error:
        return "incomplete input" in str(error)
    except MemoryError:
        return False
    return True


def older(text: str) -> str:
    """The text with syntax of Python 3.12 to 3.14 replaced by syntax of 3.11, line for line.

    >>> older("type Pair[T] = tuple[T, T]")
    '_  . Pair    = tuple[T, T]'
    """
    from tree_sitter import Parser, QueryCursor

    if sys.version_info >= _NEWEST or not _HINT.search(text):
        return text
    source = text.encode()
    found = QueryCursor(_newer()).captures(Parser(_python()).parse(source).root_node)
    # "type X = ..." becomes "_  . X = ...": an assignment, too.
    edits = [(node.start_byte, node.end_byte, b"_  .") for node in found.get("type", ())]
    edits += [_blanked(source, node.start_byte, node.end_byte) for node in found.get("parameters", ())]
    caught = sorted(found.get("caught", ()), key=lambda node: node.start_byte)  # captures come in no order
    for first, second in pairwise(caught):
        if first.parent == second.parent:  # not the last and the first of two clauses
            edits.append(_blanked(source, first.end_byte, second.end_byte))
    edits += [_plain_string(source, node) for node in found.get("string", ()) if _is_formatted(node)]
    return _edited(source, edits).decode()


_HINT = re.compile(r"\btype\b|\bexcept\b|\b(?:def|class)\s++\w++\s*+\[|\b[rR]?[fFtT][rR]?['\"]")  # cheaper than a tree


def _edited(source: bytes, edits: list[tuple[int, int, bytes]]) -> bytes:
    """An edit is start, end and what stands there instead; one inside another falls away."""
    parts, at = [], 0
    for start, end, new in sorted(edits):
        if start >= at:
            parts += [source[at:start], new]
            at = end
    return b"".join((*parts, source[at:]))


_NEWER = """
(function_definition type_parameters: (type_parameter) @parameters)
(class_definition type_parameters: (type_parameter) @parameters)
(type_alias_statement "type" @type)
(type_alias_statement left: (type (generic_type (type_parameter) @parameters)))
(except_clause value: (_) @caught)
(ERROR ["def" "class"] . (identifier) . (type_parameter) @parameters)
(ERROR "type" @type . (type (generic_type (type_parameter) @parameters)))
(string (interpolation)) @string
((string (string_start) @_start) @string (#match? @_start "^[rR]?[tT]"))
"""


@cache
def _python() -> "Language":
    language: type[Language] = require("tree_sitter", "quality").Language
    return language(require("tree_sitter_python", "quality").language())


@cache
def _newer() -> "Query":
    from tree_sitter import Query

    return Query(_python(), _NEWER)


def _blanked(source: bytes, start: int, end: int) -> tuple[int, int, bytes]:
    return start, end, bytes(byte if byte == 0x0A else 0x20 for byte in source[start:end])


def _plain_string(source: bytes, node: "Node") -> tuple[int, int, bytes]:
    """As long as the f-string where it has one line, as high where it has several."""
    lines = source.count(b"\n", node.start_byte, node.end_byte)
    width = node.end_byte - node.start_byte - 2
    return node.start_byte, node.end_byte, b'"""%b"""' % (b"\n" * lines) if lines else b'"%b"' % (b" " * width)


def _is_formatted(string: "Node") -> bool:
    """Whether a string with interpolations is whole, and each of them holds an expression."""
    return not string.has_error and all(map(_is_interpolation, _inside(string, "interpolation")))


def _is_interpolation(node: "Node") -> bool:
    expression = node.child_by_field_name("expression")
    conversion = node.child_by_field_name("type_conversion")
    specifier = node.child_by_field_name("format_specifier")
    return (
        (conversion is None or conversion.text in (b"!a", b"!r", b"!s"))
        and _is_expression(expression)
        and (specifier is None or all(map(_is_format, _inside(specifier, "format_expression"))))
    )


def _is_format(node: "Node") -> bool:
    return _is_expression(node.child_by_field_name("expression"))


def _is_expression(node: "Node | None") -> bool:
    return node is not None and node.text is not None and parse(f"({node.text.decode()}\n)", False).status == "valid"


def _inside(node: "Node", kind: str) -> "list[Node]":
    return [child for child in node.children if child.type == kind]
