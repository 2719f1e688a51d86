from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftgate.engines.base import Request
from draftgate.errors import ConfigError
from draftgate.loadgen.arrivals import Closed, Open, endless

REQUESTS = [Request(f"p{i}", (1, i), 8) for i in range(5)]


@given(
    rate=st.floats(0.01, 100),
    start=st.floats(0, 2e9),
    gaps=st.lists(st.tuples(st.floats(0, 50), st.integers(1, 4)), max_size=30),
)
def test_open_loses_nobody_and_serves_nobody_before_he_came(
    rate: float, start: float, gaps: list[tuple[float, int]]
) -> None:
    seen, alone = Open(rate, start, seed=3), Open(rate, start, seed=3)
    now, served = start, 0
    for gap, most in gaps:
        now += gap
        taken = seen.take(now, most)
        served += taken
        assert taken <= most
        assert taken == most or seen.waiting == 0
        assert seen.wait_s(now) >= 0
    assert served + seen.waiting == alone.take(now, 10**9)


def test_open_arrivals_are_poisson() -> None:
    """Counts of 2,000 unit intervals at rate 3: mean and variance are both 3, within 5 standard errors."""
    arrivals = Open(3.0, seed=1)
    counts = [arrivals.take(t, 10**9) for t in range(1, 2001)]
    assert abs(np.mean(counts) - 3) < 5 * (3 / 2000) ** 0.5
    assert abs(np.var(counts) - 3) < 5 * ((3 + 2 * 9) / 2000) ** 0.5


def test_an_open_loop_waits_exactly_for_the_next() -> None:
    arrivals = Open(0.5, start_s=100.0)
    assert arrivals.take(100.0, 9) == 0
    wait_s = arrivals.wait_s(100.0)
    assert arrivals.take(100.0 + 0.999 * wait_s, 9) == 0
    assert arrivals.take(100.0 + 1.001 * wait_s, 9) == 1


def test_a_closed_loop_never_waits() -> None:
    assert (Closed(3).take(0.0, 8), Closed(3).take(0.0, 2), Closed().wait_s(0.0)) == (3, 2, 0.0)


def test_endless_rounds_serve_everything_once_in_changing_order_under_new_ids() -> None:
    rounds = [list(islice(it, 5)) for it in [endless(REQUESTS, 7)] for _ in range(3)]
    for served in rounds:
        assert sorted(r.tokens for r in served) == sorted(r.tokens for r in REQUESTS)
    assert len({r.id for served in rounds for r in served}) == 15
    assert len({tuple(r.tokens for r in served) for served in rounds}) > 1


@pytest.mark.parametrize(
    "wrong", [lambda: Closed(0), lambda: Open(0), lambda: Open(float("nan")), lambda: next(endless([]))]
)
def test_what_makes_no_load_is_refused(wrong: object) -> None:
    with pytest.raises(ConfigError):
        wrong()  # type: ignore[operator]
