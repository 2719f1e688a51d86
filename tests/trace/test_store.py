import json
import tempfile
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftgate.errors import InputError, TraceError
from draftgate.trace import store as store_module
from draftgate.trace.records import DRAFTED_TYPES, Drafted, RequestRecord, StepRecord
from draftgate.trace.setup import Setup
from draftgate.trace.store import TraceStore

SETUP = Setup("llamacpp", "b1", "tiny", "0" * 12, "lookup", "some CPU", 2)


def pair(key, values=(-1.5, -np.inf)):
    """A request of one step."""
    k = len(values)
    columns = {name: np.arange(k).astype(dtype) for name, dtype in DRAFTED_TYPES.items()}
    drafted = Drafted(**columns | {"logp": np.array(values, np.float32)})
    tokens = np.array([1, 2], np.int32)
    request = RequestRecord(key, f"p{key}", "chat", None, "exact", tokens, tokens, "stop", 0.1, 0.2, {"temperature": 0})
    return request, [StepRecord(key, 0, 1, 1, 0.01, 0.02, k, 1, 2, drafted)]


def keys(store):
    return [r.request for r in store.requests()], [s.request for s in store.steps()]


@pytest.fixture
def store(tmp_path):
    return TraceStore.create(tmp_path / "trace", SETUP)


@pytest.mark.parametrize("recorded", [True, False])
def test_what_is_appended_is_read_back(any_batches, same, recorded):
    @settings(deadline=None, max_examples=40)
    @given(any_batches(recorded))
    def check(appended):
        with tempfile.TemporaryDirectory() as folder:
            store = TraceStore.create(Path(folder) / "t", SETUP)
            for pairs in appended:
                store.append(pairs)
            everything = [p for pairs in appended for p in pairs]
            assert same(store.requests(), [request for request, _ in everything])
            assert same(list(store.steps()), [step for _, steps in everything for step in steps])
            assert store.setup() == SETUP

    check()


def test_segments_are_read_in_the_order_they_were_appended(store):
    for n in range(12):  # past nine, so that names must sort as numbers do
        store.append([pair(100 - n)])
    assert keys(store) == ([100 - n for n in range(12)],) * 2
    assert len(list(store.path.glob("*.parquet"))) == 24


def test_opening_again_appends(store):
    store.append([pair(1)])
    TraceStore.create(store.path, SETUP).append([pair(2)])
    assert keys(store) == ([1, 2], [1, 2])


def test_nothing_to_append_writes_nothing(store):
    store.append([])
    assert [p.name for p in store.path.iterdir()] == ["setup.json"]


def test_an_empty_trace_has_no_records(store):
    assert keys(store) == ([], [])
    with pytest.raises(TraceError, match="no finished request yet"):
        store.tables()


def test_a_crash_between_the_two_files_leaves_the_trace_as_it_was(store, monkeypatch):
    store.append([pair(1)])
    before = {p.name: p.read_bytes() for p in store.path.iterdir()}
    write = store_module.write_atomic

    def crash(path, data):
        if path.name.startswith("requests"):
            raise KeyboardInterrupt
        write(path, data)

    monkeypatch.setattr(store_module, "write_atomic", crash)
    with pytest.raises(KeyboardInterrupt):
        store.append([pair(2, (-9.0,)), pair(3)])
    assert (store.path / "steps-000002.parquet").exists()
    assert keys(store) == ([1], [1])

    monkeypatch.undo()
    store.append([pair(4)])  # takes the place of what was left over
    assert keys(store) == ([1, 4], [1, 4])
    assert {name: (store.path / name).read_bytes() for name in before} == before
    assert sorted(p.name for p in store.path.glob("*-000002.parquet")) == [
        "requests-000002.parquet",
        "steps-000002.parquet",
    ]


def test_a_full_disk_is_reported_and_harms_nothing(store, monkeypatch):
    store.append([pair(1)])

    def full(path, data):
        raise InputError(f"{path}: cannot be written: No space left on device")

    monkeypatch.setattr(store_module, "write_atomic", full)
    with pytest.raises(InputError, match=r"steps-000002\.parquet.*No space"):
        store.append([pair(2)])
    assert keys(store) == ([1], [1])


def test_files_of_other_names_are_not_read(store):
    store.append([pair(1)])
    for name in ("requests-2.parquet", "requests-000002.parquet.tmp", ".requests-000002.parquet.x", "notes.txt"):
        (store.path / name).write_bytes(b"")
    assert keys(store) == ([1], [1])


def test_a_folder_name_with_an_equals_sign_adds_no_column(tmp_path):
    store = TraceStore.create(tmp_path / "run=7" / "trace", SETUP)
    store.append([pair(1)])
    assert keys(store) == ([1], [1])


def test_plain_pyarrow_reads_a_segment(store):
    store.append([pair(1), pair(2, ())])
    table = pq.read_table(store.path / "steps-000001.parquet")
    assert table.column("logp").to_pylist() == [[-1.5, float("-inf")], []]
    assert table.schema.field("category").type == pa.list_(pa.uint8())
    requests = pq.read_table(store.path / "requests-000001.parquet").to_pylist()
    assert [(r["request"], r["language"], json.loads(r["sampling"])) for r in requests] == [
        (1, None, {"temperature": 0}),
        (2, None, {"temperature": 0}),
    ]


@pytest.mark.parametrize("kind", ["requests", "steps"])
def test_damaged_segments_are_refused_by_name(store, kind):
    store.append([pair(n) for n in range(20)])
    path = store.path / f"{kind}-000001.parquet"
    whole = path.read_bytes()
    for damaged in (b"", b"PAR1", whole[: len(whole) // 2], whole[:-1], b"\0" * len(whole)):
        path.write_bytes(damaged)
        with pytest.raises(TraceError, match=rf"{path.name}: cannot be read: (?s:.*); restore it, or delete this pair"):
            store.tables()
    path.unlink()
    if kind == "steps":
        with pytest.raises(TraceError, match=r"steps-000001.parquet: cannot be read"):
            list(store.steps())


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**9), st.integers(1, 255))
def test_a_flipped_byte_is_noticed_or_harmless(where, flip):
    """Pages carry checksums, so a changed value is never read as if it were recorded."""
    with tempfile.TemporaryDirectory() as folder:
        store = TraceStore.create(Path(folder), SETUP)
        store.append([pair(n, (-n / 7, -1.0)) for n in range(30)])
        path = store.path / "steps-000001.parquet"
        before, data = store.tables()[1], bytearray(path.read_bytes())
        data[where % len(data)] ^= flip
        path.write_bytes(data)
        with suppress(TraceError):
            assert store.tables()[1].equals(before)


@pytest.mark.parametrize(("metadata", "found"), [({"draftgate": "2"}, "2"), (None, "unknown")])
def test_other_versions_are_refused(store, metadata, found):
    store.append([pair(1)])
    path = store.path / "requests-000001.parquet"
    pq.write_table(pq.read_table(path).replace_schema_metadata(metadata), path)
    with pytest.raises(TraceError, match=rf"requests-000001.*version {found}; this draftgate reads version 1"):
        store.requests()


def test_other_columns_are_refused(store):
    store.append([pair(1)])
    path = store.path / "steps-000001.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["rank"]), path)
    with pytest.raises(TraceError, match=r"steps-000001.parquet: its columns are not those"):
        list(store.steps())


def test_another_setup_is_refused_by_field(store):
    with pytest.raises(TraceError, match="recorded with threads 2, but this is 4; use a new run directory"):
        TraceStore.create(store.path, replace(SETUP, threads=4))
    assert json.loads((store.path / "setup.json").read_text()) == asdict(SETUP)


@pytest.mark.parametrize("read", [TraceStore.setup, TraceStore.requests, TraceStore.tables, lambda s: list(s.steps())])
def test_a_folder_that_is_no_trace_is_refused(tmp_path, read):
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "missing", tmp_path / "file"):
        with pytest.raises(TraceError, match=r"is no trace: it has no setup\.json; pass a folder"):
            read(TraceStore(path))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"engine": 1}', "\udcff"])
def test_a_damaged_setup_is_refused_by_name(store, text):
    (store.path / "setup.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(TraceError, match=r"trace/setup\.json: "):
        store.setup()


def test_a_place_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        TraceStore.create(tmp_path / "file" / "trace", SETUP)
