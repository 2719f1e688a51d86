"""Syntax by tree-sitter: is a text a program of its grammar, where not, and could it become one?

Grammars are looser than compilers here and stricter there; `benchmarks/validators.py` measures how far they agree. Any
text gets through them in a child process only (`worker`): they are C, and hostile texts make some of them overflow
their stack, take gigabytes, or run for minutes.

A text that the token limit cut is TRUNCATED when the parser takes all of it and fails at its end. That is exact for the
grammar: a GLR parser shifts no token that no program could have there. Where the end cuts a token in two, closing it is
tried, and leaving it out.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING

from draftgate.errors import require
from draftgate.quality.judgement import Finding, Reading, Status
from draftgate.quality.languages import GRAMMARS, Grammar

if TYPE_CHECKING:
    from tree_sitter import Language, LogType, Node

__all__ = ["MAX_FINDINGS", "parse"]

MAX_FINDINGS = 5


def parse(text: str, cut: bool, language: str) -> Reading:
    """Parse a text by the grammars of a language of `languages.GRAMMARS`.

    >>> parse("f(1;", False, "javascript").findings[0]
    Finding(kind='syntax', message="unexpected ';'", line=1, column=4)
    >>> parse("if (a) { f(", True, "java").status.value
    'truncated'

    Raises:
        MissingExtraError: tree-sitter or the grammar is not installed.
    """
    if language == "php" and "<?" in text:
        language = "php-page"
    source = text.encode()
    grammars = [_load(grammar) for grammar in GRAMMARS[language]]
    if not all(_tree(grammar, source).has_error for grammar in grammars):
        return Reading(Status.VALID)
    if cut and any(_is_beginning(grammar, source) for grammar in grammars):
        return Reading(Status.TRUNCATED)
    errors = _errors(_tree(grammars[0], source), source)
    findings = (_first_error(grammars[0], source), *islice(errors, MAX_FINDINGS - 1))
    return Reading(Status.INVALID, tuple(dict.fromkeys(filter(None, findings))))


@cache
def _load(grammar: Grammar) -> "Language":
    language: type[Language] = require("tree_sitter", "quality").Language
    return language(getattr(require(grammar.module, "quality"), grammar.function)())


def _tree(grammar: "Language", source: bytes) -> "Node":
    from tree_sitter import Parser

    return Parser(grammar).parse(source).root_node


def _errors(root: "Node", source: bytes) -> Iterator[Finding]:
    """ERROR and MISSING nodes in the order of the text."""
    nodes = [root]
    while nodes:
        node = nodes.pop()
        if node.is_missing:
            yield _finding(f"missing {node.type[:40]!a}", source, *node.start_point)
        elif node.is_error:
            yield _finding(
                f"does not parse: {_quoted(source, node.start_byte, node.end_byte)}", source, *node.start_point
            )
        elif node.has_error:
            nodes += reversed(node.children)


# Where parsing first fails is told by the parser's log alone: the tree shows how it recovered, often far from there.


class _Watch:
    """Reads the log up to the first error: `at` is the place of the token that does not fit, (row, byte column)."""

    def __init__(self) -> None:
        self.at: tuple[int, int] | None = None
        self._token = (0, 0)

    def __call__(self, kind: "LogType", message: str) -> None:
        if self.at is None:
            if message.startswith("lex_"):  # "lex_internal state:5, row:0, column:28"
                _, row, column = message.split(", ")
                self._token = int(row[4:]), int(column[7:])
            elif message.startswith("resume"):  # all ways to parse the text are stuck
                self.at = self._token


def _stuck(grammar: "Language", source: bytes) -> tuple[int, int] | None:
    """Where the first token that no program could have here is preceded by white space, if any; (row, byte column)."""
    from tree_sitter import Parser

    watch, view = _Watch(), memoryview(source)
    with suppress(ValueError):  # the callback has stopped it
        Parser(grammar, logger=watch).parse(
            lambda at, point: view[at:], progress_callback=lambda at, failed: watch.at is not None
        )
    return watch.at


def _first_error(grammar: "Language", source: bytes) -> Finding | None:
    if (at := _stuck(grammar, source)) is None:
        return None
    start = _offset(source, at)
    start += len(source[start:]) - len(source[start:].lstrip())
    if start == len(source):
        return _finding("the text ends too early", source, *_point(source, start))
    end = len(source) if (space := source.find(b" ", start)) < 0 else space
    return _finding(f"unexpected {_quoted(source, start, end)}", source, *_point(source, start))


def _is_beginning(grammar: "Language", source: bytes) -> bool:
    """Whether all tokens fit and the end does not, the last word perhaps left out: the end may have cut it."""
    words = source.rsplit(None, 1)
    return _fails_at_end(grammar, source.rstrip()) or _fails_at_end(grammar, words[0] if len(words) > 1 else b"")


def _fails_at_end(grammar: "Language", source: bytes) -> bool:
    if _takes_all(grammar, source, at := _stuck(grammar, source)):
        return True
    closed = (source + closer for closer in _closers(source, _offset(source, at or (0, 0))))
    return any(_takes_all(grammar, text, _stuck(grammar, text)) for text in closed)


def _takes_all(grammar: "Language", source: bytes, at: tuple[int, int] | None) -> bool:
    return at is None or at >= _point(source, len(source))


# Tokens that run on until they are closed, by the bytes that open them or stand right before the part that is cut.
_COMMENTS = ((b"/*", b"*/"), (b"<!--", b"-->"), (b"--[[", b"]]"), (b"=begin", b"\n=end\n"))
_STRINGS = (
    *((b'"""', b'"""'), (b"'''", b"'''"), (b'"', b'"'), (b"'", b"'"), (b"`", b"`"), (b"}", b'"')),
    *((b'#"', b'"#'), (b'R"', b')"'), (b"[[", b"]]"), (b"%w[", b"]")),
)
_HEREDOC = re.compile(rb"<<[-~<]?+['\"]?+(\w++)")
_REACH = 4  # bytes


def _closers(source: bytes, at: int) -> Iterator[bytes]:
    """What may close the token at an offset [bytes], which does not fit."""
    near = source[max(0, at - _REACH) : at] + source[at:].lstrip()[:_REACH]
    yield from (closer for opener, closer in _COMMENTS if source.rfind(opener) > source.rfind(closer))
    yield from (closer for opener, closer in _STRINGS if opener in near)
    yield from (b"\n%b\n" % word for word in _HEREDOC.findall(source, 0, at)[-1:])
    yield b";"  # CSS: without it, a property looks like a selector


def _point(source: bytes, offset: int) -> tuple[int, int]:
    return source.count(b"\n", 0, offset), offset - source.rfind(b"\n", 0, offset) - 1


def _offset(source: bytes, point: tuple[int, int]) -> int:
    lines = source.split(b"\n", point[0])
    return sum(map(len, lines[: point[0]])) + point[0] + point[1]


def _finding(message: str, source: bytes, row: int, column: int) -> Finding:
    start = _offset(source, (row, 0))
    return Finding("syntax", message, row + 1, len(source[start : start + column].decode(errors="replace")) + 1)


def _quoted(source: bytes, start: int, end: int) -> str:
    text = source[start : min(end, start + 80)].decode(errors="replace").split("\n")[0]
    return ascii(text[:40]) + "..." * (len(text) > 40)
