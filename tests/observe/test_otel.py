"""OpenTelemetry's SDK against a collector that speaks OTLP over HTTP."""

import gzip
import queue
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from draftgate.errors import ConfigError
from draftgate.observe.exporter import Exporter
from draftgate.observe.otel import pushing
from draftgate.observe.table import METRICS

Received = tuple[str, ExportMetricsServiceRequest]


@pytest.fixture
def collector() -> Iterator[tuple[str, "queue.Queue[Received]"]]:
    """A collector's root address, and what it was sent: path and message."""
    received: queue.Queue[Received] = queue.Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            received.put((self.path, ExportMetricsServiceRequest.FromString(body)))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", received
    server.shutdown()
    server.server_close()
    thread.join()


def points(message: ExportMetricsServiceRequest) -> dict[str, list[tuple[dict[str, str], float]]]:
    (scope,) = message.resource_metrics[0].scope_metrics
    found = {}
    for one in scope.metrics:
        data = getattr(one, one.WhichOneof("data")).data_points
        found[one.name] = [({a.key: a.value.string_value for a in p.attributes}, p.as_double) for p in data]
    return found


def service(message: ExportMetricsServiceRequest) -> str:
    attributes = message.resource_metrics[0].resource.attributes
    return next(a.value.string_value for a in attributes if a.key == "service.name")


def test_everything_is_pushed_once_more_at_the_end(
    collector: tuple[str, "queue.Queue[Received]"], feed: Callable[[Exporter], Exporter]
) -> None:
    address, received = collector
    exporter = Exporter(["code"])
    with pushing(exporter, address):
        feed(exporter)
    path, message = received.get(timeout=30)
    assert path == "/v1/metrics"
    assert service(message) == "draftgate"
    found = points(message)
    assert set(found) == {row.name.removesuffix("_total") for row in METRICS}
    for row in METRICS:
        assert found[row.name.removesuffix("_total")] == exporter.samples(row)
    for metric in message.resource_metrics[0].scope_metrics[0].metrics:
        assert metric.unit == "", "a unit would become part of the name in Prometheus"
        if metric.WhichOneof("data") == "sum":
            assert metric.sum.is_monotonic
            assert metric.sum.aggregation_temporality == 2, "cumulative"


def test_what_is_not_known_is_not_pushed(collector: tuple[str, "queue.Queue[Received]"], look: Any) -> None:
    address, received = collector
    exporter = Exporter()
    with pushing(exporter, address):
        exporter.looked(look(in_force=None))
    found = points(received.get(timeout=30)[1])
    assert "draftgate_in_force" not in found
    assert "draftgate_acceptance_ratio" not in found
    assert found["draftgate_controls"] == [({}, 1.0)]


@pytest.mark.parametrize("named", [None, "spec"])
def test_the_environment_says_where_and_as_what(
    collector: tuple[str, "queue.Queue[Received]"], monkeypatch: pytest.MonkeyPatch, look: Any, named: str | None
) -> None:
    address, received = collector
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "50")
    if named:
        monkeypatch.setenv("OTEL_SERVICE_NAME", named)
    exporter = Exporter()
    exporter.looked(look())
    with pushing(exporter):
        path, message = received.get(timeout=30)
    assert path == "/v1/metrics"
    assert service(message) == (named or "draftgate")


def test_a_collector_that_is_away_is_logged_and_stops_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, look: Any, free_port: Callable[[], int]
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    exporter = Exporter()
    with pushing(exporter, f"http://127.0.0.1:{free_port()}"):
        exporter.looked(look())
    assert any(record.name.startswith("opentelemetry") for record in caplog.records)


def test_no_address_is_refused() -> None:
    with pytest.raises(ConfigError, match="must be an HTTP address"), pushing(Exporter(), "collector:4318"):
        pass
