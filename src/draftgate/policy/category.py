"""Token classes by table: one pass over the vocabulary's bytes, then a token's class is a look-up.

Classes come from decoded bytes, never from a tokenizer's raw pieces, which write spaces and newlines as marks of their
own. Strings and comments depend on the text before a token; `lexer.classify` adds them to what the table says.
"""

import keyword
import re
from collections.abc import Mapping, Sequence
from enum import IntEnum, IntFlag
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from draftgate.policy.syntax import State, canonical, syntax

__all__ = ["GROUPS", "ByteClass", "Category", "category_table", "class_bits"]


class Category(IntEnum):
    """What a token is; values are stored in traces and never change."""

    WORD = 0  # identifiers, prose
    KEYWORD = 1
    NUMBER = 2
    OPERATOR = 3  # and punctuation that delimits nothing in its language
    STRUCTURAL = 4  # brackets, separators, quotes, tags: what a parser holds on to
    SPACE = 5  # nothing but white space
    STRING = 6
    COMMENT = 7
    OTHER = 8  # control tokens, and pieces that hold control bytes or part of a character


GROUPS: Mapping[Category, str] = MappingProxyType(
    dict.fromkeys(Category, "normal")
    | {Category.SPACE: "safe", Category.COMMENT: "safe", Category.STRUCTURAL: "structural"}
)
"""Threshold group of each category: the three classes of the method's source article (thresholds .55, .65 and .80).

safe: SPACE and COMMENT. A wrong one changes no value and seldom the parse. Languages whose white space is syntax are
handled one level down: in YAML it is STRUCTURAL by table. Python's indentation is safe because the article says so.
structural: STRUCTURAL. One wrong bracket or quote makes the whole output useless.
normal: the rest. STRING is here and not in safe, because in structured outputs the strings are the payload.

That structural tokens need the stricter threshold is the article's claim, not a law: a draft can get them right more
often than words. Measure first.
"""


class ByteClass(IntFlag):
    """Kinds of byte; as fine as some language needs, and few enough for a uint16."""

    LETTER = 1  # and underscore
    DIGIT = 2
    BLANK = 4
    NEWLINE = 8
    BRACKET = 16
    SEPARATOR = 32
    QUOTE = 64
    BACKTICK = 128
    ANGLE = 256
    SLASH = 512
    DASH = 1024
    HASH = 2048
    MARK = 4096  # the other printable ones
    HIGH = 8192  # part of a character beyond ASCII
    CONTROL = 16384


_BYTES: Mapping[ByteClass, bytes] = {
    ByteClass.LETTER: b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_",
    ByteClass.DIGIT: b"0123456789",
    ByteClass.BLANK: b" \t",
    ByteClass.NEWLINE: b"\n\v\f\r",
    ByteClass.BRACKET: b"()[]{}",
    ByteClass.SEPARATOR: b",;:",
    ByteClass.QUOTE: b"\"'",
    ByteClass.BACKTICK: b"`",
    ByteClass.ANGLE: b"<>",
    ByteClass.SLASH: b"/",
    ByteClass.DASH: b"-",
    ByteClass.HASH: b"#",
    ByteClass.MARK: b"!$%&*+.=?@\\^|~",
    ByteClass.HIGH: bytes(range(0x80, 0x100)),
}


def _byte_bits() -> NDArray[np.uint16]:
    bits = np.full(256, ByteClass.CONTROL, np.uint16)
    for kind, members in _BYTES.items():
        bits[list(members)] = kind
    return bits


_BYTE_BITS = _byte_bits()
_SPACE = ByteClass.BLANK | ByteClass.NEWLINE
_PUNCTUATION = ByteClass.BRACKET | ByteClass.SEPARATOR | ByteClass.QUOTE
_TAGS = ByteClass.ANGLE | ByteClass.SLASH | ByteClass.QUOTE
_RISING: Sequence[tuple[ByteClass, Category]] = (  # by risk: a later row overrides an earlier one
    (_SPACE, Category.SPACE),
    (ByteClass.DIGIT, Category.NUMBER),
    (ByteClass.LETTER | ByteClass.HIGH, Category.WORD),
    (_PUNCTUATION | _TAGS | ByteClass.BACKTICK | ByteClass.DASH | ByteClass.HASH | ByteClass.MARK, Category.OPERATOR),
    (ByteClass.CONTROL, Category.OTHER),
)
_STRUCTURAL: Mapping[str, ByteClass] = {
    **dict.fromkeys(("c", "cpp", "java", "json", "python", "rust", "sql"), _PUNCTUATION),
    **dict.fromkeys(("go", "javascript", "shell", "typescript"), _PUNCTUATION | ByteClass.BACKTICK),
    "html": _TAGS,
    "markdown": ByteClass.BRACKET | ByteClass.BACKTICK | ByteClass.HASH,
    "prose": ByteClass.BRACKET,  # text without a label may hold code, and prose has few brackets
    "xml": _TAGS,
    "yaml": _PUNCTUATION | ByteClass.DASH | ByteClass.NEWLINE,
}

_C = """break case char const continue default do double else enum extern float for goto if
        inline int long register return short signed sizeof static struct switch typedef union unsigned void
        volatile while"""
_JAVASCRIPT = """async await break case catch class const continue debugger default delete do else export
        extends false finally for from function if import in instanceof let new null of return static super
        switch this throw true try typeof undefined var void while with yield"""
_KEYWORDS: Mapping[str, str] = {
    "c": _C,
    "cpp": f"""{_C} auto bool catch class constexpr decltype delete explicit false final friend mutable
        namespace new noexcept nullptr operator override private protected public static_cast template this
        throw true try typename using virtual""",
    "go": """break case chan const continue default defer else fallthrough false for func go goto if
        import interface map nil package range return select struct switch true type var""",
    "java": """abstract assert boolean break byte case catch char class const continue default do
        double else enum extends false final finally float for if implements import instanceof int interface
        long native new null package private protected public record return short static strictfp super switch
        synchronized this throw throws transient true try var void volatile while yield""",
    "javascript": _JAVASCRIPT,
    "json": "false null true",
    "python": " ".join(keyword.kwlist),
    "rust": """as async await break const continue crate dyn else enum extern false fn for if impl in
        let loop match mod move mut pub ref return self Self static struct super trait true type unsafe use
        where while""",
    "shell": "case do done elif else esac export fi for function if in local return select then until while",
    "sql": """add all alter and as asc between by case check column constraint create cross default
        delete desc distinct drop else end exists foreign from full group having in index inner insert into is
        join key left like limit not null offset on or order outer primary references right select set table
        then union unique update values view when where with""",
    "typescript": f"""{_JAVASCRIPT} abstract any as boolean declare enum implements interface keyof namespace
        never number private protected public readonly string type unknown""",
    "yaml": "false null true",
}


def class_bits(pieces: Sequence[bytes]) -> NDArray[np.uint16]:
    """ByteClass bits of the bytes in each piece, [V]; 0 for an empty piece."""
    lengths = np.fromiter(map(len, pieces), np.intp, len(pieces))
    bits = np.zeros(len(pieces), np.uint16)
    filled = lengths > 0
    if filled.any():
        flat = np.frombuffer(b"".join(pieces), np.uint8)
        bits[filled] = np.bitwise_or.reduceat(_BYTE_BITS[flat], (lengths.cumsum() - lengths)[filled])
    return bits


def category_table(pieces: Sequence[bytes], language: str | None) -> NDArray[np.uint8]:
    """Category of every token in code of `language` (None is prose), [V], from its decoded bytes.

    A piece often spans classes, and the riskiest wins: comment delimiters, then STRUCTURAL, OTHER, OPERATOR, KEYWORD
    (the whole piece, space aside), WORD, NUMBER, SPACE. A piece that starts with what opens a comment or ends with what
    closes one is COMMENT. The empty piece is OTHER: pass it for control tokens.

    Raises:
        ConfigError: no such language.
    """
    language = canonical(language)
    bits, structural = class_bits(pieces), _STRUCTURAL[language]
    table = np.full(len(pieces), Category.OTHER, np.uint8)
    for mask, category in _RISING:
        table[bits & mask != 0] = category
    bare = [piece.strip() for piece in pieces]
    keywords = frozenset(_KEYWORDS.get(language, "").encode().split())
    table[[piece in keywords for piece in _folded(bare, language)]] = Category.KEYWORD
    table[_undecodable(pieces, bits)] = Category.OTHER
    table[bits & structural != 0] = Category.STRUCTURAL
    if ByteClass.NEWLINE in structural:
        table[table == Category.SPACE] = Category.STRUCTURAL  # then so is indentation
    delimiter = _comment_delimiter(language)
    table[[delimiter.match(piece) is not None for piece in bare]] = Category.COMMENT
    return table


def _folded(pieces: Sequence[bytes], language: str) -> Sequence[bytes]:
    """SQL writes its keywords in any case."""
    return [piece.lower() for piece in pieces] if language == "sql" else pieces


def _undecodable(pieces: Sequence[bytes], bits: NDArray[np.uint16]) -> list[int]:
    """Tokens that hold part of a character, or bytes of none."""
    return [i for i in np.flatnonzero(bits & ByteClass.HIGH).tolist() if not _decodes(pieces[i])]


def _decodes(piece: bytes) -> bool:
    try:
        piece.decode()
    except UnicodeDecodeError:
        return False
    return True


def _comment_delimiter(language: str) -> re.Pattern[bytes]:
    comments = [region for region in syntax(language).values() if region.state is State.COMMENT]
    opens = [region.after + delimiter for region in comments for delimiter in region.opens]
    closes = [rb".*%b\Z" % delimiter for region in comments for delimiter in region.closes if delimiter != rb"\n"]
    return re.compile(b"|".join(opens + closes) or b"(?!)", re.DOTALL)
