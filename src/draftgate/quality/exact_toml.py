"""TOML 1.0, exactly, by the standard library's `tomllib`.

A text that the token limit cut is TRUNCATED when `tomllib` stops at its end, or does so but for its last line; an error
in the last line of a cut text is not seen.
"""

import re
import tomllib

from draftgate.quality.judgement import Finding, Reading, Status

__all__ = ["parse"]


def parse(text: str, cut: bool) -> Reading:
    """Parse a document; the value is the dict of it.

    >>> parse("a = [1,\\nb = 2", cut=False).findings
    (Finding(kind='syntax', message='Invalid value', line=2, column=1),)
    >>> parse("a = 1\\nb = [2,", cut=True).status.value
    'truncated'
    """
    reading = _parse(text)
    if not cut or reading.status is Status.VALID or reading.findings[0].kind != "syntax":
        return reading
    last = text.rfind("\n") + 1
    return Reading(Status.TRUNCATED) if _ends_early(reading) or _holds(text[:last]) else reading


def _holds(text: str) -> bool:
    reading = _parse(text)
    return reading.status is Status.VALID or _ends_early(reading)


def _parse(text: str) -> Reading:
    try:
        return Reading(Status.VALID, value=tomllib.loads(text))
    except RecursionError:
        return Reading(Status.INVALID, (Finding("depth", "nested deeper than TOML parsers go"),))
    except (ValueError, OverflowError) as error:  # beyond TOMLDecodeError: impossible dates, endless integers
        return Reading(Status.INVALID, (_finding(str(error)),))


_PLACE = re.compile(r" \(at (?:end of document|line (\d+), column (\d+))\)$")


def _finding(message: str) -> Finding:
    found = _PLACE.search(message)
    place = (int(found[1]), int(found[2])) if found and found[1] else (None, None)
    return Finding("syntax", _PLACE.sub(", at the end" if found and not found[1] else "", message)[:200], *place)


def _ends_early(reading: Reading) -> bool:
    return bool(reading.findings) and reading.findings[0].message.endswith(", at the end")
