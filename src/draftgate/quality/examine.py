"""One output from text to judgement, in this process: what `judge` does in a child of its own.

The parsers take hostile text as well as C and recursion can; what may still hang or crash is for the child to bear. The
order is: tool calls, or else the language; extraction from the answer; the language's parser; JSON Schema.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import Any

from draftgate.errors import WorkloadError
from draftgate.quality import exact_json, exact_python, exact_toml, exact_xml, exact_yaml, syntax
from draftgate.quality.extract import Block, extract
from draftgate.quality.judgement import Finding, Judgement, Reading, Status, Task
from draftgate.quality.languages import EXACT, GRAMMARS, resolve
from draftgate.quality.schema import MAX_FINDINGS, check_schema, plain, schema_findings

__all__ = ["MAX_CHARS", "examine", "max_chars"]

Parse = Callable[[str, bool], Reading]  # of a text, perhaps cut by the token limit

MAX_CHARS = 16 << 20  # of any output
_MAX_CHARS_BUILT = 1 << 20  # where a tree is built: seconds a MiB, and hundreds of bytes a byte

_PARSERS: Mapping[str, Parse] = {
    **{language: partial(syntax.parse, language=language) for language in GRAMMARS},
    "json": exact_json.parse,
    "jsonl": exact_json.parse_lines,
    "python": exact_python.parse,
    "toml": exact_toml.parse,
    "xml": exact_xml.parse,
    "yaml": exact_yaml.parse,
}
_VALUES = frozenset({"json", "jsonl", "toml", "yaml"})  # hold a value that a schema can describe
_PROGRAMS = frozenset(_PARSERS) - _VALUES - {"css", "html", "xml"}  # may go on with a prompt


def max_chars(language: str) -> int:
    """The longest text of a language that is looked at, its prompt included [characters].

    >>> max_chars("json") > max_chars("python")
    True
    """
    return MAX_CHARS if language in ("json", "jsonl", "xml") else _MAX_CHARS_BUILT


def examine(task: Task, text: str, finish: str | None = None) -> Judgement:
    """Judge a text; see `judge.judge`.

    >>> examine(Task(language="python"), "Sure:\\n```python\\nx = (1\\n```\\n").findings[0].line
    3

    Raises:
        WorkloadError: the schema or the tools are wrong, or a schema comes with a language that holds no value.
        MissingExtraError: a parser is not installed.
    """
    if task.check == "tool-call" or (task.check is None and task.tools):
        from draftgate.quality.toolcalls import check_tool_calls

        return check_tool_calls(text, task.tools, finish)
    language = _language(task)
    if language is None:
        return Judgement(Status.UNCHECKED, ())
    if len(text) + len(task.prefix) > max_chars(language):
        finding = Finding(
            "limit", f"longer than {max_chars(language)} characters, the most that are read of {language}"
        )
        return Judgement(Status.UNCHECKED, (), (finding,))
    if task.schema is not None:
        _refuse_schema(task.schema, language)
    form, reading = _read(language, task.prefix, text, finish == "length")
    if task.schema is None or reading.status is not Status.VALID:
        return Judgement(reading.status, (language,), reading.findings, form)
    return _against_schema(task.schema, language, reading.value, form)


def _language(task: Task) -> str | None:
    """What to parse the output as; None: nothing to check."""
    if task.check is not None:
        return {"none": None, "python": "python"}.get(task.check, "json")
    return resolve("json" if task.language is None and task.schema is not None else task.language)


def _refuse_schema(schema: Mapping[str, Any], language: str) -> None:
    if language not in _VALUES:
        raise WorkloadError(f"a schema describes json, jsonl, toml or yaml, but the language is {language}")
    check_schema(schema)


def _against_schema(schema: Mapping[str, Any], language: str, value: Any, form: str) -> Judgement:
    values = value if language == "jsonl" else [value if language == "json" else plain(value)]
    found = chain.from_iterable(schema_findings(schema, value) for value in values)
    findings = tuple(islice(found, MAX_FINDINGS))
    status = Status.INVALID if findings else Status.VALID
    return Judgement(status, (language, "json-schema"), findings, form)


def _read(language: str, prefix: str, text: str, cut: bool) -> tuple[str, Reading]:
    """Form of the output and what its parser says, as an answer or as what goes on with a prompt.

    A program goes on with its prompt, unless the prompt alone is no beginning of a program: then it is a question, and
    the output an answer. Data is an answer, and goes on with a prompt if that alone makes it right.
    """
    parse = _PARSERS[language]
    if not prefix.strip():
        return _answer(language, text, cut)
    if language in _PROGRAMS:
        whole = parse(prefix + text, cut)
        if whole.status is Status.INVALID and parse(prefix, True).status is Status.INVALID:
            return _answer(language, text, cut)
        return "bare", _behind(prefix, whole)
    form, reading = _answer(language, text, cut)
    if reading.status is Status.INVALID:
        whole = parse(prefix + text, cut)
        if whole.status is not Status.INVALID:
            return "bare", whole
    return form, reading


def _behind(prefix: str, reading: Reading) -> Reading:
    """A reading of prompt and output, with places in the output."""
    lines, last = prefix.count("\n"), len(prefix) - prefix.rfind("\n") - 1

    def moved(finding: Finding) -> Finding:
        line = None if finding.line is None else finding.line - lines
        column = finding.column and finding.column - last * (line == 1)
        in_output = line is not None and line >= 1 and (column is None or column >= 1)
        return replace(finding, line=line if in_output else None, column=column if in_output else None)

    return replace(reading, findings=tuple(map(moved, reading.findings)))


def _answer(language: str, text: str, cut: bool) -> tuple[str, Reading]:
    parse = _PARSERS[language]
    form, blocks = extract(text, language)
    if form == "fenced" and language in EXACT:  # or the fences are text within a string of it
        whole = parse(text, False)
        if whole.status is Status.VALID:
            return "bare", whole
    if language not in _PROGRAMS:
        blocks = blocks[:1]  # several pieces of a program make one; of data, clients take the first
    reading = _worst([_of_block(parse, block, cut and not block.ended) for block in blocks])
    if language == "json" and form == "bare" and reading.status is Status.INVALID:
        inner = exact_json.parse_embedded(text, cut)
        return ("prose", inner) if inner else (form, reading)
    return form, reading


def _of_block(parse: Parse, block: Block, cut: bool) -> Reading:
    reading = parse(block.text, cut)
    if not block.text.strip():
        return Reading(Status.TRUNCATED) if cut else Reading(Status.INVALID, (Finding("empty", "there is no output"),))
    return replace(reading, findings=tuple(_in_answer(finding, block) for finding in reading.findings))


def _in_answer(finding: Finding, block: Block) -> Finding:
    line = finding.line and finding.line + block.line
    return replace(finding, line=line, column=finding.column and finding.column + block.column)


_SEVERITY = (Status.INVALID, Status.TRUNCATED, Status.VALID)


def _worst(readings: Sequence[Reading]) -> Reading:
    """All pieces must hold; the value is that of the first."""
    status = min((reading.status for reading in readings), key=_SEVERITY.index)
    findings = tuple(chain.from_iterable(reading.findings for reading in readings))[:MAX_FINDINGS]
    return Reading(status, findings, readings[0].value)
