"""`draftgate observe`, and `draftgate control` with somebody watching."""

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from draftgate.observe.alerts import Choices, rules
from draftgate.observe.grafana import dashboard
from draftgate.observe.words import markdown
from draftgate.trace.records import DRAFTED_TYPES, Drafted, RequestRecord, StepRecord
from draftgate.trace.setup import Setup
from draftgate.trace.store import TraceStore

WORDS = ("control", "--channel", "policy.yaml", "--metrics", "metrics.jsonl", "--controller", "schedule")
WORDS = (*WORDS, "--schedule", "rows.yaml", "--seed", "0")
POLICIES = (
    "draftgate: 1\ndefault: mine\npolicies: [{name: mine, rule: exact, draft: {k: 6}}]\nworkloads: {code: mine}\n"
)


@pytest.mark.parametrize(
    ("words", "made"),
    [
        (("dashboard",), dashboard()),
        (("alerts",), rules(Choices())),
        (("alerts", "--job", "spec", "--code-floor", "0.9"), rules(Choices(job="spec", code_floor=0.9))),
        (("metrics",), markdown().encode()),
    ],
)
def test_what_is_made_is_printed_or_written(
    draftgate: Callable[..., Any], tmp_path: Path, words: tuple[str, ...], made: bytes
) -> None:
    said = draftgate("observe", *words)
    assert (said.code, said.out.encode(), said.err) == (0, made, "")
    said = draftgate("observe", *words, "--out", "there/file")
    assert (said.code, said.out, said.err) == (0, "", "")
    assert (tmp_path / "there" / "file").read_bytes() == made


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("observe", "alert"), "alert"),
        (("observe", "alerts", "--code-floor", "1"), "code_floor must be above 0.5 and below 1"),
        (("observe", "alerts", "--structured", 'a"b'), "without quotes"),
        (("observe", "dashboard", "--out", "/dev/null/x"), "cannot be written"),
        ((*WORDS, "--once", "--metrics-port", "x"), "--metrics-port must be a port or HOST:PORT"),
        ((*WORDS, "--once", "--metrics-port", "99999"), "--metrics-port must be a port or HOST:PORT"),
        ((*WORDS, "--once", "--metrics-port", "no.such.host.invalid:0"), "cannot listen on no.such.host.invalid:0"),
        ((*WORDS, "--once", "--otlp", "collector"), "must be an HTTP address"),
        ((*WORDS, "--once", "--trace", "trace"), "give --metrics-port or --otlp too"),
    ],
)
def test_wrong_input_is_one_line(
    draftgate: Callable[..., Any], folder: Path, words: tuple[str, ...], says: str
) -> None:
    said = draftgate(*words)
    assert said.code == 2
    assert says in said.err
    assert len(said.err.splitlines()) == 1


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Policies, a schedule that is always on, and no metrics yet."""
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    (tmp_path / "policy.yaml").write_text(POLICIES)
    (tmp_path / "rows.yaml").write_text(yaml.safe_dump([{"k": 6}]))
    (tmp_path / "metrics.jsonl").touch()
    return tmp_path


def write_window(folder: Path, share: float, workload: str = "code") -> None:
    """1,000 steps whose drafts keep each of 6 positions with this chance."""
    kept = [round(1000 * share ** (i + 1)) for i in range(6)]
    now_s = time.time()
    window = {
        "workload": workload, "policy": "mine", "start_s": now_s, "end_s": now_s, "requests": 300, "steps": 1000,
        "covered": 1000, "drafted": 6000, "accepted": sum(kept), "committed": 1000 + sum(kept), "kept": kept,
        "reached": [1000, *kept][:6], "offered": [1000] * 6, "seconds": 10.0, "batch": 1.0, "judged": 100, "valid": 99,
        "latency_s": None, "errors": 0,
    }  # fmt: skip
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(window) + "\n")


@contextmanager
def controlling(folder: Path, *more: str) -> Iterator["tuple[subprocess.Popen[str], int]"]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [sys.executable, "-c", "from draftgate.cli import main; main()", *WORDS, "--interval", "0.02s", *more]
    with subprocess.Popen(
        [*words, "--metrics-port", str(port)], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process, port
        finally:
            process.kill()


def until(process: "subprocess.Popen[str]", port: int, line: str) -> str:
    """The first scrape that has a line."""
    text = ""
    end_s = time.monotonic() + 60
    while time.monotonic() < end_s:
        assert process.poll() is None, process.stderr and process.stderr.read()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
                text = response.read().decode()
        except OSError:  # not listening yet
            continue
        if line in text.splitlines():
            return text
    raise AssertionError(f"no '{line}' in:\n{text}")


def test_a_running_controller_shows_what_it_decides(folder: Path) -> None:
    """Good windows, then a collapse, which opens the breaker."""
    with controlling(folder) as (process, port):
        text = until(process, port, "draftgate_controls 1.0")
        assert 'draftgate_draft_length_tokens{workload="code"} 6.0' in text
        assert 'draftgate_breaker_state{state="closed",workload="code"} 1.0' in text
        assert "draftgate_acceptance_ratio" not in text
        write_window(folder, 0.9)
        text = until(process, port, 'draftgate_requests_total{workload="code"} 300.0')
        assert 'draftgate_validity_ratio{workload="code"} 0.99' in text
        assert 'draftgate_decisions_total{action="hold",workload="code"} 1.0' in text
        write_window(folder, 0.9, workload="a stranger's")
        until(process, port, 'draftgate_requests_total{workload="a stranger\'s"} 300.0')
        write_window(folder, 0.2)
        text = until(process, port, 'draftgate_breaker_state{state="open",workload="code"} 1.0')
        assert 'draftgate_decisions_total{action="open",workload="code"} 1.0' in text
        assert 'draftgate_speculation_on{workload="code"} 0.0' in text
        assert 'draftgate_speculation_on{workload="*"} 1.0' in text
        until(process, port, "draftgate_in_force 1.0")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0


def test_lost_metrics_and_another_writer_are_shown(folder: Path) -> None:
    with controlling(folder) as (process, port):
        until(process, port, "draftgate_in_force 1.0")
        (folder / "metrics.jsonl").unlink()
        until(process, port, 'draftgate_errors_total{kind="source"} 3.0')
        (folder / "policy.yaml").write_text("draftgate: 1\nname: somebody\nrule: exact\n")
        until(process, port, "draftgate_in_force 0.0")


def test_who_stands_by_says_so(folder: Path) -> None:
    with controlling(folder) as (first, port):
        until(first, port, "draftgate_controls 1.0")
        with controlling(folder) as (second, other):
            text = until(second, other, "draftgate_controls 0.0")
            assert "draftgate_speculation_on" not in text


def test_a_trace_that_is_recorded_meanwhile_is_counted(folder: Path) -> None:
    with controlling(folder, "--trace", "trace") as (process, port):
        until(process, port, "draftgate_controls 1.0")
        store = TraceStore.create(folder / "trace" / "greedy", Setup("llamacpp", "b", "t", "0" * 12, "d", "cpu", 1))
        drafted = Drafted(**{name: np.zeros(3, kind) for name, kind in DRAFTED_TYPES.items()})
        none = np.zeros(0, np.int32)
        request = RequestRecord(1, "p", "code", None, "mine", none, none, "stop", 0.1, 0.1, {"temperature": 0.0})
        store.append([(request, [StepRecord(1, 0, 0, 1, 0.0, 0.1, 3, 1, 2, drafted)])])
        text = until(process, port, 'draftgate_category_reached_tokens_total{category="word",workload="code"} 2.0')
        assert 'draftgate_category_kept_tokens_total{category="word",workload="code"} 1.0' in text
