"""The code in an answer, found as clients find it: in Markdown fences, or else the whole answer.

Fences are those of CommonMark (https://spec.commonmark.org, section 4.5): three or more backticks or tildes, closed by
as many of the same kind or by the end. They may be indented to any depth, as in lists, and so may a whole answer.
"""

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from draftgate.quality.languages import resolve

__all__ = ["Block", "extract"]


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of an answer.

    Attributes:
        label: what the fence calls it, such as "python"; "" without a label or a fence.
        text: its lines, without the indentation of the fence.
        line: lines of the answer before it.
        column: indentation that was taken away.
        ended: the answer goes on after it, so the token limit cannot have cut it.
    """

    label: str
    text: str
    line: int = 0
    column: int = 0
    ended: bool = False


def extract(answer: str, language: str) -> tuple[str, tuple[Block, ...]]:
    r"""The form of an answer, "fenced" or "bare", and its blocks that matter.

    Those are the blocks labelled with the language; without any, those without a label; without any, the first. A
    thought up to `</think>` is stepped over.

    >>> form, (block,) = extract("Sure:\n```py\nx = 1\n```\nDone.", "python")
    >>> form, block.text, block.line
    ('fenced', 'x = 1\n', 2)
    """
    start = _after_thought(answer)
    blocks = tuple(_fenced(answer, start)) if "```" in answer or "~~~" in answer else ()  # a plain search is far faster
    if not blocks:
        return "bare", (_bare(answer, start),)
    labelled = tuple(block for block in blocks if resolve(block.label) == language)
    unlabelled = tuple(block for block in blocks if not block.label)
    return "fenced", labelled or unlabelled or blocks[:1]


_THOUGHT = re.compile(r"\s*+<think>")


def _after_thought(answer: str) -> int:
    if not _THOUGHT.match(answer):
        return 0
    end = answer.find("</think>")
    return len(answer) if end < 0 else end + len("</think>")


# Possessive quantifiers (*+) never try a match again, so no answer makes them slow.
_FENCE = re.compile(r"^([ \t]*+)(`{3,}+|~{3,}+)[ \t]*+([^\n]*+)$", re.MULTILINE)
_CUT_FENCE = re.compile(r"^[ \t]*+[`~]{1,2}+\Z", re.MULTILINE)


def _fenced(answer: str, start: int) -> Iterator[Block]:
    opener: re.Match[str] | None = None
    line, counted = 0, 0
    for fence in _FENCE.finditer(answer, start):
        if opener is None:
            if "`" not in fence[3] or fence[2][0] == "~":
                opener = fence
                line += answer.count("\n", counted, fence.end()) + 1
                counted = fence.end() + 1
        elif _closes(fence, opener):
            yield _block(opener, answer[opener.end() + 1 : fence.start()], line, ended=True)
            opener = None
    if opener is not None:
        yield _block(opener, _CUT_FENCE.sub("", answer[opener.end() + 1 :]), line, ended=False)


def _closes(fence: re.Match[str], opener: re.Match[str]) -> bool:
    return fence[2].startswith(opener[2]) and not fence[3].strip()


def _block(opener: re.Match[str], text: str, line: int, ended: bool) -> Block:
    column = len(opener[1])
    if column:
        text = re.sub(rf"^[ \t]{{1,{column}}}+", "", text, flags=re.MULTILINE)
    label = opener[3].split(maxsplit=1)[0] if opener[3].strip() else ""
    return Block(label.strip("{}.,:"), text, line, column, ended)


def _bare(answer: str, start: int) -> Block:
    text = answer[start:]
    indented = _INDENTED.match(text)
    column = len(indented[1]) if indented else 0
    return Block("", textwrap.dedent(text) if column else text, answer.count("\n", 0, start), column)


_INDENTED = re.compile(r"\s*?^([ \t]++)\S", re.MULTILINE)
