from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from draftgate.cost.schedule import batch_schedule
from draftgate.cost.steps import Curve, StepCost


def linear(batch: int, base: float, per_token: float, most: int = 8) -> Curve:
    return Curve(batch, tuple(base + per_token * batch * m for m in range(1, most + 1)), (0.0,) * most, 9)


def cost(per_token: float, *batches: int) -> StepCost:
    return StepCost({b: linear(b, 1.0, per_token) for b in batches})


GOOD = [0.7, 0.6, 0.5, 0.4, 0.3]


def test_fuller_batches_draft_less_and_the_fullest_nothing() -> None:
    rows = batch_schedule(cost(0.05, 1, 2, 4, 8, 64), GOOD, 1.0, 5)
    assert rows[0][0] == 1
    lengths = [k for _, _, k in rows]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] == 5
    assert rows[-1] == (64, 64, 0)


def test_a_hand_computed_choice() -> None:
    # k = 1: 1.5 tokens in 1.2 s against 1 in 1.1 s; k = 2: 1.55 in 1.3 s, which is less.
    assert batch_schedule(StepCost({1: linear(1, 1.0, 0.1)}), [0.5, 0.05], 1.0, 7) == [(1, 1, 1)]


def test_steps_that_do_not_draft_cost_what_they_cost_without_speculation() -> None:
    # Every tenth step drafts, and all it drafts is kept: worth it however dear the other nine would be.
    assert batch_schedule(StepCost({1: Curve(1, (1.0, 1.9), (0.0, 0.0), 9)}), [1.0], 0.1, 1) == [(1, 1, 0)]
    assert batch_schedule(StepCost({1: Curve(1, (1.0, 1.2), (0.0, 0.0), 9)}), [1.0], 0.5, 1) == [(1, 1, 1)]


def test_equal_neighbours_are_one_row_and_none_means_one_row_of_zero() -> None:
    assert batch_schedule(cost(10.0, 1, 2, 4), GOOD, 1.0, 5) == [(1, 4, 0)]


@given(
    survival=st.lists(st.floats(0, 1), max_size=7).map(lambda x: sorted(x, reverse=True)),
    coverage=st.floats(0, 1),
    per_token=st.floats(0, 2),
    sizes=st.sets(st.integers(1, 300), min_size=1, max_size=6),
    most=st.integers(0, 9),
)
def test_rows_are_what_vllm_asks_for(
    survival: list[float], coverage: float, per_token: float, sizes: set[int], most: int
) -> None:
    rows = batch_schedule(cost(per_token, *sizes), survival, coverage, most)
    assert rows[0][0] == 1
    assert rows[-1][1] == max(sizes)
    assert all(first <= last and 0 <= k <= min(most, len(survival)) for first, last, k in rows)
    assert all(a[1] + 1 == b[0] and a[2] != b[2] for a, b in pairwise(rows))
