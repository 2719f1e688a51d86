r"""Where a language has its strings and comments: a language is a table of regions, not a class.

A region says what opens it, what closes it, what is stepped over and which regions may open inside it. Strings,
comments, `${}` holes, nested comments and XML tags are all regions; `lexer` keeps a stack of them.

The tables serve a threshold, not a compiler. What they leave out, by language:
    python      an f-string's format spec counts as code, quotes too; comments inside a replacement field
    javascript  (and typescript) a regular expression after a keyword or brace; apostrophes in JSX text, to line end
    rust        raw strings with more than three hashes; a plain character literal such as 'x' counts as code
    cpp         raw strings with a delimiter of their own
    sql         backslash escapes, dollar quoting, nested comments (dialects disagree); "names" count as strings
    html        upper-case SCRIPT and STYLE; an event handler's JavaScript is an attribute, so a string
    yaml        block scalars (| and >) and quotes after a tag or an anchor count as code; `[ "` within plain text
    shell       here-documents (their text counts as code), backticks, `${}` inside double quotes
    markdown    fenced and inline code is verbatim text, so a string, whatever language it holds
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cache

from draftgate.errors import ConfigError, nearest

__all__ = ["Region", "State", "Syntax", "canonical", "language_names", "syntax"]


class State(IntEnum):
    """What the next byte belongs to. STRING and COMMENT have the values of `category.Category`: a state is a class."""

    CODE = 0
    STRING = 6
    COMMENT = 7


@dataclass(frozen=True, slots=True)
class Region:
    """A stretch of text with its own rules.

    Delimiters are byte patterns of fixed length: literals, escapes and `[classes]`, no quantifiers or groups. Where
    several match, the longest wins.

    Attributes:
        opens: what starts the region, inside a region that allows it.
        closes: what ends it.
        skips: what is stepped over, such as an escaped quote.
        inside: names of regions that may start in it.
        after: look-behind of at most two bytes that must hold where the region opens.
    """

    state: State
    opens: tuple[bytes, ...] = ()
    closes: tuple[bytes, ...] = ()
    skips: tuple[bytes, ...] = ()
    inside: tuple[str, ...] = ()
    after: bytes = b""


Syntax = Mapping[str, Region]  # region name -> region; "code" is where a text starts

_ESCAPE = rb"\\[\s\S]"


def _line(*opens: bytes) -> Region:
    return Region(State.COMMENT, opens, (rb"\n",))


def _block(opens: bytes, closes: bytes) -> Region:
    return Region(State.COMMENT, (opens,), (closes,))


def _string(mark: bytes, *opens: bytes, skip: bytes = _ESCAPE, multiline: bool = False) -> Region:
    """A string from `opens` (default: the mark) to the mark; without `multiline` a newline ends it, closed or not."""
    return Region(State.STRING, opens or (mark,), (mark,) if multiline else (mark, rb"\n"), (skip,))


def _syntax(skips: tuple[bytes, ...] = (), /, **regions: Region) -> Syntax:
    """A syntax in which each of `regions` may open in code."""
    return {"code": Region(State.CODE, skips=skips, inside=tuple(regions)), **regions}


def _with_holes(table: Syntax, strings: Mapping[str, Region], opens: bytes, pair: bytes, without: str = "") -> Syntax:
    """Add strings with holes of code in them, from `opens` to the end of `pair`; balanced pairs may lie in the hole."""
    first, last = (re.escape(pair[i : i + 1]) for i in (0, 1))
    code = (*table["code"].inside, *strings)
    inside = (*(name for name in code if name != without), "pair")
    return {
        **table,
        "code": replace(table["code"], inside=code),
        **{name: replace(region, inside=("hole",)) for name, region in strings.items()},
        "hole": Region(State.CODE, (opens,), (last,), inside=inside),
        "pair": Region(State.CODE, (first,), (last,), inside=inside),
    }


def _python() -> Syntax:
    def formatted(mark: bytes, multiline: bool) -> Region:
        opens = (rb"[fFtT]" + mark, rb"[fFtT][rR]" + mark)
        text = _string(mark, *opens, skip=rb"\\[^{]", multiline=multiline)
        return replace(text, skips=(*text.skips, rb"\{\{", rb"\\N\{"))

    plain = _syntax(
        comment=_line(rb"#"),
        double3=_string(rb'"""', multiline=True),
        single3=_string(rb"'''", multiline=True),
        double=_string(rb'"'),
        single=_string(rb"'"),
    )
    marks = {"f_double3": rb'"""', "f_single3": rb"'''", "f_double": rb'"', "f_single": rb"'"}
    strings = {name: formatted(mark, name.endswith("3")) for name, mark in marks.items()}
    return _with_holes(plain, strings, rb"\{", b"{}", without="comment")  # `#` in a hole is a format spec: {x:#x}


def _c_like(**more: Region) -> Syntax:
    comments = {"line": _line(rb"//"), "block": _block(rb"/\*", rb"\*/")}
    return _syntax(**{**comments, "double": _string(rb'"'), "single": _string(rb"'"), **more})


def _c(**more: Region) -> Syntax:
    line = replace(_line(rb"//"), skips=(rb"\\\n",))  # a backslash joins the next line to the comment
    digit_separator = rb"(?<![0-9A-Fa-f])"  # 1'000 opens nothing
    return _c_like(line=line, single=replace(_string(rb"'"), after=digit_separator), **more)


def _javascript() -> Syntax:
    value_follows = rb"(?:(?<![^\n(,=:\[!&|?{;+])|(?<=[(,=:\[&|?{;+>] ))"  # else a division
    regex = replace(_string(rb"/"), after=value_follows, inside=("set",))
    plain = {**_c_like(regex=regex), "set": _string(rb"\]", rb"\[")}  # a / in [...] does not end the expression
    return _with_holes(plain, {"template": _string(rb"`", multiline=True)}, rb"\$\{", b"{}")


def _rust() -> Syntax:
    raw = {f"raw{n}": Region(State.STRING, (b'r%b"' % (b"#" * n),), (b'"' + b"#" * n,)) for n in range(4)}
    block = replace(_block(rb"/\*", rb"\*/"), inside=("block",))
    escaped = _string(rb"'", rb"'\\[\s\S]")  # 'a alone is a lifetime
    table = _c_like(block=block, double=_string(rb'"', multiline=True), single=escaped, **raw)
    letters = (rb"[^\\'\n\x80-\xff]", *(rb"[\x80-\xff]" * n for n in (2, 3, 4)))
    return {**table, "code": replace(table["code"], skips=tuple(b"'" + letter + b"'" for letter in letters))}


def _shell() -> Syntax:
    plain = _syntax(
        (_ESCAPE,),
        comment=replace(_line(rb"#"), after=rb"(?<![^\s;|&()])"),
        single=Region(State.STRING, (rb"'",), (rb"'",)),
        ansi=_string(rb"'", rb"\$'", multiline=True),
    )
    return _with_holes(plain, {"double": _string(rb'"', multiline=True)}, rb"\$\(", b"()")


def _yaml() -> Syntax:
    # Where a value may start; anywhere else a quote is an apostrophe.
    value_follows = rb"(?:(?<![^\n\[{,(])|(?<=[:\-?,\[{\n ] )|(?<=\":))"
    return _syntax(
        comment=replace(_line(rb"#"), after=rb"(?<!\S)"),
        double=replace(_string(rb'"', multiline=True), after=value_follows),
        single=replace(_string(rb"'", skip=rb"''", multiline=True), after=value_follows),
    )


def _xml() -> Syntax:
    quotes = {name: Region(State.STRING, (mark,), (mark,)) for name, mark in {"double": rb'"', "single": rb"'"}.items()}
    tag = Region(State.CODE, (rb"<[A-Za-z_/?!]",), (rb">",), inside=tuple(quotes))
    comment, cdata = _block(rb"<!--", rb"-->"), Region(State.STRING, (rb"<!\[CDATA\[",), (rb"\]\]>",))
    return {**_syntax(comment=comment, cdata=cdata, tag=tag), **quotes}


def _html() -> Syntax:
    xml, script = _xml(), {f"js_{k}": v for k, v in _javascript().items()}
    script = {k: replace(v, inside=tuple(f"js_{name}" for name in v.inside)) for k, v in script.items()}
    raw = {
        "script": replace(script.pop("js_code"), opens=(rb"<script",), closes=(rb"</script",)),
        "style": Region(State.CODE, (rb"<style",), (rb"</style",), inside=("css", "double", "single")),
    }
    code = replace(xml["code"], inside=(*xml["code"].inside, *raw))
    return {**xml, **script, **raw, "css": _block(rb"/\*", rb"\*/"), "code": code}


def _markdown() -> Syntax:
    return _syntax(
        (_ESCAPE,),
        comment=_block(rb"<!--", rb"-->"),
        fence=Region(State.STRING, (rb"```",), (rb"```",)),
        tilde=Region(State.STRING, (rb"~~~",), (rb"~~~",)),
        inline2=Region(State.STRING, (rb"``",), (rb"``", rb"\n\n")),
        inline=Region(State.STRING, (rb"`",), (rb"`", rb"\n\n")),
    )


_SYNTAX: Mapping[str, Callable[[], Syntax]] = {
    "c": _c,
    "cpp": lambda: _c(raw=Region(State.STRING, (rb'R"\(',), (rb'\)"',))),
    "go": lambda: _c_like(raw=Region(State.STRING, (rb"`",), (rb"`",))),
    "html": _html,
    "java": lambda: _c_like(block3=_string(rb'"""', multiline=True)),
    "javascript": _javascript,
    "json": lambda: _syntax(double=_string(rb'"')),
    "markdown": _markdown,
    "prose": _syntax,
    "python": _python,
    "rust": _rust,
    "shell": _shell,
    "sql": lambda: _syntax(
        line=_line(rb"--"),
        block=_block(rb"/\*", rb"\*/"),
        single=_string(rb"'", skip=rb"''", multiline=True),
        double=_string(rb'"', skip=rb'""', multiline=True),
    ),
    "typescript": _javascript,
    "xml": _xml,
    "yaml": _yaml,
}

_ALIASES: Mapping[str, str] = {
    **dict.fromkeys(("c++", "cc", "cxx", "h++", "hpp"), "cpp"),
    **dict.fromkeys(("js", "jsx", "mjs", "node"), "javascript"),
    **dict.fromkeys(("bash", "sh", "zsh"), "shell"),
    **dict.fromkeys(("text", "txt", "plain", "plaintext", "chat"), "prose"),
    **dict.fromkeys(("mysql", "postgres", "postgresql", "sqlite"), "sql"),
    **dict.fromkeys(("py", "python3"), "python"),
    **dict.fromkeys(("svg", "xhtml"), "xml"),
    **dict.fromkeys(("ts", "tsx"), "typescript"),
    "golang": "go",
    "h": "c",
    "htm": "html",
    "jsonl": "json",
    "md": "markdown",
    "rs": "rust",
    "yml": "yaml",
}


def language_names() -> tuple[str, ...]:
    """The languages with a syntax, sorted; `canonical` maps other spellings to these."""
    return tuple(_SYNTAX)


def canonical(language: str | None) -> str:
    """The name used everywhere for a language, from any common spelling; None is prose.

    >>> canonical("C++"), canonical("yml"), canonical(None)
    ('cpp', 'yaml', 'prose')

    Raises:
        ConfigError: no such language.
    """
    name = "prose" if language is None else language.strip().lower()
    name = _ALIASES.get(name, name)
    if name not in _SYNTAX:
        raise ConfigError(f"unknown language '{language}'; {nearest(name, {*_SYNTAX, *_ALIASES})}")
    return name


@cache
def syntax(language: str) -> Syntax:
    """The regions of a canonical language."""
    return _SYNTAX[language]()
