import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from draftgate.engines.base import Sampling
from draftgate.engines.sampling import draw, one_hot, probabilities
from draftgate.errors import ConfigError

# Few distinct values, so that ties are common.
logits = arrays(np.float32, st.integers(1, 40), elements=st.sampled_from([-30.0, -2.0, -1.0, 0.0, 0.5, 1.0, 4.0]))


def softmax(x: NDArray[np.floating]) -> NDArray[np.float64]:
    weight = np.exp(x.astype(np.float64) - x.max())
    return weight / weight.sum()


def naive(x: NDArray[np.float32], s: Sampling) -> NDArray[np.float64]:
    """Token by token over a full sort, as one would explain it."""
    p = softmax(x.astype(np.float64) / s.temperature)
    order = sorted(range(len(p)), key=lambda i: (-p[i], i))
    mass, kept = 0.0, []
    for i in order:
        kept.append(i)
        mass += p[i]
        if mass >= s.top_p:
            break
    out = np.zeros(len(p))
    out[kept] = p[kept] / p[kept].sum()
    out[out < s.min_p * out.max()] = 0.0
    return out / out.sum()


@given(
    logits, st.floats(0.2, 3.0), st.sampled_from([0.05, 0.5, 0.9, 0.95, 0.999, 1.0]), st.sampled_from([0.0, 0.1, 1.0])
)
def test_the_nucleus_is_that_of_a_full_sort(
    x: NDArray[np.float32], temperature: float, top_p: float, min_p: float
) -> None:
    # Away from a cut that falls on a rounding error, where either answer is right.
    s = Sampling(temperature, top_p=top_p, min_p=min_p)
    mass = np.sort(softmax(x.astype(np.float64) / temperature))[::-1].cumsum()
    near = top_p < 1 and np.abs(mass - top_p).min() < 1e-6
    if not near and (min_p != 1.0 or len(np.unique(x)) == len(x)):
        np.testing.assert_allclose(probabilities(x, s), naive(x, s), atol=1e-6)


@given(logits, st.integers(1, 45))
def test_top_k_keeps_k_of_the_most_probable(x: NDArray[np.float32], k: int) -> None:
    p = probabilities(x, Sampling(1.0, top_k=k))
    assert np.count_nonzero(p) == min(k, len(x))
    assert x[p > 0].min() >= np.sort(x)[::-1][min(k, len(x)) - 1]
    assert p.sum() == pytest.approx(1.0)


def test_order_is_temperature_top_k_top_p_min_p() -> None:
    p = np.array([0.4, 0.3, 0.2, 0.1])
    x = np.log(p).astype(np.float32)

    def kept(**settings: float) -> list[float]:
        return [round(v, 3) for v in probabilities(x, Sampling(**{"temperature": 1.0} | settings)) if v > 0]  # type: ignore[arg-type]

    # top-p .75 of all keeps three tokens (.4, .3, .2), but of the best two (.571, .429) it keeps both.
    assert kept(top_p=0.75) == [0.444, 0.333, 0.222]
    assert kept(top_k=2, top_p=0.75) == [0.571, 0.429]
    # Were top-p first, .55 of all would keep two and top-k 2 the same two; of the best two it keeps one.
    assert kept(top_p=0.55) == [0.571, 0.429]
    assert kept(top_k=2, top_p=0.55) == [1.0]
    # At temperature .5 the law is .533, .3, .133, .033: min-p .3 of the greatest keeps two, before it would keep three.
    assert kept(min_p=0.3) == [0.444, 0.333, 0.222]
    assert kept(temperature=0.5, min_p=0.3) == [0.64, 0.36]


def test_greedy_is_one_hot_on_the_first_argmax() -> None:
    assert probabilities(np.array([1.0, 3.0, 3.0], np.float32), Sampling()).tolist() == [0, 1, 0]
    assert one_hot(2, 3).tolist() == [0, 0, 1]


def test_a_tiny_temperature_is_near_greedy_and_never_nan() -> None:
    x = np.array([1.0, 30.0, -2.0], np.float32)
    for temperature in (1e-3, 1e-300):
        assert probabilities(x, Sampling(temperature)).tolist() == [0, 1, 0]


def test_a_large_vocabulary_keeps_the_exact_nucleus() -> None:
    x = np.random.default_rng(0).normal(0, 3, 50_000).astype(np.float32)
    for top_p in (0.1, 0.9, 0.99):
        s = Sampling(0.8, top_p=top_p)
        np.testing.assert_allclose(probabilities(x, s), naive(x, s), atol=1e-9)


def test_draw_edges() -> None:
    p = np.array([0.0, 0.25, 0.0, 0.75, 0.0])
    below_one = np.nextafter(1.0, 0.0)
    assert [draw(p, u) for u in (0.0, 0.2499, 0.25, 0.999, below_one, 1.0)] == [1, 1, 3, 3, 3, 3]
    assert draw(np.array([1.0]), below_one) == 0
    third = np.full(3, 1 / 3)
    assert [draw(third, u) for u in (0.0, below_one)] == [0, 2]


@given(
    arrays(np.float64, st.integers(1, 30), elements=st.sampled_from([0.0, 1e-12, 0.1, 1.0])).filter(
        lambda p: p.sum() > 0
    ),
    st.floats(0.0, 1.0, exclude_max=True),
)
def test_draw_gives_the_quantile_and_never_a_token_without_mass(p: NDArray[np.float64], u: float) -> None:
    p = p / p.sum()
    token, total = draw(p, u), p.cumsum()
    assert p[token] > 0
    assert u * total[-1] <= total[token]
    assert token == 0 or total[token - 1] <= u * total[-1]


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"min_p": 2.0},
        {"seed": -1},
    ],
)
def test_values_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    (name,) = wrong
    with pytest.raises(ConfigError, match=f"sampling: {name} must be in"):
        Sampling(**wrong)  # type: ignore[arg-type]
