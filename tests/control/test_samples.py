from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftgate.control.samples import COUNTS, Samples, WindowMaker
from draftgate.control.window import Window
from draftgate.errors import ConfigError, TraceError


def samples(ids: list[int], ends_s: list[float], seed: int = 0, k: int = 3) -> Samples:
    """Requests whose counts can be true and depend on their id only."""
    rows, positions = [], []
    for i in ids:
        rng = np.random.default_rng([seed, i])
        covered = int(rng.integers(1, 20))
        kept = np.minimum.accumulate(rng.integers(0, covered + 1, k))
        rows.append([covered + 2, covered, covered * k, kept.sum(), covered + 2 + kept.sum(), 1, i % 2, 0])
        positions.append([kept, [covered, *kept[:-1]], [covered] * k])
    n = len(ids)
    return Samples(
        np.array(ids, np.int64),
        np.array(ends_s, float),
        np.array(rows, np.int64).reshape(n, len(COUNTS)),
        np.array(positions, np.int64).reshape(n, 3, k),
        np.full(n, 0.5),
        np.full(n, 2.0),
        np.array(ids, float),
    )


def counted(windows: list[Window]) -> tuple[int, int, int]:
    return tuple(sum(getattr(w, name) for w in windows) for name in ("requests", "committed", "valid"))


def test_windows_are_cut_by_count() -> None:
    maker = WindowMaker("code", "mine", size=100)
    windows = maker.add(samples(list(range(250)), [0.01 * i for i in range(250)]))
    assert [w.requests for w in windows] == [100, 100]
    assert all(w.flaw() is None and (w.workload, w.policy) == ("code", "mine") for w in windows)
    assert (windows[1].start_s, windows[1].end_s) == (1.0, 1.99)
    assert windows[0].seconds == 50.0
    assert windows[0].batch == 2.0
    assert windows[0].latency_s == pytest.approx(np.percentile(range(100), 95))


def test_windows_are_cut_by_time() -> None:
    maker = WindowMaker("code", "mine", size=100, most_s=60.0)
    windows = maker.add(samples([1, 2, 3, 4], [0.0, 59.0, 60.0, 200.0]))
    assert [w.requests for w in windows] == [2, 1]
    assert maker.flush(259.0) == []
    assert [w.requests for w in maker.flush(260.0)] == [1]
    assert maker.flush(1e9) == []


@given(
    data=st.lists(st.tuples(st.integers(0, 60), st.floats(0, 250)), max_size=150),
    cuts=st.lists(st.integers(0, 150), max_size=6),
    size=st.integers(1, 40),
)
def test_every_request_counts_once_however_it_comes(data: list[tuple[int, float]], cuts: list[int], size: int) -> None:
    """Any order, any batches, any duplicates, as long as nothing is too late."""
    maker = WindowMaker("code", "mine", size=size, most_s=1e9, late_s=1e9)
    edges = [0, *sorted(min(c, len(data)) for c in cuts), len(data)]
    windows = []
    unique: dict[int, float] = {}
    for i, end_s in data[:]:
        unique.setdefault(i, end_s)
    for a, b in pairwise(edges):
        windows += maker.add(samples([i for i, _ in data[a:b]], [e for _, e in data[a:b]]))
        maker._seen = np.array(sorted({i for i, _ in data[:b]}), np.int64)  # memory as long as the test
    windows += maker.flush(np.inf)
    assert counted(windows)[0] == len(unique)
    whole = samples(list(unique), list(unique.values()))
    assert counted(windows)[1] == whole.counts[:, COUNTS.index("committed")].sum()
    assert maker.duplicates == len(data) - len(unique)
    assert all(w.flaw() is None and w.requests <= size for w in windows)


def test_a_request_reported_again_is_known_over_several_windows() -> None:
    maker = WindowMaker("code", "mine", size=10)
    for start in range(0, 40, 10):
        maker.add(samples(list(range(start, start + 10)), [float(start)] * 10))
    assert maker.add(samples(list(range(40)), [40.0] * 40)) == []
    assert maker.duplicates == 40


def test_what_is_far_too_late_is_dropped_and_counted() -> None:
    maker = WindowMaker("code", "mine", size=10, late_s=100.0)
    maker.add(samples([1], [1000.0]))
    maker.add(samples([2, 3], [899.0, 901.0]))
    assert maker.late == 1
    assert maker.flush(1e9)[0].requests == 2


def test_drafts_of_different_lengths_add_up() -> None:
    maker = WindowMaker("code", "mine", size=4)
    windows = maker.add(samples([1, 2], [0.0, 1.0], k=2)) + maker.add(samples([3, 4], [2.0, 3.0], k=5))
    assert [len(w.kept) for w in windows] == [5]
    assert windows[0].flaw() is None


def test_unknown_batch_and_latency_stay_unknown() -> None:
    s = samples([1, 2], [0.0, 1.0])
    unknown = Samples(s.id, s.end_s, s.counts, s.positions, s.seconds, np.full(2, np.nan), np.full(2, np.nan))
    (window,) = WindowMaker("code", "mine", size=2).add(unknown)
    assert (window.batch, window.latency_s) == (None, None)


def test_memory_does_not_grow() -> None:
    maker = WindowMaker("code", "mine", size=100)
    for batch in range(100):
        ids = list(range(100 * batch, 100 * batch + 100))
        maker.add(samples(ids, [float(batch)] * 100))
    assert len(maker._seen) <= 400
    assert maker._pending == []


def test_columns_of_different_length_are_refused() -> None:
    s = samples([1, 2], [0.0, 1.0])
    with pytest.raises(TraceError, match="2 requests"):
        Samples(s.id, s.end_s[:1], s.counts, s.positions, s.seconds, s.batch, s.latency_s)


@pytest.mark.parametrize("options", [{"size": 0}, {"most_s": 0.0}, {"late_s": -1.0}, {"most_s": float("nan")}])
def test_wrong_options_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        WindowMaker("code", "mine", **options)  # type: ignore[arg-type]
