import re
import socket
import threading
import urllib.request
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import prometheus_client
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from draftgate.control.breaker import Phase
from draftgate.control.lane import Decision
from draftgate.control.setting import OFF
from draftgate.control.watch import LaneState, Look
from draftgate.control.window import Window
from draftgate.errors import ConfigError
from draftgate.observe import exporter as module
from draftgate.observe.exporter import Exporter, registry
from draftgate.observe.metric import POSITIONS
from draftgate.observe.table import OF_WINDOW, metric

MakeWindow = Callable[..., Window]
MakeLook = Callable[..., Look]
MakeDecision = Callable[..., Decision]


def shown(exporter: Exporter, name: str) -> dict[tuple[str, ...], float]:
    return {tuple(labels.values()): value for labels, value in exporter.samples(metric(name))}


def text(exporter: Exporter) -> str:
    return prometheus_client.generate_latest(registry(exporter)).decode()


def scrape(port: int, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as response:
        return str(response.read().decode())


def test_a_window_is_told_in_full(window: MakeWindow) -> None:
    exporter = Exporter()
    exporter.observe(window())
    assert shown(exporter, "draftgate_acceptance_ratio") == {("code",): 0.625}
    assert shown(exporter, "draftgate_survival_ratio") == {("code", "0"): 0.875, ("code", "1"): 0.375}
    assert shown(exporter, "draftgate_validity_ratio") == {("code",): 0.95}
    assert shown(exporter, "draftgate_goodput_tokens_per_second") == {("code",): 38.0}
    assert shown(exporter, "draftgate_window_end_timestamp_seconds") == {("code",): 1060.0}


def test_what_is_not_known_is_absent_and_not_0(window: MakeWindow, decision: MakeDecision) -> None:
    exporter = Exporter()
    exporter.observe(window(seconds=0.0, judged=0, valid=0, batch=None, latency_s=None))
    exporter.decided(decision(baseline_tok_s=None))
    for name in (
        "draftgate_validity_ratio",
        "draftgate_throughput_tokens_per_second",
        "draftgate_goodput_tokens_per_second",
        "draftgate_engine_seconds_total",
        "draftgate_batch_sequences",
        "draftgate_token_latency_p95_seconds",
        "draftgate_baseline_tokens_per_second",
        "draftgate_baseline_measured_timestamp_seconds",
        "draftgate_speedup_ratio",
        "draftgate_tau",
        "draftgate_in_force",
        "draftgate_metrics_timestamp_seconds",
        "draftgate_trace_dropped_requests_total",
    ):
        assert shown(exporter, name) == {}, name
        assert name not in text(exporter)
    assert shown(exporter, "draftgate_judged_outputs_total") == {("code",): 0.0}, "that none was judged is known"


def test_what_is_no_longer_known_goes(window: MakeWindow, decision: MakeDecision, look: MakeLook) -> None:
    exporter = Exporter()
    exporter.looked(look(windows=(window(),), decisions=(decision(),)))
    assert shown(exporter, "draftgate_speedup_ratio") == {("code",): 1.25}
    short = window(judged=0, valid=0, kept=(70,), reached=(80,), offered=(80,))
    closed = decision("half-open", acceptance=None, tokens_per_s=None, baseline_tok_s=None)
    off = {"code": LaneState(OFF, Phase.OPEN)}
    exporter.looked(look(windows=(short,), decisions=(closed,), lanes=off, in_force=None))
    assert shown(exporter, "draftgate_survival_ratio") == {("code", "0"): 0.875}
    for name in ("validity_ratio", "speedup_ratio", "tau", "cut", "in_force"):
        assert shown(exporter, f"draftgate_{name}") == {}, name
    assert shown(exporter, "draftgate_draft_length_tokens") == {("code",): 0.0}
    assert shown(exporter, "draftgate_breaker_state") == {
        ("code", "closed"): 0.0,
        ("code", "open"): 1.0,
        ("code", "half-open"): 0.0,
    }


def test_the_age_of_the_baseline_is_that_of_the_last_window_without_drafting(window: MakeWindow) -> None:
    exporter = Exporter()
    exporter.observe(window(end_s=1100.0, covered=0, drafted=0, accepted=0, kept=(), reached=(), offered=()))
    exporter.observe(window(end_s=1200.0))
    assert shown(exporter, "draftgate_baseline_measured_timestamp_seconds") == {("code",): 1100.0}


COUNTED = [row for row in OF_WINDOW if row.kind == "counter" and row.labels == ("workload",)]


@st.composite
def windows(draw: Any) -> Window:
    steps, requests = draw(st.integers(0, 1000)), draw(st.integers(0, 300))
    kept = sorted(draw(st.lists(st.integers(0, steps), max_size=20)), reverse=True)
    reached = [steps, *kept][: len(kept)]
    judged = draw(st.integers(0, requests))
    return Window(
        draw(st.sampled_from(["code", "chat", ""])), "mine", 0.0, 1.0, requests, steps, steps, len(kept) * steps,
        sum(kept), steps + sum(kept), tuple(kept), tuple(reached), (steps,) * len(kept), draw(st.floats(0, 100)), None,
        judged, draw(st.integers(0, judged)), None, draw(st.integers(0, 9)),
    )  # fmt: skip


@given(st.lists(windows(), max_size=8))
def test_counters_are_what_all_windows_add_up_to(seen: list[Window]) -> None:
    exporter = Exporter()
    for window in seen:
        before = {row.name: shown(exporter, row.name) for row in OF_WINDOW if row.kind == "counter"}
        exporter.observe(window)
        for name, values in before.items():
            now = shown(exporter, name)
            assert all(now[labels] >= value for labels, value in values.items()), "a counter never falls"
    for workload in {w.workload for w in seen}:
        whole = Window.merge([w for w in seen if w.workload == workload])
        for row in COUNTED:
            expected = row.read(whole)
            assert shown(exporter, row.name).get((workload or "*",)) == pytest.approx(expected)
        by_position = shown(exporter, "draftgate_kept_drafts_total")
        for i, kept in enumerate(whole.kept):
            assert by_position.get((workload or "*", str(i))) == (kept if i < POSITIONS else None)


def test_a_window_that_cannot_be_true_counts_as_an_error_only(window: MakeWindow, look: MakeLook) -> None:
    exporter = Exporter()
    flawed = [window(accepted=10**6), window(seconds=float("nan")), window(steps=-1)]
    exporter.looked(look(windows=tuple(flawed), failing=("source", "read back", "lease")))
    assert shown(exporter, "draftgate_accepted_tokens_total") == {}
    errors = shown(exporter, "draftgate_errors_total")
    assert {kind for (kind,), n in errors.items() if n} == {"window", "source", "read_back"}
    assert errors[("window",)] == 3


def test_names_from_clients_do_not_make_it_grow(window: MakeWindow) -> None:
    exporter = Exporter(["code", "late"], most=4)
    for i in range(500):
        exporter.observe(window(workload=f"w{i}"))
    exporter.observe(window(workload="late"))
    steps = shown(exporter, "draftgate_steps_total")
    assert {name for (name,) in steps} == {"w0", "w1", "late", "other"}
    assert sum(steps.values()) == 501 * 100
    assert ("other",) not in shown(exporter, "draftgate_acceptance_ratio"), "a mix of all has no ratio of its own"
    exporter.observe(window(workload="code"))
    assert ("code",) in shown(exporter, "draftgate_acceptance_ratio"), "the operator's have their place"


@pytest.mark.parametrize("name", ["\ud800", "a\nb 1\n", "x" * 65, "\x1b[2J", "\u202e"])
def test_names_that_are_no_plain_text_are_other(window: MakeWindow, name: str) -> None:
    exporter = Exporter()
    exporter.observe(window(workload=name))
    assert set(shown(exporter, "draftgate_steps_total")) == {("other",)}
    assert list(text_string_to_metric_families(text(exporter)))


@given(st.text(max_size=70))
def test_any_name_comes_back_from_the_text(name: str) -> None:
    exporter = Exporter()
    exporter.recorded(name, {"word": (2, 1)})
    families = {family.name: family for family in text_string_to_metric_families(text(exporter))}
    (sample,) = families["draftgate_category_kept_tokens"].samples
    assert sample.labels["workload"] in (name or "*", "other")


def test_values_that_a_label_does_not_have_are_dropped() -> None:
    exporter = Exporter()
    exporter.recorded("code", {"word": (2, 1), "verb": (5, 5)})
    assert shown(exporter, "draftgate_category_reached_tokens_total") == {("code", "word"): 2.0}


def test_gauges_of_a_window_are_not_shown_for_ever(window: MakeWindow, decision: MakeDecision, look: MakeLook) -> None:
    now_s = [0.0]
    exporter = Exporter(keep_s=600.0, clock=lambda: now_s[0])
    exporter.looked(look(windows=(window(),), decisions=(decision(),)))
    now_s[0] = 599.0
    exporter.looked(look())
    assert shown(exporter, "draftgate_acceptance_ratio")
    now_s[0] = 601.0
    for name in ("acceptance_ratio", "survival_ratio", "speedup_ratio", "baseline_tokens_per_second"):
        assert shown(exporter, f"draftgate_{name}") == {}, name
    for name in ("steps_total", "window_end_timestamp_seconds", "draft_length_tokens", "decisions_total"):
        assert shown(exporter, f"draftgate_{name}"), name
    exporter.observe(window())
    assert shown(exporter, "draftgate_acceptance_ratio")


def test_who_stands_by_says_only_that(window: MakeWindow, decision: MakeDecision, look: MakeLook) -> None:
    exporter = Exporter()
    exporter.looked(look(windows=(window(),), decisions=(decision(),)))
    exporter.looked(Look(1080.0, False))
    gauges = {line.partition("{")[0].partition(" ")[0] for line in text(exporter).splitlines() if line[0] != "#"}
    gauges = {name for name in gauges if name.startswith("draftgate_") and not name.endswith("_total")}
    assert gauges == {
        "draftgate_build_info",
        "draftgate_controls",
        "draftgate_look_timestamp_seconds",
        "draftgate_metrics_timestamp_seconds",
    }
    assert shown(exporter, "draftgate_controls") == {(): 0.0}
    assert shown(exporter, "draftgate_steps_total") == {("code",): 100.0}


def test_a_workload_under_control_counts_decisions_from_0(look: MakeLook, decision: MakeDecision) -> None:
    exporter = Exporter()
    exporter.looked(look())
    assert set(shown(exporter, "draftgate_decisions_total").values()) == {0.0}
    exporter.looked(look(decisions=(decision("open"), decision("hold"), decision("hold"))))
    counted = shown(exporter, "draftgate_decisions_total")
    assert (counted["code", "open"], counted["code", "hold"], counted["code", "close"]) == (1.0, 2.0, 0.0)


def test_an_engine_that_restarts_starts_its_totals_again() -> None:
    exporter = Exporter()
    exporter.traced({"written": 7, "lagged": 2, "aborted early": 1})
    exporter.traced({"written": 1})
    assert shown(exporter, "draftgate_trace_written_requests_total") == {(): 1.0}
    assert set(shown(exporter, "draftgate_trace_dropped_requests_total").values()) == {0.0}
    exporter.traced({})
    assert shown(exporter, "draftgate_trace_written_requests_total") == {}


def test_it_is_served_and_can_be_asked_for_one(window: MakeWindow) -> None:
    exporter = Exporter()
    exporter.observe(window())
    with exporter.serve(0) as port:
        assert 'draftgate_steps_total{workload="code"} 100.0' in scrape(port)
        one = scrape(port, "/metrics?name[]=draftgate_steps_total")
        assert re.findall(r"^\w+", one, re.MULTILINE) == ["draftgate_steps_total"]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"), exporter.serve(port):
            pass
    with pytest.raises(OSError, match="refused"):
        scrape(port)


@pytest.mark.parametrize(("port", "host"), [(1 << 16, "127.0.0.1"), (0, "no.such.host.invalid")])
def test_a_place_that_cannot_be_served_at_is_refused(port: int, host: str) -> None:
    with pytest.raises(ConfigError, match="cannot listen on"), Exporter().serve(port, host):
        pass


def test_a_client_that_says_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    monkeypatch.setattr(module, "_SILENT_S", 0.05)
    with Exporter().serve(0) as port, socket.create_connection(("127.0.0.1", port), timeout=10) as silent:
        assert silent.recv(1) == b""
    assert capfd.readouterr().err == ""


def test_scrapes_while_the_loop_writes_see_whole_looks(window: MakeWindow, look: MakeLook) -> None:
    exporter, rounds, over = Exporter(), 300, threading.Event()

    def write() -> None:
        for i in range(rounds):
            exporter.looked(look(windows=(window(workload=f"w{i % 5}"), window(workload="chat"))))
        over.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = []
    while not over.is_set():
        families = {f.name: f for f in text_string_to_metric_families(text(exporter))}
        names = ("draftgate_steps", "draftgate_committed_tokens")
        seen.append(tuple(sum(s.value for s in families[n].samples) if n in families else 0.0 for n in names))
    writer.join()
    assert all(a <= b for a, b in pairwise(seen)), "no counter falls"
    assert all(steps % 200 == 0 and committed == 2 * steps for steps, committed in seen)
    assert sum(shown(exporter, "draftgate_steps_total").values()) == 200 * rounds
