import json
import os
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from draftgate.errors import ConfigError, InputError, MissingExtraError, WorkloadError, nearest

if TYPE_CHECKING:
    from rich.table import Table

    from draftgate.cli.screen import Screen
    from draftgate.quality.judgement import Judgement
    from draftgate.quality.outputs import Output
    from draftgate.quality.sandbox import Sandbox
    from draftgate.stats.sequence import Interval

_FAULTS = 5  # outputs of each language that are named
_LANGUAGES = 100  # told apart; further ones are counted together, so that no file fills the memory
_STATUSES = ("valid", "invalid", "truncated", "unchecked")
_WIDTH = 200  # characters of a message


@click.command()
@click.argument("file", metavar="FILE|-")
@click.option("--language", metavar="NAME", help="Language of lines that name none.")
@click.option("--schema", type=click.Path(path_type=Path), help="JSON Schema file, for lines that bring none.")
@click.option("--run-tests", is_flag=True, help="Run the tests that lines bring, in a sandbox.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def command(file: str, language: str | None, schema: Path | None, run_tests: bool, as_json: bool) -> int:
    """Check outputs from anywhere: syntax by language, JSON Schema, tool calls, tests.

    FILE is JSONL; - reads stdin. A line is {"language": ..., "output": ...} and what else is known: "id", "finish"
    ("length" if the token limit cut it), "schema", "tools", "tests", "entry_point", and "prompt", if the output
    continues that text.

    \b
    draftgate check outputs.jsonl
    draftgate check outputs.jsonl --language python --run-tests
    zcat outputs.jsonl.gz | draftgate check - --schema order.json --json

    Exit codes: 0 none is invalid, 1 some are, 2 wrong input, 3 none could be judged.
    """
    from draftgate.cli.screen import result_console

    tallies = _tallies(file, language, _read_schema(schema) if schema else None, run_tests)
    if as_json:
        languages = [tally.as_json(name) for name, tally in tallies.items()]
        click.echo(json.dumps({"schema": 1, "file": file, "languages": languages}, indent=1, allow_nan=False))
    else:
        result_console().print(_table(tallies))
        for fault in (fault for tally in tallies.values() for fault in tally.faults):
            click.echo(f"  {fault.as_text()}")
    total = sum((tally.counts for tally in tallies.values()), Counter[str]())
    if total["unchecked"]:
        click.echo(
            f"note: {total['unchecked']} not judged: nothing to check them against is known, or too large", err=True
        )
    return 1 if total["invalid"] else 0 if total["valid"] else 3


@dataclass(frozen=True, slots=True)
class _Fault:
    """An output that is invalid, or too much for its parser, and the first of the findings on it."""

    line: int
    id: str
    kind: str
    message: str
    at_line: int | None
    at_column: int | None
    findings: int

    def as_text(self) -> str:
        at = f" at {self.at_line}:{self.at_column}" if self.at_line else ""
        more = f" (and {self.findings - 1} more)" if self.findings > 1 else ""
        return f"line {self.line}, {_shown(self.id)}{at}: {self.kind}: {_shown(self.message)}{more}"


@dataclass(slots=True)
class _Tally:
    """Verdicts on the outputs of one language."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[_Fault] = field(default_factory=list)

    def add(self, output: "Output", judgement: "Judgement") -> None:
        self.counts[judgement.status] += 1
        if judgement.findings and len(self.faults) < _FAULTS:
            first, n = judgement.findings[0], len(judgement.findings)
            self.faults.append(_Fault(output.line, output.id, first.kind, first.message, first.line, first.column, n))

    def rate(self) -> "Interval":
        """Share of the valid among the valid and the invalid."""
        from draftgate.stats.proportion import wilson_interval

        return wilson_interval(self.counts["valid"], self.counts["valid"] + self.counts["invalid"])

    def as_json(self, language: str) -> dict[str, Any]:
        rate = self.rate()
        return {
            "language": language,
            "n": self.counts.total(),
            **{status: self.counts[status] for status in _STATUSES},
            "rate": {"estimate": rate.estimate, "low": rate.low, "high": rate.high, "n": rate.n},
            "faults": [asdict(fault) for fault in self.faults],
        }


def _tallies(file: str, language: str | None, schema: Mapping[str, Any] | None, run_tests: bool) -> dict[str, _Tally]:
    """Judge a file line by line; only counts and a few faults are kept."""
    from draftgate.cli.screen import Screen
    from draftgate.quality.outputs import read_outputs

    _refuse_unknown(language)
    sandbox = _sandbox() if run_tests else None
    tallies: dict[str, _Tally] = {}
    with _open(file) as (stream, size_bytes), Screen() as screen:
        screen.phase(f"check {_shown(file)}", size_bytes)
        for output in read_outputs(_lines(stream, screen), file, language, schema):
            label = _label(output)
            known = label in tallies or len(tallies) < _LANGUAGES
            tallies.setdefault(label if known else "others", _Tally()).add(output, _judge(output, sandbox, file))
    if not tallies:
        raise WorkloadError(f"{file}: no outputs; write one JSON object a line")
    return tallies


def _refuse_unknown(language: str | None) -> None:
    from draftgate.quality.languages import checkable, resolve

    if language is not None and resolve(language) is None:
        raise ConfigError(f"--language: no parser for {_shown(language)!r}; {nearest(language, checkable())}")


def _sandbox() -> "Sandbox":
    from draftgate.quality.sandbox import find_sandbox

    return find_sandbox()


@contextmanager
def _open(file: str) -> Iterator[tuple[IO[bytes], int | None]]:
    """The bytes of a file or of stdin, and how many they are, where that is known."""
    try:
        stream = click.open_file(file, "rb")
    except OSError as error:
        raise WorkloadError(f"{file}: cannot be read: {error.strerror or error}") from error
    with stream:
        status = os.fstat(stream.fileno())
        yield stream, status.st_size if stat.S_ISREG(status.st_mode) else None


def _lines(stream: IO[bytes], screen: "Screen") -> Iterator[bytes]:
    from draftgate.quality.outputs import MAX_LINE_BYTES

    while line := stream.readline(MAX_LINE_BYTES + 1):
        yield line
        screen.advance(len(line))


def _judge(output: "Output", sandbox: "Sandbox | None", file: str) -> "Judgement":
    from draftgate.quality.judge import judge
    from draftgate.quality.toolcalls import check_tool_calls

    try:
        if not isinstance(output.said, str):
            return check_tool_calls(output.said, output.task.tools, output.finish)
        judgement = judge(output.task, output.said, output.finish)
    except MissingExtraError:
        raise
    except InputError as error:  # the schema or the tools of the line
        raise WorkloadError(f"{file}:{output.line}: {_shown(str(error))}") from error
    if sandbox is None or output.task.tests is None or judgement.status not in ("valid", "unchecked"):
        return judgement
    if _label(output) not in ("python", "no language"):
        other = _shown(_label(output))
        raise WorkloadError(f"{file}:{output.line}: tests are run as Python, not {other}; leave them out")
    return _tested(output, output.said, sandbox, judgement)


def _tested(output: "Output", text: str, sandbox: "Sandbox", judgement: "Judgement") -> "Judgement":
    from draftgate.quality.judgement import Finding, Judgement, Status
    from draftgate.quality.passk import Problem, run_tests

    task = output.task
    problem = Problem(output.id, task.prefix, task.tests or "", task.entry_point, output.objects)
    (result,) = run_tests(problem, [text], sandbox)
    checked = (*judgement.checked, "tests")
    if result.passed:
        return Judgement(Status.VALID, checked, form=judgement.form)
    finding = Finding("tests", f"{result.outcome}: {result.detail}")
    return Judgement(Status.INVALID, checked, (finding,), judgement.form)


def _label(output: "Output") -> str:
    """What an output is counted under: its language by one name, else what it is checked against."""
    from draftgate.quality.languages import resolve

    task = output.task
    if task.tools:
        return "tool calls"
    if task.language is None:
        return "json" if task.schema else "no language"
    return resolve(task.language) or task.language.strip().lower()[:40]


def _read_schema(path: Path) -> Mapping[str, Any]:
    from draftgate.quality.scan import Broken, Cut, parse_json

    try:
        schema = parse_json(path.read_text("utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (Broken, Cut, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is not JSON: {str(error) or 'it ends too early'}") from error
    if not isinstance(schema, dict):
        raise ConfigError(f"{path}: a JSON Schema must be an object")
    return schema


def _table(tallies: Mapping[str, _Tally]) -> "Table":
    from rich.table import Table
    from rich.text import Text

    from draftgate.cli.screen import figure

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("language", overflow="fold")
    for name in ("n", "valid", "95% interval", *_STATUSES[1:]):
        table.add_column(name, justify="right", no_wrap=True)
    for language, tally in tallies.items():
        rate = tally.rate()
        interval = "-" if rate.low is None or rate.high is None else f"{rate.low:.1%}..{rate.high:.1%}"
        counts = (str(tally.counts[status]) for status in _STATUSES[1:])
        label = Text(_shown(language))
        table.add_row(label, str(tally.counts.total()), figure(rate.estimate, ".1%"), interval, *counts)
    return table


def _shown(text: str) -> str:
    """Text that a model or a file gave, harmless on a terminal: printable characters on one line, not too many."""
    cut = text[:_WIDTH] + "..." * (len(text) > _WIDTH)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)
