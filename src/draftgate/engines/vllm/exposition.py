"""What draftgate counts inside a server, in Prometheus' text format: the reply to the order "status" as metrics.

vLLM's own `/metrics` is put together in the API server; these counts live in the engine core and its ranks, so they
have a route of their own.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

__all__ = ["exposition"]


def exposition(status: Mapping[str, Any]) -> bytes:
    """Metrics of a status (`Control.order`). What is not known has no sample: no file, no trace, no limit.

    Args:
        status: the reply, `ranks` included.
    """
    registry = CollectorRegistry()
    registry.register(_Status(status))
    return generate_latest(registry)


class _Status(Collector):
    """One status as metric families."""

    def __init__(self, status: Mapping[str, Any]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        speculation, file, ranks = (self._status[key] for key in ("speculation", "file", "ranks"))
        digest = self._status["digest"]
        yield _gauge("policy_info", "The policy set in force, by digest.", [({"digest": digest}, 1)] if digest else [])
        yield _gauge("speculation_on", "Whether drafts are verified.", [({}, speculation["on"])])
        limit = speculation["limit_tok"]
        yield _gauge("draft_limit_tokens", "Longest draft allowed.", [] if limit is None else [({}, limit)])
        yield _gauge("policy_file_ok", "Whether the file is in force.", [({}, file["error"] is None)] if file else [])
        refused: _Samples = [({}, file["refused"])] if file else []
        yield _counter("policy_file_refused", "Times the file turned into one that cannot be used.", refused)
        yield _counter("faults", "Calls that failed and were left to vLLM.", _faults(ranks))
        yield _counter("verified_steps", "Steps that draftgate verified.", _sums(ranks, "verified"))
        yield _counter("unknown_policy_requests", "Requests that named nothing in force.", _sums(ranks, "unknown"))
        yield _counter("trace_requests", "Recorded requests, by what became of them.", _traced(ranks))


_Samples = Iterable[tuple[Mapping[str, str], float]]


def _gauge(name: str, says: str, samples: _Samples) -> Metric:
    return _filled(GaugeMetricFamily(f"draftgate_engine_{name}", says), f"draftgate_engine_{name}", samples)


def _counter(name: str, says: str, samples: _Samples) -> Metric:
    return _filled(CounterMetricFamily(f"draftgate_engine_{name}", says), f"draftgate_engine_{name}_total", samples)


def _filled(family: Metric, name: str, samples: _Samples) -> Metric:
    for labels, value in samples:
        family.add_sample(name, dict(labels), float(value))
    return family


def _faults(ranks: Iterable[Mapping[str, Any]]) -> _Samples:
    return [({"rank": str(r["rank"]), "hook": hook}, n) for r in ranks for hook, n in r.get("faults", {}).items()]


def _sums(ranks: Iterable[Mapping[str, Any]], key: str) -> _Samples:
    return [({"rank": str(r["rank"])}, sum(runner[key] for runner in r.get("runners", ()))) for r in ranks]


def _traced(ranks: Iterable[Mapping[str, Any]]) -> _Samples:
    for rank in ranks:
        for runner in rank.get("runners", ()):
            for outcome, n in (runner["trace"] or {}).items():
                yield {"rank": str(rank["rank"]), "outcome": outcome}, n
