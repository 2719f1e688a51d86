import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from draftgate.search.pareto import front

# Few distinct values, so that ties are common.
POINTS = st.lists(st.tuples(st.integers(0, 4).map(float), st.integers(0, 4).map(float)), max_size=20)


def beats(a: tuple[float, float], b: tuple[float, float]) -> bool:
    return a[0] >= b[0] and a[1] <= b[1] and a != b


@given(POINTS)
def test_the_front_is_what_no_point_beats(points):
    found = front([s for s, _ in points], [loss for _, loss in points]).tolist()
    unbeaten = [i for i, p in enumerate(points) if not any(beats(q, p) for q in points)]
    firsts = [i for i in unbeaten if points.index(points[i]) == i]
    assert sorted(found) == firsts


@given(POINTS)
def test_the_front_is_fastest_first_and_ever_less_lossy(points):
    found = front([s for s, _ in points], [loss for _, loss in points])
    speeds, losses = ([points[i][axis] for i in found] for axis in (0, 1))
    assert (np.diff(speeds) < 0).all()
    assert (np.diff(losses) < 0).all()
