"""Progress on stderr, tables on stdout."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

__all__ = ["Screen", "arm_table", "figure", "gate_failed", "percent", "quality_lines", "result_console"]

_LINE_EVERY_S = 5.0
_FILE_WIDTH = 160  # of tables that go to a file or a pipe, where nothing says how wide the reader's screen is
_STYLES = {"faster": "bold green", "off": "bold", "inconclusive": "bold yellow"}


class Screen:
    """Progress bars on a terminal, a line every few seconds elsewhere."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = Console(stderr=True)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._lines = _Lines(clock) if self._bars.disable else None
        self._task: TaskID | None = None

    def __enter__(self) -> "Screen":
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def phase(self, name: str, total: float | None) -> None:
        """A new bar; the one before is complete."""
        if self._lines:
            self._lines.phase(name, total)
            return
        if self._task is not None:
            self._bars.update(self._task, total=1, completed=1)
        self._task = self._bars.add_task(name, total=total, note="")

    def advance(self, amount: float, note: str = "") -> None:
        """Move the bar."""
        if self._lines:
            self._lines.advance(amount, note)
        elif self._task is not None:
            self._bars.update(self._task, advance=amount, note=note)

    def say(self, text: str) -> None:
        """One line above the bars."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class _Lines:
    """Progress for logs: the phase's name, then its share, the time left and a note every few seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._name = ""
        self._total: float | None = None
        self._done = self._done_before = self._time_before = 0.0

    def phase(self, name: str, total: float | None) -> None:
        self._name, self._total, self._done = name, total, 0.0
        self._print(name)

    def advance(self, amount: float, note: str) -> None:
        self._done += amount
        if self._clock() - self._time_before >= _LINE_EVERY_S:
            self._print(", ".join(filter(None, (f"{self._name}{self._share()}", self._left(), note))))

    def _share(self) -> str:
        return f" {min(self._done / self._total, 1):.0%}" if self._total else ""

    def _left(self) -> str:
        """Time left at the pace since the last line: what a resumed run finds done is no pace."""
        recent = self._done - self._done_before
        if not self._total or recent <= 0:
            return ""
        left_s = max(self._total - self._done, 0.0) * (self._clock() - self._time_before) / recent
        return f"{left_s / 60:.0f} min left" if left_s >= 120 else f"{left_s:.0f} s left"

    def _print(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)
        self._done_before, self._time_before = self._done, self._clock()


def result_console() -> Console:
    """Where results go: as wide as the terminal, else wide enough for every column; colour on terminals only."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_FILE_WIDTH)


def figure(value: float | None, form: str = ".2f") -> str:
    """A number, or a dash where nothing was measured."""
    return "-" if value is None else format(value, form)


def percent(value: float | None) -> str:
    """A share in percent, or a dash."""
    return figure(value, ".0%")


def arm_table(
    title: str, arms: Sequence[Mapping[str, Any]], verdict: str = "", recommended: str | None = None
) -> Table:
    """Arms of one workload; the recommended one is marked.

    Args:
        verdict: "faster", "off" or "inconclusive"; colours the title.
    """
    table = Table(
        title=Text(title, _STYLES.get(verdict, "bold")),
        title_justify="left",
        box=None,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    table.add_column("arm", overflow="fold", min_width=22)
    for name in ("speedup", "interval", "replay", "tok/s", "rate", "len", "cover", "valid", "n"):
        table.add_column(name, justify="right", no_wrap=True)
    for arm in arms:
        speed, predicted = arm["speedup"], arm.get("predicted") or {}
        low, high = speed["low"], speed["high"]
        chosen = arm["arm"] == recommended
        table.add_row(
            Text(f"{'> ' if chosen else '  '}{arm['arm']}{'' if arm['lossless'] else ' (lossy)'}"),
            figure(speed["estimate"]),
            "-" if low is None or high is None else f"{low:.2f}..{high:.2f}",
            figure(predicted.get("speedup")),
            figure(arm["tokens_per_s"], ".1f"),
            percent(arm["acceptance_rate"]),
            figure(arm["acceptance_length"]),
            percent(arm["coverage"]),
            percent((arm["valid"] or {}).get("estimate")),
            str(arm["requests"]),
            style="bold" if chosen else None,
        )
    return table


def gate_failed(arm: Mapping[str, Any]) -> bool:
    """Whether an arm's outputs are proven not to be good enough, where the user or the law of lossless rules vouched.

    Arms that `tune` only measures (source presets, lossy finds) may fail without anything being wrong.
    """
    failed = (arm["quality"] or {}).get("verdict") == "failed"
    return failed and (arm["lossless"] or arm["origin"] == "given")


def quality_lines(arms: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence for each lossy arm that was judged, and for whatever failed."""
    judged = [(arm, arm["quality"]) for arm in arms if arm["quality"]]
    return [
        f"quality: {arm['arm']} {q['verdict']}: {q['why']}"
        for arm, q in judged
        if not arm["lossless"] or q["verdict"] == "failed"
    ]
