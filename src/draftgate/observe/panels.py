"""What the dashboard shows: panels and their queries, as data."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from draftgate.observe.query import per, ratio, selector

__all__ = ["ROWS", "Panel", "Query"]

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
                _growth("draftgate_trace_dropped_requests_total", "reason", legend="{{instance}} dropped, {{reason}}"),
            ),
        ),
    ),
}
