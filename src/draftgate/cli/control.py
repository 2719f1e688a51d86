import json
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from draftgate.cli.options import duration
from draftgate.errors import ConfigError, TraceError

if TYPE_CHECKING:
    from draftgate.control.assemble import Options
    from draftgate.control.loop import Loop, OnExit, Target
    from draftgate.control.source import Source
    from draftgate.cost.steps import StepCost
    from draftgate.observe.attach import Sinks
    from draftgate.policy.policyset import PolicySet

_CONTROLLERS = ("goodput", "pid", "pid-article", "schedule")


@click.command()
@click.option("--channel", required=True, metavar="FILE|URL", help="Where policies are put in force: a policy file.")
@click.option("--metrics", required=True, metavar="URL|FILE", help="Prometheus endpoint, or JSONL file, to watch.")
@click.option("--policy", "policies", type=click.Path(path_type=Path), metavar="FILE", help="Policies to start from.")
@click.option("--controller", default="goodput", show_default=True, type=click.Choice(_CONTROLLERS))
@click.option("--run", type=click.Path(path_type=Path), metavar="DIR/WORKLOAD", help="Measured costs and survival.")
@click.option(
    "--candidate",
    "candidates",
    multiple=True,
    metavar="FILE",
    help="A further policy that goodput may choose: passed the quality gate, same rule. Repeatable.",
)
@click.option("--schedule", type=click.Path(path_type=Path), metavar="FILE", help="Rows for --controller schedule.")
@click.option("--knob", default="tau", show_default=True, type=click.Choice(["tau", "k", "cut"]), help="For pid.")
@click.option("--target", default=0.60, show_default=True, type=click.FloatRange(0, 1), help="Acceptance pid holds.")
@click.option(
    "--gains", default="stable", show_default=True, type=click.Choice(["stable", "variable"]), help="For pid."
)
@click.option("--every", default=1, show_default=True, type=click.IntRange(1), help="Windows pooled for a move of pid.")
@click.option("--floor", type=click.FloatRange(0.5, 1, min_open=True, max_open=True), help="Least valid share.")
@click.option("--slo", type=duration, metavar="TIME", help="p95 target of seconds per output token, as 0.05s.")
@click.option("--window", "size", default=300, show_default=True, type=click.IntRange(1), help="Requests of a window.")
@click.option("--window-time", default="60s", show_default=True, type=duration, metavar="TIME", help="Longest window.")
@click.option(
    "--stale", default="2m", show_default=True, type=duration, metavar="TIME", help="Off after so long blind."
)
@click.option("--model", metavar="NAME", help="Count this served model (label model_name) alone.")
@click.option("--interval", default="10s", show_default=True, type=duration, metavar="TIME", help="Between looks.")
@click.option("--state", type=click.Path(path_type=Path), metavar="FILE", help="[default: beside the channel's file]")
@click.option("--on-exit", default="keep", show_default=True, type=click.Choice(["keep", "restore", "off"]))
@click.option("--health", metavar="[HOST:]PORT", help="Serve /healthz and /readyz there.")
@click.option("--metrics-port", metavar="[HOST:]PORT", help="Serve what control sees to Prometheus there.")
@click.option(
    "--otlp", metavar="URL", help="Push it to this collector.  [default: OTEL_EXPORTER_OTLP_ENDPOINT, if set]"
)
@click.option(
    "--trace",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The engine's trace, to export acceptance by token category.",
)
@click.option("--seed", type=int, help="Of jitter and exploration.  [default: different each time]")
@click.option("--dry-run", is_flag=True, help="Say what it would do; write nothing.")
@click.option("--once", is_flag=True, help="Decide on what is there, and end.")
def command(channel: str, metrics: str, policies: Path | None, state: Path | None, **given: Any) -> None:
    """Keep a running engine on the setting that pays, and switch speculation off while none does.

    \b
    draftgate control --channel policy.yaml --metrics http://127.0.0.1:8000/metrics --run runs/first/chat
    draftgate control --channel http://127.0.0.1:8000 --metrics http://127.0.0.1:8000 --policy start.yaml \\
        --run runs/first/chat --state control.json
    draftgate control --channel policy.yaml --metrics requests.jsonl --controller pid --dry-run --once

    Every decision is one JSON line on stdout, with its reason. SIGTERM and SIGINT end it by --on-exit.
    """
    from draftgate.control.assemble import lanes
    from draftgate.control.lease import Lease
    from draftgate.control.loop import Loop
    from draftgate.observe.attach import watching

    scrapes, dry_run = _is_url(metrics), given["dry_run"]
    state_path = state or _state_beside(channel)
    base = _base(policies, channel, state_path)
    with watching(_sinks(channel, given), base.workloads, max(600.0, 3 * given["window_time"])) as watcher:
        loop = Loop(
            base,
            _source(metrics, given),
            _target(channel),
            lanes(base, not scrapes, _options(given), random.Random(given["seed"])),
            state_path,
            None if dry_run else Lease(state_path.with_name(state_path.name + ".lease"), time.monotonic),
            lambda line: click.echo(json.dumps(line, allow_nan=False)),
            dry_run=dry_run,
            watcher=watcher,
        )
        # One scrape shows totals; two show what happened between them.
        ticks = None if not given["once"] else 2 if scrapes else 1
        _run(loop, given["interval"], ticks, given["health"], given["on_exit"])


def _run(loop: "Loop", interval_s: float, ticks: int | None, health: str | None, on_exit: "OnExit") -> None:
    """Tick until a signal comes, or so many times."""
    from draftgate.control.health import notify, serving

    stopped = threading.Event()
    ticked_s = time.monotonic()

    def alive() -> bool:
        return time.monotonic() - ticked_s < 3 * interval_s + 30

    ready = serving(health, alive, lambda: loop.controls and loop.fresh_s is not None)
    with _set_by_signals(stopped), ready:
        notify("READY=1")
        done = 0
        while done != ticks and not (done and stopped.wait(interval_s)):
            loop.tick()
            done, ticked_s = done + 1, time.monotonic()
            notify("WATCHDOG=1")
        notify("STOPPING=1")
        loop.stop(on_exit)


@contextmanager
def _set_by_signals(stopped: threading.Event) -> Iterator[None]:
    """SIGTERM and SIGINT set an event meanwhile; afterwards they mean what they meant before."""
    before = {number: signal.signal(number, lambda *_: stopped.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_url(name: str) -> bool:
    return name.startswith(("http://", "https://"))


def _state_beside(channel: str) -> Path:
    if _is_url(channel):
        raise ConfigError("a channel that is a URL needs --state FILE, so that a restart forgets nothing")
    path = Path(channel)
    return path.with_name(path.name + ".state.json")


def _base(policies: Path | None, channel: str, state_path: Path) -> "PolicySet":
    """The operator's policies: as given, else those of the last start, else what the channel's file holds."""
    from draftgate.control import state
    from draftgate.policy.policyset import load, parse

    if policies is not None:
        return load(policies)
    if (saved := state.load(state_path).base) is not None:
        return parse(saved, str(state_path))
    if _is_url(channel):
        raise ConfigError("a channel that is a URL needs --policy FILE to start from")
    return load(Path(channel))


def _target(channel: str) -> "Target":
    from draftgate.control.target import FileChannel, HttpChannel

    if _is_url(channel):
        return HttpChannel(channel, os.environ.get("DRAFTGATE_API_KEY"))
    return FileChannel(Path(channel))


def _sinks(channel: str, given: dict[str, Any]) -> "Sinks":
    from draftgate.observe.attach import Sinks

    engine = channel if _is_url(channel) else None
    return Sinks(given["metrics_port"], given["otlp"], given["trace"], engine, os.environ.get("DRAFTGATE_API_KEY"))


def _source(metrics: str, given: dict[str, Any]) -> "Source":
    from draftgate.control.counters import CounterWindows
    from draftgate.control.source import PrometheusSource
    from draftgate.control.tail import FileSource

    size, most_s = given["size"], given["window_time"]
    if _is_url(metrics):
        windows = CounterWindows(size=size, most_s=0.0 if given["once"] else most_s)
        return PrometheusSource(metrics, model=given["model"], windows=windows)
    return FileSource(Path(metrics), size, most_s, from_start=given["once"])


def _options(given: dict[str, Any]) -> "Options":
    from draftgate.control.assemble import Options
    from draftgate.control.schedule import load as load_rows
    from draftgate.policy.file import resolve

    cost, survival = (None, ()) if given["run"] is None else _measured(given["run"])
    return Options(
        controller=given["controller"],
        cost=cost,
        survival=survival,
        candidates=tuple(resolve(name) for name in given["candidates"]),
        rows=() if given["schedule"] is None else tuple(load_rows(given["schedule"])),
        knob=given["knob"],
        target=given["target"],
        gains=given["gains"],
        every=given["every"],
        floor=given["floor"],
        slo_s=given["slo"],
        stale_s=given["stale"],
    )


def _measured(workload: Path) -> "tuple[StepCost, tuple[float, ...]]":
    """Step costs and survival by position of a workload of a finished run."""
    from draftgate.experiment.rundir import read_cost, read_json

    cost, result = read_cost(workload.parent / "cost.json"), read_json(workload.parent / "result.json")
    rows = [w for w in (result or {}).get("workloads", ()) if w["name"] == workload.name]
    if cost is None or not rows:
        raise TraceError(f"{workload}: is no workload of a finished run; pass RUN_DIRECTORY/WORKLOAD")
    return cost, tuple(row["survival"]["rate"] or 0.0 for row in rows[0]["trace"]["positions"])
