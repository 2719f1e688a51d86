"""Every metric as data: its name, what it means, its labels, and how it is read.

Exporters, dashboard, alert rules and documentation are made from this table. Names follow Prometheus' conventions:
base units, `_total` on counters, `_ratio` on shares, and moments instead of ages (`time() - x` is the age). What is not
known is None, and then there is no series. Counters count from 0 since the controller started.
"""

from collections.abc import Mapping
from typing import Any

import draftgate
from draftgate.control.breaker import Phase
from draftgate.control.lane import Decision
from draftgate.control.watch import LaneState, Look
from draftgate.control.window import Window
from draftgate.observe.metric import LABELS, POSITIONS, Metric, Reading

__all__ = ["METRICS", "OF_DECISION", "OF_LANE", "OF_LOOK", "OF_RECORDED", "OF_STATUS", "OF_WINDOW", "metric"]

_BY = ("workload",)
_AT = ("workload", "position")


def _positions(values: tuple[float | None, ...]) -> Mapping[str, float | None]:
    return {str(i): value for i, value in enumerate(values[:POSITIONS])}


def _counted(name: str, help: str, field: str) -> Metric[Window]:
    return Metric(f"draftgate_{name}_total", "counter", help, f"Window.{field}", _BY, lambda w: getattr(w, field))


def _shown(name: str, help: str, field: str, labels: tuple[str, ...] = _BY) -> Metric[Window]:
    def read(window: Window) -> Reading:
        value: Any = getattr(window, field)
        return _positions(value) if isinstance(value, tuple) else value

    return Metric(f"draftgate_{name}", "gauge", help, f"Window.{field}", labels, read)


OF_WINDOW: tuple[Metric[Window], ...] = (
    _counted("requests", "Finished requests.", "requests"),
    _counted("failed_requests", "Requests that failed.", "errors"),
    _counted("steps", "Decode steps, summed over sequences.", "steps"),
    _counted("drafting_steps", "Decode steps that drafted.", "covered"),
    _counted("drafted_tokens", "Drafted tokens.", "drafted"),
    _counted("accepted_tokens", "Drafted tokens that were kept, without bonus tokens.", "accepted"),
    _counted("committed_tokens", "Output tokens, bonus tokens included.", "committed"),
    _counted("judged_outputs", "Outputs that were checked.", "judged"),
    _counted("valid_outputs", "Checked outputs that passed.", "valid"),
    Metric(
        "draftgate_engine_seconds_total",
        "counter",
        "Engine seconds spent in decode steps, a batched step counted once.",
        "Window.seconds",
        _BY,
        lambda w: w.seconds or None,
    ),
    Metric(
        "draftgate_reached_drafts_total",
        "counter",
        "Drafts that had a position and kept all before it.",
        "Window.reached",
        _AT,
        lambda w: _positions(w.reached),
    ),
    Metric(
        "draftgate_kept_drafts_total",
        "counter",
        "Drafts that kept a position.",
        "Window.kept",
        _AT,
        lambda w: _positions(w.kept),
    ),
    _shown("acceptance_ratio", "Accepted over drafted tokens in the last window.", "acceptance_rate"),
    _shown(
        "acceptance_length_tokens",
        "Output tokens per decode step in the last window, bonus token included.",
        "acceptance_length",
    ),
    _shown("coverage_ratio", "Share of decode steps that drafted in the last window.", "coverage"),
    _shown("survival_ratio", "Share of drafting steps that kept a position in the last window.", "survival", _AT),
    _shown(
        "conditional_acceptance_ratio",
        "Share of the drafts that reached a position and kept it, in the last window.",
        "conditional",
        _AT,
    ),
    _shown("throughput_tokens_per_second", "Output tokens per engine second in the last window.", "tokens_per_s"),
    _shown(
        "goodput_tokens_per_second",
        "Valid output tokens per engine second in the last window; all count as valid when none was judged.",
        "goodput",
    ),
    _shown("validity_ratio", "Share of the judged outputs that are valid in the last window.", "validity"),
    _shown("batch_sequences", "Mean sequences per decode step in the last window.", "batch"),
    _shown("token_latency_p95_seconds", "95th percentile of seconds per output token, last window.", "latency_s"),
    Metric(
        "draftgate_window_end_timestamp_seconds",
        "gauge",
        "When the last window ended, by the clock of its source.",
        "Window.end_s",
        _BY,
        lambda w: w.end_s,
        lasts=True,
    ),
    Metric(
        "draftgate_baseline_measured_timestamp_seconds",
        "gauge",
        "When the last window without drafting ended; absent while the baseline is only modelled.",
        "Window.end_s",
        _BY,
        lambda w: w.end_s if w.steps and not w.covered else None,
        lasts=True,
    ),
)
"""Read from each window, for its workload."""


def _speedup(decision: Decision) -> float | None:
    rate, baseline = decision.tokens_per_s, decision.baseline_tok_s
    return rate / baseline if rate is not None and baseline else None


OF_DECISION: tuple[Metric[Decision], ...] = (
    Metric(
        "draftgate_decisions_total",
        "counter",
        "Decisions, by what was decided.",
        "Decision.action",
        ("workload", "action"),
        lambda d: {action: float(action == d.action) for action in LABELS["action"] or ()},
    ),
    Metric(
        "draftgate_baseline_tokens_per_second",
        "gauge",
        "Output tokens per engine second without speculation at the present batch size, measured or modelled.",
        "Decision.baseline_tok_s",
        _BY,
        lambda d: d.baseline_tok_s,
    ),
    Metric(
        "draftgate_speedup_ratio",
        "gauge",
        "Throughput of the last window over the baseline's.",
        "Decision.tokens_per_s / baseline_tok_s",
        _BY,
        _speedup,
    ),
)
"""Read from each decision, for its workload."""

OF_LANE: tuple[Metric[LaneState], ...] = (
    Metric(
        "draftgate_speculation_on",
        "gauge",
        "1 when speculation is wanted on, 0 when off.",
        "LaneState.setting.on",
        _BY,
        lambda s: float(s.setting.on),
    ),
    Metric(
        "draftgate_draft_length_tokens",
        "gauge",
        "Longest draft that is wanted in force; 0 when off.",
        "LaneState.setting.k",
        _BY,
        lambda s: s.setting.k,
    ),
    Metric(
        "draftgate_tau",
        "gauge",
        "Threshold that is wanted in force; absent when off, or when the rule has none.",
        "LaneState.setting.tau",
        _BY,
        lambda s: s.setting.tau,
    ),
    Metric(
        "draftgate_cut",
        "gauge",
        "Least evidence of a drafted token that is wanted in force; absent without one.",
        "LaneState.setting.cut",
        _BY,
        lambda s: s.setting.cut,
    ),
    Metric(
        "draftgate_breaker_state",
        "gauge",
        "1 for the state that the breaker is in, 0 for the others.",
        "LaneState.phase",
        ("workload", "state"),
        lambda s: {str(phase): float(phase is s.phase) for phase in Phase},
    ),
)
"""Read from each look, for every workload under control."""


def _errors(look: Look) -> Reading:
    failing = {topic.replace(" ", "_") for topic in look.failing}
    flawed = sum(window.flaw() is not None for window in look.windows)
    return {kind: float(kind in failing) for kind in LABELS["kind"] or ()} | {"window": float(flawed)}


OF_LOOK: tuple[Metric[Look], ...] = (
    Metric(
        "draftgate_build_info",
        "gauge",
        "Always 1; the label is the version.",
        "draftgate.__version__",
        ("version",),
        lambda look: {draftgate.__version__: 1.0},
        lasts=True,
    ),
    Metric(
        "draftgate_controls",
        "gauge",
        "1 when this process holds the lease, 0 when it stands by.",
        "Look.controls",
        (),
        lambda look: float(look.controls),
        lasts=True,
    ),
    Metric(
        "draftgate_look_timestamp_seconds",
        "gauge",
        "When control last looked.",
        "Look.time_s",
        (),
        lambda look: look.time_s,
        lasts=True,
    ),
    Metric(
        "draftgate_metrics_timestamp_seconds",
        "gauge",
        "When the engine's metrics last arrived; absent before.",
        "Look.fresh_s",
        (),
        lambda look: look.fresh_s,
        lasts=True,
    ),
    Metric(
        "draftgate_in_force",
        "gauge",
        "1 when the engine reads back what is wanted in force, 0 when something else; absent when it cannot be told.",
        "Look.in_force",
        (),
        lambda look: None if look.in_force is None else float(look.in_force),
    ),
    Metric(
        "draftgate_errors_total",
        "counter",
        "Looks at which something failed, and windows whose figures cannot be true, by what.",
        "Look.failing, Window.flaw",
        ("kind",),
        _errors,
    ),
)
"""Read from each look."""

OF_RECORDED: tuple[Metric[Mapping[str, tuple[int, int]]], ...] = (
    Metric(
        "draftgate_category_reached_tokens_total",
        "counter",
        "Recorded drafted tokens whose predecessors in the draft were all kept, by token category.",
        "trace",
        ("workload", "category"),
        lambda counts: {name: reached for name, (reached, _) in counts.items()},
    ),
    Metric(
        "draftgate_category_kept_tokens_total",
        "counter",
        "Recorded drafted tokens that were kept, by token category.",
        "trace",
        ("workload", "category"),
        lambda counts: {name: kept for name, (_, kept) in counts.items()},
    ),
)
"""Read from new segments of a trace, for each workload: category -> (reached, kept)."""

OF_STATUS: tuple[Metric[Mapping[str, int]], ...] = (
    Metric(
        "draftgate_trace_written_requests_total",
        "counter",
        "Requests that the engine has recorded since it started.",
        "/draftgate/status",
        (),
        lambda counts: counts.get("written", 0),
    ),
    Metric(
        "draftgate_trace_dropped_requests_total",
        "counter",
        "Requests that the engine could not record whole since it started, by why.",
        "/draftgate/status",
        ("reason",),
        lambda counts: {reason: counts.get(reason.replace("_", " "), 0) for reason in LABELS["reason"] or ()},
    ),
)
"""Totals of the engine's own, so not added up here; a fall is its restart."""

METRICS: tuple[Metric[Any], ...] = (*OF_LOOK, *OF_LANE, *OF_WINDOW, *OF_DECISION, *OF_RECORDED, *OF_STATUS)
"""All of them, in the order they are exported."""

_BY_NAME = {row.name: row for row in METRICS}


def metric(name: str) -> Metric[Any]:
    """The metric of that name.

    Raises:
        KeyError: there is none; a query that is written here names it.
    """
    return _BY_NAME[name]
