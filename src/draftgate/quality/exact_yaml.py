"""YAML 1.1, by PyYAML's safe loader on libyaml: one document or several.

Before anything is built, one pass over the parser's events bounds what the text would become: nesting, and the size
after its aliases are followed (the alias bomb). An alias inside its own anchor is refused, too. A text that the token
limit cut is TRUNCATED when the parser stops at its end, or is content with all but its last line; an error in the last
line of a cut text is not seen. Plain sentences are YAML: one scalar.
"""

from collections.abc import Iterable

import yaml

from draftgate.quality.judgement import Finding, Reading, Status

__all__ = ["MAX_DEPTH", "MAX_NODES", "parse"]

MAX_DEPTH = 200  # PyYAML builds by recursion
MAX_NODES = 1_000_000  # with aliases followed

_Loader: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def parse(text: str, cut: bool) -> Reading:
    """Parse a stream; the value is the document, or the list of documents when there are several.

    >>> parse("a: 1\\nb: [2", cut=True).status.value
    'truncated'
    >>> parse("a: 1\\n b: 2", cut=False).findings
    (Finding(kind='syntax', message='mapping values are not allowed in this context', line=2, column=3),)
    """
    reading, at = _parse(text)
    if not cut or reading.status is Status.VALID or reading.findings[0].kind != "syntax":
        return reading
    last = text.rfind("\n") + 1
    return Reading(Status.TRUNCATED) if at >= len(text.rstrip()) or _holds(text[:last]) else reading


def _holds(text: str) -> bool:
    reading, at = _parse(text)
    return reading.status is Status.VALID or at >= len(text.rstrip())


def _parse(text: str) -> tuple[Reading, int]:
    """What the parser says, and the offset it says it of; -1 where it gives none."""
    try:
        _bound(yaml.parse(text, _Loader))
        documents = list(yaml.load_all(text, _Loader))
    except _ExpandsError as error:
        return Reading(Status.INVALID, (Finding(error.kind, str(error)),)), -1
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        finding = Finding(
            "syntax", (error.problem or str(error))[:200], *((mark.line + 1, mark.column + 1) if mark else ())
        )
        return Reading(Status.INVALID, (finding,)), mark.index if mark else -1
    except yaml.reader.ReaderError as error:
        return Reading(Status.INVALID, (Finding("syntax", f"#x{error.character:04x} is no YAML character"),)), -1
    # Impossible dates, endless numbers, keys that cannot be compared.
    except (ValueError, OverflowError, TypeError, RecursionError, AttributeError) as error:
        return Reading(Status.INVALID, (Finding("syntax", str(error)[:200]),)), -1
    return Reading(Status.VALID, value=documents[0] if len(documents) == 1 else documents), -1


class _ExpandsError(Exception):
    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def _bound(events: Iterable[yaml.Event]) -> None:
    """Count the nodes that a stream stands for, an alias counting as what it refers to."""
    sizes = [0]  # of the open collections
    anchors: list[str] = []
    known: dict[str, int] = {}
    for event in events:
        anchor: str = getattr(event, "anchor", None) or ""
        if isinstance(event, yaml.CollectionStartEvent):
            sizes.append(1)
            anchors.append(anchor)
        elif isinstance(event, yaml.CollectionEndEvent):
            size = sizes.pop()
            known[anchors.pop()] = size
            sizes[-1] += size
        elif isinstance(event, yaml.ScalarEvent):
            sizes[-1] += 1
            known[anchor] = 1
        elif isinstance(event, yaml.AliasEvent):
            if anchor in anchors:
                raise _ExpandsError("unsafe", f"the anchor {anchor[:40]!a} holds itself")
            sizes[-1] += known.get(anchor, 1)
        if len(sizes) > MAX_DEPTH:
            raise _ExpandsError("depth", f"nested deeper than {MAX_DEPTH} levels")
        if sizes[-1] > MAX_NODES:
            raise _ExpandsError("unsafe", f"stands for more than {MAX_NODES} nodes")
