"""Where windows come from: an engine's Prometheus endpoint, or a file of windows or finished requests.

A source may fail at any poll: it raises `SourceError`, and the loop holds. What it returns is never made up: a metric
that is missing is an error or None, never 0.
"""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from draftgate.control.counters import CounterWindows, Snapshot
from draftgate.control.fetch import SourceError, checked_url, fetch
from draftgate.control.window import Window
from draftgate.errors import require

__all__ = ["VLLM", "PrometheusSource", "Source", "SourceError", "snapshot"]


class Source(Protocol):
    """Gives windows."""

    @property
    def left_out(self) -> str | None:
        """What the last poll had to leave out, and why; None when nothing."""
        ...

    def poll(self) -> list[Window]:
        """Windows that were completed since the last poll.

        Raises:
            SourceError: they cannot be read now.
        """
        ...

    def in_force(self) -> str | None:
        """Digest of the policies that the engine has in force; None when this source does not know."""
        ...


# Field of `Snapshot` -> metric, as vLLM 0.32 names them (v1/metrics/loggers.py, v1/spec_decode/metrics.py).
VLLM: Mapping[str, str] = {
    "drafts": "vllm:spec_decode_num_drafts_total",
    "drafted": "vllm:spec_decode_num_draft_tokens_total",
    "accepted": "vllm:spec_decode_num_accepted_tokens_total",
    "kept": "vllm:spec_decode_num_accepted_tokens_per_pos_total",
    "generated": "vllm:generation_tokens_total",
    "first_tok": "vllm:time_to_first_token_seconds_count",
    "requests": "vllm:request_success_total",
    "steps": "vllm:inter_token_latency_seconds_count",
    "sequence_s": "vllm:inter_token_latency_seconds_sum",
    "running": "vllm:num_requests_running",
    "latency": "vllm:request_time_per_output_token_seconds_bucket",
    "started_s": "process_start_time_seconds",
}
_NEEDED = ("drafts", "drafted", "accepted", "generated")
_FLOATS = ("sequence_s", "running", "started_s")
_UNLABELLED = ("started_s",)
_FAILED = ("error", "abort")  # finished_reason of requests that gave no whole output


class PrometheusSource:
    """Scrapes an engine's /metrics.

    Attributes:
        windows: cuts the scrapes.
    """

    def __init__(
        self,
        url: str,
        mapping: Mapping[str, str] = VLLM,
        model: str | None = None,
        windows: CounterWindows | None = None,
        timeout_s: float = 5.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Name an endpoint.

        Args:
            url: of the metrics, or of the server, whose /metrics is then taken.
            mapping: metric of each field of `Snapshot`.
            model: only samples with this label model_name count; None takes the one there is.

        Raises:
            ConfigError: it is no HTTP URL.
        """
        url = checked_url(url)
        self._url = url if url.endswith("/metrics") else f"{url}/metrics"
        self._mapping, self._model, self._timeout_s, self._clock = mapping, model, timeout_s, clock
        self.windows = windows or CounterWindows()
        self.left_out: str | None = None

    def poll(self) -> list[Window]:
        """Scrape once."""
        text = fetch(self._url, self._timeout_s)
        if not text.endswith("\n"):
            raise SourceError(f"{self._url}: the text is cut short")
        restarts = self.windows.restarts
        window = self.windows.add(snapshot(text, self._clock(), self._mapping, self._model))
        self.left_out = "the window in which the engine restarted" if self.windows.restarts > restarts else None
        return [] if window is None else [window]

    def in_force(self) -> str | None:
        """Not known here."""
        return None


def snapshot(text: str, time_s: float, mapping: Mapping[str, str] = VLLM, model: str | None = None) -> Snapshot:
    """Read one scrape in Prometheus' text format; engines of one server are added up.

    Raises:
        SourceError: it is not in that format, needed metrics are missing, a value is NaN, infinite or negative, or
            several models are served and none was chosen.
        MissingExtraError: prometheus-client is not installed.
    """
    parser = require("prometheus_client.parser", "control")
    fields = {metric: name for name, metric in mapping.items()}
    found: dict[str, Any] = {"latency": {}, "kept": {}}
    models = set()
    try:
        for sample in (s for family in parser.text_string_to_metric_families(text) for s in family.samples):
            name = fields.get(sample.name)
            if name is None:
                continue
            if name not in _UNLABELLED and (served := sample.labels.get("model_name")) is not None:
                if model not in (None, served):
                    continue
                models.add(served)
            _add(found, name, sample.labels, _number(sample.name, sample.value))
    except (ValueError, KeyError, IndexError) as error:
        raise SourceError(f"metrics are not in Prometheus' text format: {error}") from error
    if len(models) > 1:
        raise SourceError(f"metrics are of {len(models)} models, {sorted(models)}: choose one with --model")
    return _snapshot(found, time_s, mapping, model)


def _snapshot(found: dict[str, Any], time_s: float, mapping: Mapping[str, str], model: str | None) -> Snapshot:
    if missing := [mapping[name] for name in _NEEDED if name not in found]:
        of = "" if model is None else f" of model '{model}'"
        raise SourceError(f"metric {missing[0]}{of} is missing: does this engine speculate, and count it?")
    kept: dict[int, int] = found.pop("kept")
    if sorted(kept) != list(range(len(kept))):
        raise SourceError(f"{mapping['kept']}: positions {sorted(kept)} have gaps")
    return Snapshot(time_s, kept=tuple(kept[i] for i in range(len(kept))), **found)


def _number(metric: str, value: float) -> float:
    if not math.isfinite(value) or value < 0:
        raise SourceError(f"{metric} is {value}")
    return value


def _add(found: dict[str, Any], name: str, labels: Mapping[str, str], value: float) -> None:
    if name == "kept":
        _count(found["kept"], int(labels["position"]), value)
    elif name == "latency":
        _count(found["latency"], float(labels["le"]), value)
    elif name == "started_s":
        found[name] = max(found.get(name, 0.0), value)
    else:
        if name == "requests" and labels.get("finished_reason") in _FAILED:
            name = "errors"
        found[name] = found.get(name, 0) + (value if name in _FLOATS else int(value))


def _count(into: dict[Any, int], key: Any, value: float) -> None:
    into[key] = into.get(key, 0) + int(value)
