import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftgate.control.fetch import SourceError
from draftgate.errors import ConfigError
from draftgate.observe.recorded import EngineStatus, TraceTail
from draftgate.policy.category import Category
from draftgate.trace.records import DRAFTED_TYPES, Drafted, RequestRecord, StepRecord
from draftgate.trace.setup import Setup
from draftgate.trace.store import TraceStore

SETUP = Setup("llamacpp", "b1", "tiny", "0" * 12, "lookup", "some CPU", 2)
WORD, BRACKET = Category.WORD, Category.STRUCTURAL
_NOTHING = np.zeros(0, np.int32)


def request(key: int, workload: str) -> RequestRecord:
    return RequestRecord(
        key, f"p{key}", workload, None, "exact", _NOTHING, _NOTHING, "stop", 0.1, 1.0, {"temperature": 0.0}
    )


def step(key: int, accepted: int, *categories: Category) -> StepRecord:
    k = len(categories)
    columns: dict[str, Any] = {name: np.zeros(k, kind) for name, kind in DRAFTED_TYPES.items()}
    columns["category"] = np.array(categories, np.uint8)
    return StepRecord(key, 0, 0, 1, 0.0, 0.1, k, accepted, accepted + 1, Drafted(**columns))


def test_new_segments_are_added_up_by_workload_and_category(tmp_path: Path) -> None:
    store = TraceStore.create(tmp_path / "greedy", SETUP)
    store.append([(request(1, "code"), [step(1, 1, WORD)])])
    tail = TraceTail(tmp_path)
    assert tail.poll() == {}, "what was there is passed over"
    # Keys are neither dense nor sorted. Of the first draft, a word is kept, a bracket rejected, the rest not reached.
    store.append(
        [
            (request(9, "code"), [step(9, 1, WORD, BRACKET, WORD), step(9, 2, BRACKET, BRACKET), step(9, 0)]),
            (request(-3, "chat"), [step(-3, 0, WORD, WORD)]),
            (request(4, "code"), [step(4, 0, WORD)]),
        ]
    )
    TraceStore.create(tmp_path / "sampled", SETUP).append([(request(1, "chat"), [step(1, 1, WORD, BRACKET)])])
    assert tail.poll() == {
        "code": {"word": (2, 1), "structural": (3, 2)},
        "chat": {"word": (2, 1), "structural": (1, 0)},
    }
    assert tail.poll() == {}
    assert tail.unusable == 0


def test_it_agrees_with_what_the_steps_say(tmp_path: Path) -> None:
    """Against counting token by token."""
    rng = np.random.default_rng(0)
    steps = []
    for _ in range(200):
        k = int(rng.integers(0, 8))
        steps.append(step(5, int(rng.integers(0, k + 1)), *(Category(c) for c in rng.integers(0, len(Category), k))))
    TraceStore.create(tmp_path, SETUP).append([(request(5, "code"), steps)])
    plain: dict[str, list[int]] = {}
    for one in steps:
        assert one.drafted is not None
        for i, category in enumerate(one.drafted.category[: one.accepted + 1]):
            row = plain.setdefault(Category(category).name.lower(), [0, 0])
            row[0] += 1
            row[1] += i < one.accepted
    found = TraceTail(tmp_path, from_start=True).poll()["code"]
    assert found == {name: tuple(row) for name, row in plain.items()}


def test_a_folder_that_comes_later_is_found(tmp_path: Path) -> None:
    tail = TraceTail(tmp_path / "trace")
    assert tail.poll() == {}
    TraceStore.create(tmp_path / "trace" / "greedy", SETUP).append([(request(1, "code"), [step(1, 1, WORD)])])
    assert tail.poll() == {"code": {"word": (1, 1)}}


def test_a_segment_that_cannot_be_read_is_counted_and_the_others_are(tmp_path: Path) -> None:
    store = TraceStore.create(tmp_path, SETUP)
    for key in (1, 2, 3, 4):
        store.append([(request(key, "code"), [step(key, 1, WORD)])])
    (tmp_path / "requests-000001.parquet").write_bytes(b"PAR1")
    (tmp_path / "steps-000002.parquet").unlink()
    data = bytearray((tmp_path / "steps-000003.parquet").read_bytes())
    data[-20:] = bytes(20)
    (tmp_path / "steps-000003.parquet").write_bytes(data)
    tail = TraceTail(tmp_path, from_start=True)
    assert tail.poll() == {"code": {"word": (1, 1)}}
    assert tail.unusable == 3
    assert "000003" in str(tail.fault)


def test_a_trace_without_drafted_tokens_is_unusable(tmp_path: Path) -> None:
    bare = StepRecord(1, 0, 0, 1, 0.0, 0.1, 2, 1, 2)
    TraceStore.create(tmp_path, SETUP).append([(request(1, "code"), [bare])])
    tail = TraceTail(tmp_path, from_start=True)
    assert (tail.poll(), tail.unusable) == ({}, 1)
    assert "without its drafted tokens" in str(tail.fault)


def test_steps_of_another_segment_are_unusable(tmp_path: Path) -> None:
    for name, key in (("a", 1), ("b", 2)):
        TraceStore.create(tmp_path / name, SETUP).append([(request(key, "code"), [step(key, 1, WORD)])])
    (tmp_path / "b" / "steps-000001.parquet").replace(tmp_path / "a" / "steps-000001.parquet")
    tail = TraceTail(tmp_path / "a", from_start=True)
    assert (tail.poll(), tail.unusable) == ({}, 1)
    assert "not in it" in str(tail.fault)


@given(data=st.data())
@settings(max_examples=60)
def test_damage_is_counted_and_never_raised(data: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("trace")
    TraceStore.create(folder, SETUP).append([(request(1, "code"), [step(1, 1, WORD, BRACKET)])])
    path = folder / data.draw(st.sampled_from(["requests-000001.parquet", "steps-000001.parquet"]))
    whole = path.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    path.write_bytes(whole[:at] + data.draw(st.binary(min_size=1, max_size=8)) + whole[at + 1 :])
    tail = TraceTail(folder, from_start=True)
    assert tail.poll() == {} or not tail.unusable


@contextmanager
def answering(code: int, body: bytes) -> Iterator[tuple[str, list[Any]]]:
    """A server that answers everything alike; its address, and path and key of each request."""
    asked: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers["Authorization"]))
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def status(*traces: Any) -> bytes:
    return json.dumps({"ranks": [{"rank": i, "runners": [{"trace": t}]} for i, t in enumerate(traces)]}).encode()


def test_the_engine_is_asked_what_it_dropped() -> None:
    body = status({"written": 5, "lagged": 1}, None, {"written": 2})
    with answering(200, body) as (address, asked):
        assert EngineStatus(f"{address}/v1", "secret").poll() == {"written": 7, "lagged": 1}
    assert asked == [("/draftgate/status", "Bearer secret")]


def test_an_engine_that_records_nothing_has_no_totals() -> None:
    with answering(200, status(None)) as (address, _):
        assert EngineStatus(address).poll() == {}


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (500, b"down"),
        (200, b"<html>"),
        (200, b"[]"),
        (200, b"{}"),
        (200, status({"written": -1})),
        (200, status({"written": True})),
        (200, status({"written": "5"})),
        (200, status(["written"])),
        (200, b"[" * 100_000),
    ],
)
def test_other_answers_are_errors(code: int, body: bytes) -> None:
    with answering(code, body) as (address, _), pytest.raises(SourceError, match="draftgate/status"):
        EngineStatus(address).poll()


def test_no_address_is_refused() -> None:
    with pytest.raises(ConfigError, match="must be an HTTP address"):
        EngineStatus("engine:8000")
