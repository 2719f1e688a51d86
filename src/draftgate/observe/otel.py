"""The same metrics through OpenTelemetry's own SDK, pushed by OTLP over HTTP.

How often, with which headers and for how long is what OpenTelemetry's environment variables say. Counters lose their
`_total` and nothing has a unit, so that a collector that translates to Prometheus gives the names of the table again.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import draftgate
from draftgate.control.fetch import checked_url
from draftgate.errors import require
from draftgate.observe.exporter import Exporter
from draftgate.observe.metric import Metric
from draftgate.observe.table import METRICS

__all__ = ["pushing"]

_PATH = "/v1/metrics"
_CLOSE_MS = 5_000


@contextmanager
def pushing(exporter: Exporter, endpoint: str | None = None) -> Iterator[None]:
    """Push while the block runs, and once more at its end.

    A collector that cannot be reached is logged by the SDK and tried again; the loop does not notice.

    Args:
        endpoint: root URL of a collector; None takes what OTEL_EXPORTER_OTLP_ENDPOINT says.

    Raises:
        ConfigError: the endpoint is no HTTP URL.
        MissingExtraError: the SDK is not installed.
    """
    metrics, export = require("opentelemetry.sdk.metrics", "otel"), require("opentelemetry.sdk.metrics.export", "otel")
    http = require("opentelemetry.exporter.otlp.proto.http.metric_exporter", "otel")
    # An endpoint that is given is used as it is; what the environment says gets its path from the SDK.
    url = None if endpoint is None else checked_url(endpoint).removesuffix(_PATH) + _PATH
    reader = export.PeriodicExportingMetricReader(http.OTLPMetricExporter(endpoint=url))
    provider = metrics.MeterProvider([reader], _resource(), shutdown_on_exit=False)
    meter = provider.get_meter("draftgate", draftgate.__version__)
    for row in METRICS:
        kind = meter.create_observable_counter if row.kind == "counter" else meter.create_observable_gauge
        kind(row.name.removesuffix("_total"), [_callback(exporter, row)], description=row.help)
    try:
        yield
    finally:
        provider.shutdown(_CLOSE_MS)


def _callback(exporter: Exporter, row: Metric[Any]) -> Callable[[Any], list[Any]]:
    observation = require("opentelemetry.metrics", "otel").Observation
    return lambda _: [observation(value, labels) for labels, value in exporter.samples(row)]


def _resource() -> Any:
    """What the environment says of this service, which is named draftgate unless that says otherwise."""
    resource = require("opentelemetry.sdk.resources", "otel").Resource
    named = "OTEL_SERVICE_NAME" in os.environ or "service.name" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return resource.create({} if named else {"service.name": "draftgate"})
