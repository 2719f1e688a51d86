"""From a controller's options to somebody who watches its loop."""

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from draftgate.control.compose import ALL
from draftgate.control.fetch import SourceError
from draftgate.control.watch import Look, Watcher
from draftgate.errors import ConfigError, MissingExtraError, require
from draftgate.observe.exporter import Exporter
from draftgate.observe.otel import pushing
from draftgate.observe.recorded import EngineStatus, TraceTail

__all__ = ["Sinks", "watching"]

_OTLP = "OTEL_EXPORTER_OTLP_ENDPOINT"


@dataclass(frozen=True, slots=True)
class Sinks:
    """Where metrics go, and what more to read for them.

    Attributes:
        address: [HOST:]PORT to serve Prometheus on; None serves nothing.
        otlp: root URL of a collector; None takes what the environment says, if it says something.
        trace: folder that the engine records into; None reads none.
        engine: root URL of a vLLM server with draftgate, to ask what its trace dropped; None asks nobody.
        key: its API key.
    """

    address: str | None = None
    otlp: str | None = None
    trace: Path | None = None
    engine: str | None = None
    key: str | None = None


@contextmanager
def watching(sinks: Sinks, workloads: Mapping[str, str], keep_s: float) -> Iterator[Watcher | None]:
    """A watcher for a loop, whose metrics are exported while the block runs; None when they go nowhere.

    Args:
        workloads: of the operator's policies.
        keep_s: how long the gauges of a window are shown.

    Raises:
        ConfigError: an address cannot be listened on, or is none.
        MissingExtraError: what was asked for is not installed.
    """
    exporter = Exporter((ALL, *workloads), keep_s=keep_s)
    with ExitStack() as stack:
        if sinks.address is not None:
            stack.enter_context(exporter.serve(*_address(sinks.address)))
        if pushes := sinks.otlp is not None or _otlp_wanted():
            stack.enter_context(pushing(exporter, sinks.otlp))
        if sinks.address is None and not pushes:
            if sinks.trace is not None:
                raise ConfigError("--trace is read for metrics only: give --metrics-port or --otlp too")
            yield None
            return
        tail = None if sinks.trace is None else TraceTail(sinks.trace)
        engine = None if sinks.engine is None else EngineStatus(sinks.engine, sinks.key)
        yield lambda look: _watch(exporter, tail, engine, look)


def _watch(exporter: Exporter, tail: TraceTail | None, engine: EngineStatus | None, look: Look) -> None:
    failing = list(look.failing)
    if tail is not None:
        unusable = tail.unusable
        for workload, counts in tail.poll().items():
            exporter.recorded(workload, counts)
        failing += ["trace"] * (tail.unusable > unusable)
    if engine is not None and look.controls:
        try:
            exporter.traced(engine.poll())
        except SourceError:
            failing.append("status")
    exporter.looked(replace(look, failing=tuple(failing)))


def _otlp_wanted() -> bool:
    """Whether the environment names a collector. It may do so for other programs: without the SDK it is not for us."""
    if not os.environ.get(_OTLP):
        return False
    try:
        require("opentelemetry.sdk.metrics", "otel")
    except MissingExtraError:
        return False
    return True


def _address(text: str) -> tuple[int, str]:
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise ConfigError(f"--metrics-port must be a port or HOST:PORT but got {text!r}")
    return int(port), host.strip("[]") or "127.0.0.1"
