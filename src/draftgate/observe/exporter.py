"""The metrics of one controller, kept in memory, and served to Prometheus.

    exporter = Exporter(workloads=("code", "chat"))
    with exporter.serve(9464) as port:
        loop = Loop(..., watcher=exporter.looked)

The loop's thread writes, scrapes read. Counters start at 0 with the process, as all Prometheus counters do: `rate` and
`increase` see a restart as a reset, and lose at most what was counted since the last scrape. Gauges of a window are
dropped when no further window comes for a while: a dashboard must not show an hour of what was true for a minute.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from draftgate.control.compose import ALL
from draftgate.control.lane import Decision
from draftgate.control.watch import Look
from draftgate.control.window import Window
from draftgate.errors import ConfigError, require
from draftgate.observe.metric import LABELS, OTHER, Metric
from draftgate.observe.table import METRICS, OF_DECISION, OF_LANE, OF_LOOK, OF_RECORDED, OF_STATUS, OF_WINDOW

__all__ = ["Exporter", "Sample", "registry"]

Sample = tuple[Mapping[str, str], float]
"""Labels and value."""

_LONGEST = 64  # characters of a workload's name
_SILENT_S = 5.0  # of a client that opens a connection and says nothing
_DECISIONS = "draftgate_decisions_total"
_PASSING: tuple[Metric[Any], ...] = (*OF_WINDOW, *OF_DECISION)
_KNOWN_BY_HOLDER: tuple[Metric[Any], ...] = (*OF_LANE, *_PASSING)


class Exporter:
    """Takes windows, decisions and looks; gives samples."""

    def __init__(
        self,
        workloads: Iterable[str] = (),
        most: int = 32,
        keep_s: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start empty.

        Args:
            workloads: names that have series of their own whatever else comes: those of the policies.
            most: workloads with series of their own. Names come from clients, so there must be a limit; what is beyond
                it is added up as "other", and has counters only.
            keep_s: how long the gauges of a window are shown.
            clock: seconds that never fall.
        """
        self._names = dict.fromkeys(workloads)
        self._most, self._keep_s, self._clock = max(most, len(self._names)), keep_s, clock
        self._lock = threading.RLock()
        # metric -> workload ("" where it has none) -> last label's value ("" where it has none) -> value
        self._values: dict[str, dict[str, dict[str, float]]] = {row.name: {} for row in METRICS}
        self._seen_s: dict[str, float] = {}

    def observe(self, window: Window) -> None:
        """Take a window; one whose figures cannot be true is left out, and counted by `looked`."""
        if window.flaw() is not None:
            return
        with self._lock:
            workload = self._label(window.workload)
            self._seen_s[workload] = self._clock()
            self._take(OF_WINDOW, window, workload)

    def decided(self, decision: Decision) -> None:
        """Take a decision."""
        with self._lock:
            workload = self._label(decision.workload)
            self._seen_s.setdefault(workload, self._clock())
            self._take(OF_DECISION, decision, workload)

    def recorded(self, workload: str, counts: Mapping[str, tuple[int, int]]) -> None:
        """Add what a trace shows: token category -> (reached, kept) tokens."""
        with self._lock:
            self._take(OF_RECORDED, counts, self._label(workload))

    def traced(self, counts: Mapping[str, int]) -> None:
        """Take an engine's own totals of recorded and dropped requests; empty when it records none."""
        with self._lock:
            for row in OF_STATUS:
                self._values[row.name][""] = self._parts(row, counts) if counts else {}

    def looked(self, look: Look) -> None:
        """Take a tick of the loop, with all that is in it; a scrape sees all of it or nothing."""
        with self._lock:
            for window in look.windows:
                self.observe(window)
            for decision in look.decisions:
                self.decided(decision)
            if not look.controls:
                self._forget()
            self._take(OF_LOOK, look, "")
            for name, state in look.lanes.items():
                workload = self._label(name)
                self._take(OF_LANE, state, workload)
                # A counter that begins at its first event hides that event from `increase`.
                self._values[_DECISIONS].setdefault(workload, dict.fromkeys(LABELS["action"] or (), 0.0))

    def samples(self, row: Metric[Any]) -> list[Sample]:
        """The samples of one metric; none when nothing is known."""
        with self._lock:
            self._drop_old()
            return [
                (dict(zip(row.labels, (name for name in (workload, part) if name), strict=True)), value)
                for workload, parts in self._values[row.name].items()
                for part, value in parts.items()
            ]

    def snapshot(self) -> list[tuple[Metric[Any], list[Sample]]]:
        """All metrics that have samples, as they were at one moment."""
        with self._lock:
            return [(row, samples) for row in METRICS if (samples := self.samples(row))]

    @contextmanager
    def serve(self, port: int, host: str = "127.0.0.1") -> Iterator[int]:
        """Serve /metrics while the block runs.

        Args:
            port: 0 takes a free one.
            host: the interface; "0.0.0.0" for all.

        Yields:
            The port.

        Raises:
            ConfigError: it cannot be listened on.
            MissingExtraError: prometheus-client is not installed.
        """
        client = require("prometheus_client", "observe")
        try:
            server, thread = client.start_http_server(port, host, registry(self))
        except (OSError, OverflowError) as error:
            raise ConfigError(f"metrics: cannot listen on {host}:{port}: {error}; choose another port") from error
        server.RequestHandlerClass = _impatient(server.RequestHandlerClass)
        try:
            yield int(server.server_port)
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def _label(self, workload: str) -> str:
        """The name under which a workload is exported."""
        workload = workload or ALL
        if workload in self._names:
            return workload
        if len(self._names) >= self._most or len(workload) > _LONGEST or not workload.isprintable():
            return OTHER
        self._names[workload] = None
        return workload

    def _take(self, rows: Sequence[Metric[Any]], value: Any, workload: str) -> None:
        for row in rows:
            parts, by_workload = self._parts(row, value), self._values[row.name]
            if row.kind == "counter":
                totals = by_workload.setdefault(workload, {}) if parts else {}
                for part, more in parts.items():
                    totals[part] = totals.get(part, 0.0) + more
            elif workload != OTHER and (parts or not row.lasts):
                by_workload[workload] = parts

    @staticmethod
    def _parts(row: Metric[Any], value: Any) -> dict[str, float]:
        """What a metric reads, by the value of its last label; without what is not known or not in the table."""
        reading = row.read(value)
        if not isinstance(reading, Mapping):
            return {} if reading is None else {"": float(reading)}
        known = LABELS[row.labels[-1]] or ()
        return {part: float(v) for part, v in reading.items() if v is not None and part in known}

    def _forget(self) -> None:
        """Who stands by does not know what is in force, nor what it does."""
        for row in _KNOWN_BY_HOLDER:
            if row.kind == "gauge":
                self._values[row.name].clear()

    def _drop_old(self) -> None:
        now_s = self._clock()
        for workload in [name for name, at_s in self._seen_s.items() if now_s - at_s > self._keep_s]:
            del self._seen_s[workload]
            for row in _PASSING:
                if row.kind == "gauge" and not row.lasts:
                    self._values[row.name].pop(workload, None)


def _impatient(handler: type[Any]) -> type[Any]:
    """A request handler that gives up on silent clients, without a traceback for those that go away."""

    class Impatient(handler):  # type: ignore[misc]
        timeout = _SILENT_S

        def handle(self) -> None:
            with suppress(TimeoutError, ConnectionError):
                super().handle()

    return Impatient


class _Collector:
    """The exporter as prometheus_client wants it."""

    def __init__(
        self, exporter: Exporter, families: Mapping[str, Callable[..., Any]], sample: Callable[..., Any]
    ) -> None:
        self._exporter, self._families, self._sample = exporter, families, sample

    def collect(self) -> Iterator[Any]:
        for row, samples in self._exporter.snapshot():
            family = self._families[row.kind](row.name, row.help)
            family.samples = [self._sample(row.name, labels, value) for labels, value in samples]
            yield family

    def describe(self) -> Iterator[Any]:
        """What it may give, so that a name given twice is refused and scrapes can choose by name."""
        return (self._families[row.kind](row.name, row.help) for row in METRICS)


def registry(exporter: Exporter) -> Any:
    """A registry with these metrics and those of the process.

    Raises:
        MissingExtraError: prometheus-client is not installed.
    """
    client, core = require("prometheus_client", "observe"), require("prometheus_client.core", "observe")
    families = {"counter": core.CounterMetricFamily, "gauge": core.GaugeMetricFamily}
    made = client.CollectorRegistry()
    made.register(_Collector(exporter, families, core.Sample))
    client.ProcessCollector(registry=made)
    return made
