"""The Grafana dashboard, made from the metric table."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from draftgate.observe.query import per, ratio, selector

__all__ = ["ROWS", "Panel", "dashboard"]

_WIDTH, _HEIGHT = 8, 8  # of a panel on Grafana's grid, which is 24 wide
_SCHEMA = 36  # of Grafana 10; later ones read it
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_MATCH = ('job=~"$job"', 'instance=~"$instance"', 'workload=~"$workload"')
_OVER = "$over"
_EACH = "{{instance}} {{workload}}"

Query = tuple[str, str]
"""PromQL, and the legend of its series."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel.

    Attributes:
        unit: as Grafana names units; "none", "percentunit", "s".
        kind: Grafana's panel type.
        names: what values are called instead of their numbers.
    """

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    kind: str = "timeseries"
    names: Mapping[str, str] | None = None


def _now(name: str, legend: str = _EACH, *matchers: str) -> Query:
    return selector(name, *_MATCH, *matchers), legend


def _share(part: str, whole: str, *by: str, legend: str = _EACH) -> Query:
    return ratio(part, whole, _OVER, ("instance", "workload", *by), *_MATCH), legend


def _growth(name: str, *by: str, legend: str = _EACH, matchers: Iterable[str] = ()) -> Query:
    return per(name, _OVER, ("instance", *by), *_MATCH, *matchers), legend


_ON_OFF = {"0": "off", "1": "on"}

ROWS: Mapping[str, tuple[Panel, ...]] = {
    "Speed": (
        Panel(
            "Speedup",
            "Throughput of the last window over that without speculation. The baseline is measured while off, else "
            "modelled from step costs.",
            "none",
            (_now("draftgate_speedup_ratio"),),
        ),
        Panel(
            "Goodput and baseline",
            "Valid output tokens per engine second, and what no speculation gives at this batch size.",
            "none",
            (
                _now("draftgate_goodput_tokens_per_second", f"goodput {_EACH}"),
                _now("draftgate_baseline_tokens_per_second", f"baseline {_EACH}"),
            ),
        ),
        Panel(
            "Age of the measured baseline",
            "Since the last window without drafting. No line: the baseline is only modelled.",
            "s",
            ((f"time() - {selector('draftgate_baseline_measured_timestamp_seconds', *_MATCH)}", _EACH),),
        ),
        Panel("Batch", "Mean sequences per decode step.", "none", (_now("draftgate_batch_sequences"),)),
        Panel(
            "Latency of a token, p95",
            "95th percentile of seconds per output token.",
            "s",
            (_now("draftgate_token_latency_p95_seconds"),),
        ),
        Panel(
            "Output tokens",
            "Committed tokens a second of wall time.",
            "none",
            ((f"sum by (instance, workload) (rate({_now('draftgate_committed_tokens_total')[0]}[{_OVER}]))", _EACH),),
        ),
    ),
    "Acceptance": (
        Panel(
            "Acceptance rate",
            "Accepted over drafted tokens, without bonus tokens. It is not the objective: see speedup.",
            "percentunit",
            (_share("draftgate_accepted_tokens_total", "draftgate_drafted_tokens_total"),),
        ),
        Panel(
            "Acceptance length",
            "Output tokens per decode step, bonus token included.",
            "none",
            (_share("draftgate_committed_tokens_total", "draftgate_steps_total"),),
        ),
        Panel(
            "Coverage",
            "Share of decode steps that drafted. A high acceptance rate with little coverage changes little.",
            "percentunit",
            (_share("draftgate_drafting_steps_total", "draftgate_steps_total"),),
        ),
        Panel(
            "Survival by position",
            "Share of drafting steps that kept a position, in the last window.",
            "percentunit",
            (_now("draftgate_survival_ratio", f"{_EACH} {{{{position}}}}"),),
        ),
        Panel(
            "Acceptance by position",
            "Of the drafts that reached a position, the share that kept it.",
            "percentunit",
            (
                _share(
                    "draftgate_kept_drafts_total",
                    "draftgate_reached_drafts_total",
                    "position",
                    legend=f"{_EACH} {{{{position}}}}",
                ),
            ),
        ),
        Panel(
            "Acceptance by token category",
            "Of the recorded drafted tokens that were reached, the share that was kept. Needs a trace.",
            "percentunit",
            (
                _share(
                    "draftgate_category_kept_tokens_total",
                    "draftgate_category_reached_tokens_total",
                    "category",
                    legend=f"{_EACH} {{{{category}}}}",
                ),
            ),
        ),
    ),
    "Quality": (
        Panel(
            "Valid outputs",
            "Share of the judged outputs that are valid.",
            "percentunit",
            (_share("draftgate_valid_outputs_total", "draftgate_judged_outputs_total"),),
        ),
        Panel(
            "Judged outputs",
            "The evidence behind the share: a window of 100 cannot certify 98%.",
            "none",
            (_growth("draftgate_judged_outputs_total", "workload"),),
        ),
        Panel(
            "Requests",
            "Finished requests, and those that failed.",
            "none",
            (
                _growth("draftgate_requests_total", "workload", legend=f"finished {_EACH}"),
                _growth("draftgate_failed_requests_total", "workload", legend=f"failed {_EACH}"),
            ),
        ),
    ),
    "Control": (
        Panel(
            "Speculation",
            "Whether speculation is wanted on.",
            "none",
            (_now("draftgate_speculation_on"),),
            "state-timeline",
            _ON_OFF,
        ),
        Panel(
            "Breaker",
            "The state that each breaker is in.",
            "none",
            ((f"{selector('draftgate_breaker_state', *_MATCH)} == 1", f"{_EACH} {{{{state}}}}"),),
            "state-timeline",
            {"1": "here"},
        ),
        Panel(
            "Policies in force",
            "Whether the engine reads back what is wanted. No line: it cannot be told.",
            "none",
            (_now("draftgate_in_force", "{{instance}}"),),
            "state-timeline",
            {"0": "differs", "1": "as wanted"},
        ),
        Panel("Draft length", "Longest draft, 0 when off.", "none", (_now("draftgate_draft_length_tokens"),)),
        Panel(
            "Threshold and cut",
            "What is wanted in force; no line where the rule has none.",
            "none",
            (_now("draftgate_tau", f"tau {_EACH}"), _now("draftgate_cut", f"cut {_EACH}")),
        ),
        Panel(
            "Decisions",
            "Changes, openings, probes and closings; windows that changed nothing are left out.",
            "none",
            (
                _growth(
                    "draftgate_decisions_total",
                    "workload",
                    "action",
                    legend=f"{_EACH} {{{{action}}}}",
                    matchers=('action!="hold"',),
                ),
            ),
        ),
        Panel(
            "Age of the engine's metrics",
            "Since they last arrived.",
            "s",
            ((f"time() - {selector('draftgate_metrics_timestamp_seconds', *_MATCH)}", "{{instance}}"),),
        ),
        Panel(
            "Errors",
            "Looks at which something failed, by what.",
            "none",
            (_growth("draftgate_errors_total", "kind", legend="{{instance}} {{kind}}"),),
        ),
        Panel(
            "Trace",
            "Requests that the engine recorded, and those it had to drop.",
            "none",
            (
                _growth("draftgate_trace_written_requests_total", legend="{{instance}} written"),
                _growth(
                    "draftgate_trace_dropped_requests_total", "reason", legend="{{instance}} dropped, {{reason}}"
                ),
            ),
        ),
    ),
}


def dashboard() -> bytes:
    """The dashboard as JSON, to be imported or provisioned."""
    return (json.dumps(_dashboard(), indent=2) + "\n").encode()


def _dashboard() -> Mapping[str, Any]:
    return {
        "uid": "draftgate",
        "title": "draftgate: speculative decoding",
        "description": "Generated by `draftgate observe dashboard`.",
        "tags": ["draftgate", "llm"],
        "timezone": "browser",
        "editable": True,
        "graphTooltip": 1,
        "schemaVersion": _SCHEMA,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": list(_variables())},
        "panels": list(_panels()),
    }


def _variables() -> Iterator[Mapping[str, Any]]:
    yield {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "hide": 0}
    known = selector("draftgate_build_info", 'job=~"$job"')
    lanes = selector("draftgate_speculation_on", 'job=~"$job"', 'instance=~"$instance"')
    yield _chosen("job", "Job", "label_values(draftgate_build_info, job)")
    yield _chosen("instance", "Controller", f"label_values({known}, instance)")
    yield _chosen("workload", "Workload", f"label_values({lanes}, workload)")
    times = ("5m", "15m", "1h", "6h")
    options = [{"text": t, "value": t, "selected": t == "15m"} for t in times]
    yield {
        "name": "over",
        "label": "Shares over",
        "type": "interval",
        "query": ",".join(times),
        "options": options,
        "current": {"text": "15m", "value": "15m", "selected": True},
        "hide": 0,
    }


def _chosen(name: str, label: str, query: str) -> Mapping[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _DATASOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,  # when the time range changes
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all", "selected": True},
        "hide": 0,
    }


def _panels() -> Iterator[Mapping[str, Any]]:
    number, y = 0, 0
    for title, panels in ROWS.items():
        number += 1
        grid = {"h": 1, "w": 24, "x": 0, "y": y}
        yield {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": grid, "panels": []}
        y += 1
        for i, panel in enumerate(panels):
            number += 1
            at = {"h": _HEIGHT, "w": _WIDTH, "x": i * _WIDTH % 24, "y": y + i * _WIDTH // 24 * _HEIGHT}
            yield _panel(panel, number, at)
        y += -(-len(panels) * _WIDTH // 24) * _HEIGHT


def _panel(panel: Panel, number: int, grid: Mapping[str, int]) -> Mapping[str, Any]:
    legend = {"showLegend": True, "displayMode": "list", "placement": "bottom"}
    options: dict[str, Any] = {"legend": legend | ({} if panel.kind != "timeseries" else {"calcs": ["lastNotNull"]})}
    if panel.kind == "timeseries":
        options["tooltip"] = {"mode": "multi", "sort": "none"}
    defaults: dict[str, Any] = {"unit": panel.unit, "mappings": _mappings(panel.names or {})}
    if panel.unit == "percentunit":
        defaults |= {"min": 0, "max": 1}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": _DATASOURCE,
        "gridPos": grid,
        "targets": [
            {
                "datasource": _DATASOURCE,
                "refId": chr(ord("A") + i),
                "expr": expr,
                "legendFormat": legend,
                "editorMode": "code",
                "range": True,
            }
            for i, (expr, legend) in enumerate(panel.queries)
        ],
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
    }


def _mappings(names: Mapping[str, str]) -> list[Mapping[str, Any]]:
    if not names:
        return []
    return [{"type": "value", "options": {value: {"text": text} for value, text in names.items()}}]
