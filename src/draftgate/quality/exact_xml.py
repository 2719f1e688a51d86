"""XML 1.0, exactly, by expat: well-formed or not. No document type is validated and nothing is ever fetched.

Entities that would make a small text large are refused before they expand: those made of other entities (the billion
laughs), and those whose length times the references in the text exceeds `MAX_EXPANDED` (quadratic blow-up).
"""

from typing import Any
from xml.parsers import expat

from draftgate.quality.judgement import Finding, Reading, Status, place

__all__ = ["MAX_EXPANDED", "parse"]

MAX_EXPANDED = 64 << 20  # bytes


def parse(text: str, cut: bool) -> Reading:
    """Parse a document; white space before it, which no XML declaration may follow, is stepped over.

    >>> parse("<a><b></a>", cut=False).findings
    (Finding(kind='syntax', message='mismatched tag', line=1, column=9),)
    >>> parse("<a><b>te", cut=True).status.value
    'truncated'
    """
    start = len(text) - len(text.lstrip(" \t\r\n\ufeff"))
    data = text[start:].encode()
    parser = expat.ParserCreate("utf-8")  # whatever encoding the declaration names, this is text
    parser.EntityDeclHandler = _Limits(data.count(b"&"))
    try:
        # Without an end, expat says nothing of what a continuation may complete.
        parser.Parse(data, not cut)
    except expat.ExpatError as error:
        return Reading(Status.INVALID, (_finding(text, start, data, error),))
    except _ExpandsError as error:
        return Reading(Status.INVALID, (Finding("unsafe", str(error)),))
    return Reading(Status.TRUNCATED if cut and not _is_whole(parser) else Status.VALID)


def _is_whole(parser: "expat.XMLParserType") -> bool:
    try:
        parser.Parse(b"", True)
    except expat.ExpatError:
        return False
    return True


def _finding(text: str, start: int, data: bytes, error: expat.ExpatError) -> Finding:
    lines = data.split(b"\n", error.lineno)
    before = sum(map(len, lines[: error.lineno - 1])) + error.lineno - 1 + error.offset
    at = start + len(data[:before].decode(errors="replace"))
    return Finding("syntax", expat.ErrorString(error.code), *place(text, at))


class _ExpandsError(Exception):
    pass


class _Limits:
    """Sees each entity as it is declared."""

    def __init__(self, references: int) -> None:
        self._references = references

    def __call__(self, name: str, is_parameter: bool, value: str | None, *where: Any) -> None:
        if value is None:  # external: expat does not read it
            return
        if "&" in value or "%" in value:
            raise _ExpandsError(f"the entity {name[:40]!a} is made of other entities")
        if len(value) * self._references > MAX_EXPANDED:
            raise _ExpandsError(f"the entity {name[:40]!a} may expand to more than {MAX_EXPANDED >> 20} MiB")
