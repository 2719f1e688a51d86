"""Is the text inside a string or a comment? An incremental scanner over bytes.

What opens and closes a string or a comment is the language's table, from `syntax`; here is the stack of open regions.
Bytes that may still become a longer delimiter (`"` on the way to three of them) are held back until the next bytes
decide, so the state never depends on how the text was cut into tokens.
"""

import re
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from draftgate.policy.syntax import Region, State, Syntax, canonical, syntax

__all__ = ["Lexer", "classify"]

_ATOM = re.compile(rb"\\x[0-9a-f]{2}|\\.|\[(?:\\.|[^\]\\])+\]|.", re.DOTALL)
_LOOK_BEHIND = 2  # bytes; the longest `Region.after`
_SKIP, _CLOSE = 0, 1


class _Mode(NamedTuple):
    """One region, compiled. Group 1 of `partial` is a delimiter cut off by the end; group n + 2 does `actions[n]`."""

    state: State
    partial: re.Pattern[bytes]
    final: re.Pattern[bytes]
    actions: tuple[int | str, ...]  # _SKIP, _CLOSE or the region to open


def _prefixes(pattern: bytes) -> bytes:
    """Pattern of a delimiter that the end of the text cut off."""
    *atoms, _ = _ATOM.findall(pattern)
    return b"(?:".join(atoms) + b")?" * (len(atoms) - 1) + rb"\Z" if atoms else b"(?!)"


def _compile(region: Region, table: Syntax) -> _Mode:
    opens = [(table[name].after, d, name) for name in region.inside for d in table[name].opens]
    rules: list[tuple[bytes, bytes, int | str]]
    rules = [*((b"", d, _CLOSE) for d in region.closes), *((b"", d, _SKIP) for d in region.skips), *opens]
    rules.sort(key=lambda rule: -len(_ATOM.findall(rule[1])))
    held = b"|".join(after + _prefixes(delimiter) for after, delimiter, _ in rules) or b"(?!)"
    whole = b"|".join(b"(%b%b)" % (after, delimiter) for after, delimiter, _ in rules) or b"(?!)"
    actions = tuple(action for _, _, action in rules)
    return _Mode(region.state, re.compile(b"(%b)|%b" % (held, whole)), re.compile(b"((?!))|" + whole), actions)


@cache
def _modes(language: str) -> dict[str, _Mode]:
    table = syntax(language)
    return {name: _compile(region, table) for name, region in table.items()}


class Lexer:
    """Where a text stands: `feed` it bytes, read `state`; `fork` to look ahead without committing.

    >>> lexer = Lexer("python")
    >>> lexer.feed(b"total = 'a")
    >>> lexer.state.name
    'STRING'

    Raises:
        ConfigError: no such language.
    """

    __slots__ = ("_edge", "_modes", "_next", "_seen", "_stack", "_text")

    def __init__(self, language: str | None) -> None:
        self._modes = _modes(canonical(language))
        self._stack: tuple[_Mode, ...] = (self._modes["code"],)
        self._text = b""  # look-behind, then the bytes held back
        self._next = 0  # index in _text of the first byte held back
        self._seen = 0  # bytes fed so far
        self._edge = 0  # how many of them lie before the last change of state

    def feed(self, data: bytes) -> None:
        """Commit the next bytes of the text."""
        self._text += data
        self._seen += len(data)
        self._stack, self._next, self._edge = self._scan(final=False)
        cut = max(self._next - _LOOK_BEHIND, 0)
        self._text, self._next = self._text[cut:], self._next - cut

    def fork(self) -> Self:
        """An independent copy at the same place."""
        twin = object.__new__(type(self))
        twin._modes, twin._stack, twin._text = self._modes, self._stack, self._text
        twin._next, twin._seen, twin._edge = self._next, self._seen, self._edge
        return twin

    @property
    def state(self) -> State:
        """State of the next byte, should the text go on with a byte that is part of no delimiter."""
        return self.mark()[0]

    def mark(self) -> tuple[State, int, int]:
        """State; bytes seen; how many of them lie before the last change of state."""
        if self._next == len(self._text):
            return self._stack[-1].state, self._seen, self._edge
        stack, _, edge = self._scan(final=True)
        return stack[-1].state, self._seen, edge

    def _scan(self, final: bool) -> tuple[tuple[_Mode, ...], int, int]:
        """Read from `_next` on: the stack, the index of the first byte held back (none if `final`), and the edge."""
        stack, at, edge, text = self._stack, self._next, self._edge, self._text
        while match := (stack[-1].final if final else stack[-1].partial).search(text, at):
            group = match.lastindex or 1
            if group == 1:
                return stack, match.start(), edge
            at, before = match.end(), stack[-1]
            action = before.actions[group - 2]
            if action == _CLOSE:
                stack = stack[:-1]
            elif isinstance(action, str):
                stack = (*stack, self._modes[action])
            if stack[-1].state is not before.state:
                edge = self._seen - len(text) + at
        return stack, len(text), edge


def classify(
    lexer: Lexer, tokens: Sequence[int], pieces: Sequence[bytes], table: NDArray[np.uint8]
) -> NDArray[np.uint8]:
    """Category of each drafted token [k], given the text committed to `lexer`, which is left as it is.

    A token that lies in one string or one comment from its first byte to its last has that class. A token that crosses
    into one, out of one or between two is judged by its bytes, as in plain code: a quote stays STRUCTURAL, a newline
    that ends a comment stays SPACE, an opener of comments is COMMENT. A token without bytes, such as an end marker, is
    OTHER everywhere.

    Args:
        tokens: token ids, each judged on the draft before it.
        pieces: decoded bytes of every token [V]; b"" for control tokens.
        table: `category.category_table` of the same pieces and language [V].
    """
    probe = lexer.fork()
    categories = table[np.asarray(tokens, np.intp)]
    state, start, _ = probe.mark()
    for i, token in enumerate(tokens):
        piece = pieces[token]
        probe.feed(piece)
        after, end, edge = probe.mark()
        if piece and state is not State.CODE and edge <= start:
            categories[i] = state
        state, start = after, end
    return categories
