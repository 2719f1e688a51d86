import tempfile
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings

from draftgate.errors import TraceError
from draftgate.trace.columns import Columns
from draftgate.trace.records import DRAFTED_TYPES, Drafted, RequestRecord, StepRecord
from draftgate.trace.setup import Setup
from draftgate.trace.store import TraceStore

SETUP = Setup("llamacpp", "b1", "tiny", "0" * 12, "lookup", "some CPU", 2)
NOTHING = np.zeros(0, np.int32)


def request(key, language=None, **sampling):
    return RequestRecord(key, "p", "chat", language, "exact", NOTHING, NOTHING, "stop", 0.0, 0.0, sampling)


def step(key, i, logp, **changes):
    k = len(logp)
    columns = {name: np.arange(k).astype(dtype) for name, dtype in DRAFTED_TYPES.items()}
    drafted = Drafted(**columns | {"logp": np.array(logp, np.float32)})
    return replace(StepRecord(key, i, 7 * i, 1, 0.5, 0.25, k, 1, 2, drafted), **changes)


def assert_same(a, b):
    for field in fields(Columns):
        left, right = getattr(a, field.name), getattr(b, field.name)
        if isinstance(left, np.ndarray):
            assert left.dtype == right.dtype, field.name
            np.testing.assert_array_equal(left, right, err_msg=field.name)
        else:
            assert left == right, field.name


def test_loading_is_laying_out_the_records(any_batches):
    @settings(deadline=None, max_examples=40)
    @given(any_batches())
    def check(appended):
        with tempfile.TemporaryDirectory() as folder:
            store = TraceStore.create(Path(folder), SETUP)
            for pairs in appended:
                store.append(pairs)
            loaded = Columns.load(store)
            requests, records = store.requests(), list(store.steps())
            assert_same(loaded, Columns.from_records(requests, records))
            for s, record in enumerate(records):
                assert requests[loaded.request[s]].request == record.request
                for name in DRAFTED_TYPES:
                    cells = getattr(loaded, name)[: record.drafted_n, s]
                    np.testing.assert_array_equal(cells, getattr(record.drafted, name))
                    assert not getattr(loaded, name)[record.drafted_n :, s].any()

    check()


def test_ragged_drafts_with_gaps():
    columns = Columns.from_records(
        [request(5, "go"), request(3), request(9, "sql")],  # the second request took no step
        [step(5, 0, [-1, -2]), step(5, 1, []), step(9, 0, [-3, -np.inf, -5])],
    )
    assert columns.shape == (3, 3)
    assert columns.n_requests == 3
    assert len(step(9, 0, [-3, -np.inf, -5]).drafted) == 3
    assert columns.request.tolist() == [0, 0, 2]
    assert columns.logp.tolist() == [[-1, 0, -3], [-2, 0, -np.inf], [0, 0, -5]]
    assert columns.valid.tolist() == [[True, False, True], [True, False, True], [False, False, True]]
    assert columns.offset.tolist() == [0, 7, 0]
    assert columns.languages == ("go", None, "sql")
    assert columns.greedy


@pytest.mark.parametrize("steps", [[], [step(1, 0, [])]])
def test_traces_without_drafted_tokens_have_no_positions(steps):
    assert Columns.from_records([request(1)], steps).shape == (0, len(steps))


def test_of_keeps_the_steps_of_some_requests():
    requests = [request(5), request(3), request(9)]
    steps = [step(5, 0, [-1, -2]), step(3, 0, [-4, -4, -4]), step(9, 0, [-3]), step(9, 1, [-6])]
    part = Columns.from_records(requests, steps).of(np.array([True, False, True]))
    assert part.request.tolist() == [0, 2, 2]
    assert part.logp.tolist() == [[-1, -3, -6], [-2, 0, 0], [0, 0, 0]]
    assert (part.n_requests, part.shape) == (3, (3, 3))
    assert part.draft_s.tolist() == [0.5] * 3


def test_greedy_and_sampled_requests_are_not_mixed():
    greedy, sampled = request(1, temperature=0), request(2, temperature=0.7)
    assert Columns.from_records([greedy], []).greedy
    assert Columns.from_records([request(1)], []).greedy  # no temperature is greedy
    assert not Columns.from_records([sampled], []).greedy
    with pytest.raises(TraceError, match="mixes greedy and sampled"):
        Columns.from_records([greedy, sampled], [])


@pytest.mark.parametrize(
    ("requests", "steps", "message"),
    [
        ([request(1)], [step(1, 4, [-1], drafted=None)], "request 1: step 4 was recorded without its drafted tokens"),
        ([request(1)], [step(1, 4, [-1], drafted_n=2)], "request 1: step 4 drafted 2 tokens but holds 1 values of tok"),
        ([request(1)], [step(1, 0, [-1]), step(2, 0, [-1])], "request 2 has steps but was not recorded"),
        ([], [step(2, 0, [-1])], "request 2 has steps but was not recorded"),
        ([request(1), request(4), request(1)], [step(1, 0, [-1])], "request 1 was recorded twice"),
    ],
)
def test_records_that_do_not_fit_are_refused(requests, steps, message):
    with pytest.raises(TraceError, match=message):
        Columns.from_records(requests, steps)


def test_a_column_of_another_length_is_refused():
    whole = step(1, 0, [-1, -2])
    short = replace(whole, drafted=replace(whole.drafted, rank=np.zeros(1, np.int32)))
    with pytest.raises(TraceError, match="drafted 2 tokens but holds 1 values of rank"):
        Columns.from_records([request(1)], [short])


@pytest.fixture
def store(tmp_path):
    store = TraceStore.create(tmp_path, SETUP)
    store.append([(request(1), [step(1, 0, [-1, -2]), step(1, 1, [-3])])])
    return store


def test_a_trace_recorded_without_drafts_is_refused(store):
    store.append([(request(2), [step(2, 0, [-1], drafted=None)])])
    with pytest.raises(TraceError, match="was recorded without drafted tokens; record with"):
        Columns.load(store)


def test_a_key_that_was_appended_twice_is_refused(store):
    store.append([(request(1), [step(1, 0, [-4])])])
    with pytest.raises(TraceError, match="request 1 was recorded twice; record into a new folder"):
        Columns.load(store)


@pytest.mark.parametrize(("name", "lists"), [("logp", [[-1.0], [-2.0, -3.0]]), ("rank", [[0, 1], None])])
def test_lists_that_do_not_fit_their_step_are_refused(store, name, lists):
    """Even when their lengths add up."""
    path = store.path / "steps-000001.parquet"
    table = pq.read_table(path)
    i = table.column_names.index(name)
    pq.write_table(table.set_column(i, table.schema.field(i), pa.array(lists, table.schema.field(i).type)), path)
    with pytest.raises(TraceError, match=f"a step does not hold {name} for each of its drafted tokens"):
        Columns.load(store)


def test_an_empty_trace_cannot_be_replayed(tmp_path):
    with pytest.raises(TraceError, match="no finished request yet"):
        Columns.load(TraceStore.create(tmp_path / "new", SETUP))
