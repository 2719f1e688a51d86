import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from draftgate.control.counters import CounterWindows, Snapshot
from draftgate.control.fetch import SourceError, fetch
from draftgate.control.source import PrometheusSource, snapshot
from draftgate.errors import ConfigError

Answer = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def server(*answers: Answer) -> Iterator[str]:
    """A server that gives these answers in turn, and the last one from then on."""
    left = list(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            (left.pop(0) if len(left) > 1 else left[0])(self)

        def log_message(self, format: str, *args: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_port}"
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


def says(text: str, code: int = 200, length: int | None = None) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        body = text.encode()
        handler.send_response(code)
        handler.send_header("Content-Length", str(len(body) if length is None else length))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


class Engine:
    """Counts as vLLM does, under its metrics' names, and exposes them with the library that vLLM uses."""

    def __init__(self, model: str = "m", k: int = 3, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        labels = {"labelnames": ["model_name", "engine"], "registry": self.registry}
        self.at = {"model_name": model, "engine": "0"}
        self.k = k
        self.counters = {
            name: Counter(f"vllm:{name}", name, **labels)
            for name in (
                "spec_decode_num_drafts",
                "spec_decode_num_draft_tokens",
                "spec_decode_num_accepted_tokens",
                "generation_tokens",
            )
        }
        self.kept = Counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos", "", ["model_name", "engine", "position"],
            registry=self.registry,
        )  # fmt: skip
        self.done = Counter("vllm:request_success", "", ["model_name", "engine", "finished_reason"],
                            registry=self.registry)  # fmt: skip
        self.first = Histogram("vllm:time_to_first_token_seconds", "", **labels)
        self.itl = Histogram("vllm:inter_token_latency_seconds", "", **labels)
        self.tpot = Histogram("vllm:request_time_per_output_token_seconds", "", buckets=(0.01, 0.02, 0.04), **labels)
        self.running = Gauge("vllm:num_requests_running", "", **labels)

    def serve(self, requests: int, steps: int, kept: tuple[int, ...], step_s: float = 0.02) -> None:
        for name, n in (
            ("spec_decode_num_drafts", steps),
            ("spec_decode_num_draft_tokens", steps * self.k),
            ("spec_decode_num_accepted_tokens", sum(kept)),
            ("generation_tokens", requests + steps + sum(kept)),
        ):
            self.counters[name].labels(**self.at).inc(n)
        for i, n in enumerate(kept):
            self.kept.labels(**self.at, position=str(i)).inc(n)
        self.done.labels(**self.at, finished_reason="stop").inc(requests - 1)
        self.done.labels(**self.at, finished_reason="error").inc(1)
        for _ in range(requests):
            self.first.labels(**self.at).observe(0.1)
            self.tpot.labels(**self.at).observe(0.015)
        for _ in range(steps):
            self.itl.labels(**self.at).observe(step_s)
        self.running.labels(**self.at).set(4)

    def text(self) -> str:
        return generate_latest(self.registry).decode()


def scraped(engine: Engine, windows: CounterWindows, time_s: float) -> object:
    return windows.add(snapshot(engine.text(), time_s))


def test_a_window_is_what_was_counted_between_two_scrapes() -> None:
    engine, windows = Engine(), CounterWindows(size=9)
    engine.serve(5, 100, (60, 40, 20))
    assert scraped(engine, windows, 100.0) is None
    engine.serve(10, 200, (150, 90, 30))
    w = scraped(engine, windows, 110.0)
    assert w.flaw() is None
    assert (w.start_s, w.end_s, w.requests, w.errors) == (100.0, 110.0, 9, 1)
    assert (w.steps, w.covered, w.drafted, w.accepted, w.committed) == (200, 200, 600, 270, 470)
    assert (w.kept, w.reached, w.offered) == ((150, 90, 30), (200, 150, 90), (200, 200, 200))
    assert w.batch == 4.0
    assert w.seconds == pytest.approx(200 * 0.02 / 4)
    assert 0.01 < w.latency_s < 0.02
    assert (w.judged, w.validity) == (0, None)


def test_a_window_waits_for_requests_or_time() -> None:
    engine, windows = Engine(), CounterWindows(size=100, most_s=60.0)
    engine.serve(1, 10, (5, 3, 1))
    scraped(engine, windows, 0.0)
    for t in range(1, 6):
        engine.serve(2, 10, (5, 3, 1))
        assert scraped(engine, windows, 10.0 * t) is None
    engine.serve(2, 10, (5, 3, 1))
    w = scraped(engine, windows, 60.0)
    assert (w.steps, w.start_s, w.end_s) == (60, 0.0, 60.0)


def test_duplicated_scrapes_and_idle_time_add_nothing() -> None:
    engine, windows = Engine(), CounterWindows(size=2)
    engine.serve(2, 10, (5, 3, 1))
    assert [scraped(engine, windows, float(t)) for t in range(100)] == [None] * 100
    engine.serve(3, 10, (5, 3, 1))
    w = scraped(engine, windows, 100.0)
    assert (w.start_s, w.steps) == (99.0, 10)


def test_a_histogram_that_comes_back_has_not_grown_from_nothing() -> None:
    windows = CounterWindows(size=2)
    windows.add(Snapshot(0.0, 10, 30, 9, 20, (5, 3, 1)))
    w = windows.add(Snapshot(10.0, 20, 60, 18, 50, (10, 6, 2), requests=9, steps=4000, sequence_s=500.0))
    assert w.seconds == 0.0
    assert w.tokens_per_s is None
    w = windows.add(Snapshot(20.0, 30, 90, 27, 80, (15, 9, 3), requests=18, steps=4010, sequence_s=502.0))
    assert w.seconds == 2.0


def test_a_restart_drops_the_window_and_counts_it() -> None:
    engine, windows = Engine(), CounterWindows(size=2)
    engine.serve(5, 100, (60, 40, 20))
    scraped(engine, windows, 0.0)
    engine = Engine()
    engine.serve(3, 10, (5, 3, 1))
    assert scraped(engine, windows, 10.0) is None
    assert windows.restarts == 1
    engine.serve(3, 20, (5, 3, 1))
    assert scraped(engine, windows, 20.0).steps == 20


def test_a_restart_that_caught_up_is_seen_by_its_start_time() -> None:
    windows = CounterWindows(size=2)
    before = Snapshot(0.0, 10, 30, 9, 20, (5, 3, 1), started_s=1.0)
    windows.add(before)
    assert windows.add(replace(before, generated=90, requests=9, started_s=2.0)) is None
    assert windows.restarts == 1


@pytest.mark.parametrize("jump_s", [-1e6, 1e6, float(0)])
def test_clock_jumps_make_no_impossible_window(jump_s: float) -> None:
    engine, windows = Engine(), CounterWindows(size=100)
    engine.serve(1, 10, (5, 3, 1))
    scraped(engine, windows, 1e9)
    engine.serve(100, 10, (5, 3, 1))
    scraped(engine, windows, 1e9 + jump_s)
    engine.serve(200, 10, (5, 3, 1))
    w = scraped(engine, windows, 1e9 + jump_s + 10)
    assert w is not None
    assert w.flaw() is None


@given(
    first=st.tuples(*[st.integers(0, 50)] * 9),
    then=st.tuples(*[st.integers(0, 50)] * 9),
)
def test_whatever_is_counted_no_window_is_negative(first: tuple[int, ...], then: tuple[int, ...]) -> None:
    windows = CounterWindows(size=1, most_s=1.0)
    for t, n in enumerate((first, then)):
        snap = Snapshot(10.0 * t, n[0], n[1], n[2], n[3], (n[4], n[5]), first_tok=n[6], requests=n[7], steps=n[8])
        w = windows.add(snap)
        if w is not None:
            counts = (w.steps, w.covered, w.drafted, w.accepted, w.committed, *w.kept, *w.reached, *w.offered)
            assert min(counts) >= 0
            assert w.covered <= w.steps


def test_a_clock_set_back_ends_the_window() -> None:
    engine, windows = Engine(), CounterWindows(size=1000)
    engine.serve(2, 10, (5, 3, 1))
    scraped(engine, windows, 1e9)
    engine.serve(2, 10, (5, 3, 1))
    w = scraped(engine, windows, 1e9 - 5000)
    assert w is not None
    assert w.flaw() is None


def test_engines_of_a_server_are_added_up() -> None:
    engine = Engine()
    engine.serve(5, 100, (60, 40, 20))
    engine.at = engine.at | {"engine": "1"}
    engine.serve(5, 100, (60, 40, 20))
    assert snapshot(engine.text(), 0.0).kept == (120, 80, 40)


def test_another_models_metrics_do_not_count() -> None:
    engine = Engine("mine")
    engine.serve(5, 100, (60, 40, 20))
    engine.at = {"model_name": "other", "engine": "0"}
    engine.serve(5, 50, (30, 20, 10))
    assert snapshot(engine.text(), 0.0, model="mine").drafts == 100
    with pytest.raises(SourceError, match="choose one with --model"):
        snapshot(engine.text(), 0.0)
    with pytest.raises(SourceError, match="of model 'absent' is missing"):
        snapshot(engine.text(), 0.0, model="absent")


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-3.0"])
def test_values_that_are_no_counts_are_refused(value: str) -> None:
    engine = Engine()
    engine.serve(5, 100, (60, 40, 20))
    text = engine.text().replace("_draft_tokens_total{engine=\"0\",model_name=\"m\"} 300.0",
                                 "_draft_tokens_total{engine=\"0\",model_name=\"m\"} " + value)  # fmt: skip
    with pytest.raises(SourceError, match="num_draft_tokens_total is"):
        snapshot(text, 0.0)


def test_no_cut_of_a_scrape_is_taken_for_a_scrape() -> None:
    """Half of "1234" is a number too: the server says how long its answer is, or the text must end with a line."""
    engine = Engine()
    engine.serve(5, 1234, (60, 40, 20))
    text = engine.text()
    for cut in range(0, len(text) - 1, 97):
        with server(says(text[:cut], length=len(text))) as url, pytest.raises(SourceError):
            PrometheusSource(url).poll()
        if text[:cut].endswith("\n"):
            continue

        def unsized(handler: BaseHTTPRequestHandler, cut: int = cut) -> None:
            handler.send_response(200)
            handler.end_headers()
            handler.wfile.write(text[:cut].encode())

        with server(unsized) as url, pytest.raises(SourceError):
            PrometheusSource(url).poll()


def test_a_scrape_cut_between_two_lines_is_noticed_by_its_length() -> None:
    engine = Engine()
    engine.serve(5, 1234, (60, 40, 20))
    text = engine.text()
    cut = text.rindex("\n", 0, len(text) - 1) + 1
    with server(says(text[:cut], length=len(text))) as url, pytest.raises(SourceError, match="cut short"):
        fetch(url, 5.0)


@pytest.mark.parametrize("text", ["<html></html>\n", '{"a": 1}\n', "vllm:spec {\n", "\n", "\0\n", "a{b=\n"])
def test_what_is_no_scrape_is_refused(text: str) -> None:
    with server(says(text)) as url, pytest.raises(SourceError):
        PrometheusSource(url).poll()


def test_the_source_recovers_from_failures_in_between() -> None:
    engine = Engine()
    engine.serve(5, 100, (60, 40, 20))
    first = engine.text()
    engine.serve(5, 100, (60, 40, 20))
    answers = (says(first), says("no", 500), says("x" * 100, length=1000), says(first), says(engine.text()))
    with server(*answers) as url:
        source = PrometheusSource(url, windows=CounterWindows(size=4))
        assert source.poll() == []
        for _ in range(2):
            with pytest.raises(SourceError):
                source.poll()
        assert source.poll() == []
        assert [w.steps for w in source.poll()] == [100]
    with pytest.raises(SourceError):
        source.poll()


def test_a_server_that_drips_does_not_hang_the_loop() -> None:
    stop = threading.Event()

    def drip(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        while not stop.wait(0.01):
            try:
                handler.wfile.write(b"#\n")
            except OSError:
                return

    begun_s = time.monotonic()
    with server(drip) as url, pytest.raises(SourceError, match="too slow"):
        fetch(f"{url}/metrics", 0.2)
    stop.set()
    assert time.monotonic() - begun_s < 30


def test_a_silent_server_is_given_up() -> None:
    stop = threading.Event()
    with server(lambda handler: (stop.wait(10), None)[1]) as url:
        with pytest.raises(SourceError):
            fetch(f"{url}/metrics", 0.1)
        stop.set()


VLLM_DATA = Path(__file__).parent.parent / "data" / "vllm"  # scrapes of a real server


def test_scrapes_of_a_real_vllm_make_a_window() -> None:
    windows = CounterWindows(size=1, most_s=1.0)
    start, later, restarted = (
        snapshot((VLLM_DATA / f"metrics-{name}.txt").read_text(), 10.0 * t, model="smollm2")
        for t, name in enumerate(("start", "later", "restarted"))
    )
    assert windows.add(start) is None
    w = windows.add(later)
    assert w is not None
    assert w.flaw() is None
    assert (w.covered, w.drafted, w.accepted, w.kept) == (17, 85, 24, (8, 5, 5, 3, 3))
    assert w.offered == (17,) * 5
    assert w.steps >= 17
    assert w.seconds > 0
    assert w.requests > 0
    assert (w.batch, w.latency_s) == (None, None), "idle at both scrapes, and kept without buckets"
    assert windows.add(restarted) is None
    assert windows.restarts == 1


def test_a_server_that_does_not_speculate_is_named() -> None:
    with pytest.raises(SourceError, match="does this engine speculate"):
        snapshot((VLLM_DATA / "metrics-no-speculation.txt").read_text(), 0.0)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "127.0.0.1:8000", "http://", "ftp://x/metrics"])
def test_only_http_is_scraped(url: str) -> None:
    with pytest.raises(ConfigError, match="HTTP address"):
        PrometheusSource(url)
