"""Progress on stderr, tables on stdout."""

import sys
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

__all__ = ["Screen", "arm_table", "figure", "percent"]

_LINE_EVERY_S = 10.0


class Screen:
    """Progress bars on a terminal, a line every few seconds elsewhere."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=self._console,
            disable=not sys.stderr.isatty(),
        )
        self._task: TaskID | None = None
        self._name, self._done, self._total, self._said = "", 0.0, None, 0.0

    def __enter__(self) -> "Screen":
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def phase(self, name: str, total: float | None) -> None:
        """A new bar; the one before is complete."""
        if self._task is not None:
            self._bars.update(self._task, total=1, completed=1)
        self._task = self._bars.add_task(name, total=total, note="")
        self._name, self._done, self._total = name, 0.0, total
        if self._bars.disable:
            self._line(name)

    def advance(self, amount: float, note: str = "") -> None:
        """Move the bar."""
        self._done += amount
        if self._task is not None:
            self._bars.update(self._task, advance=amount, note=note)
        if self._bars.disable and time.monotonic() - self._said > _LINE_EVERY_S:
            share = f" {min(self._done / self._total, 1):.0%}" if self._total else ""
            self._line(f"{self._name}{share} {note}")

    def _line(self, text: str) -> None:
        self._said = time.monotonic()
        print(text, file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        """One line above the bars."""
        self._console.print(text, markup=False, highlight=False)


def figure(value: float | None, form: str = ".2f") -> str:
    """A number, or a dash where nothing was measured."""
    return "-" if value is None else format(value, form)


def percent(value: float | None) -> str:
    """A share in percent, or a dash."""
    return figure(value, ".0%")


def arm_table(title: str, arms: Sequence[Mapping[str, Any]], recommended: str | None = None) -> Table:
    """Arms of one workload; the recommended one is marked."""
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("arm", overflow="fold")
    for name in ("speedup", "interval", "predicted", "tok/s", "accept", "length", "coverage", "n"):
        table.add_column(name, justify="right", no_wrap=True)
    for arm in arms:
        speed, predicted = arm["speedup"], arm.get("predicted") or {}
        low, high = speed["low"], speed["high"]
        chosen = arm["arm"] == recommended
        table.add_row(
            f"{'> ' if chosen else '  '}{arm['arm']}{'' if arm['lossless'] else ' (lossy)'}",
            figure(speed["estimate"]),
            "-" if low is None or high is None else f"{low:.2f}..{high:.2f}",
            figure(predicted.get("speedup")),
            figure(arm["tokens_per_s"], ".1f"),
            percent(arm["acceptance_rate"]),
            figure(arm["acceptance_length"]),
            percent(arm["coverage"]),
            str(arm["requests"]),
            style="bold" if chosen else None,
        )
    return table
