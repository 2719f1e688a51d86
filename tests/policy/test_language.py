from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from draftgate.errors import ConfigError, WorkloadError
from draftgate.policy.language import MIN_TOKENS, language_offsets, token_spread


def uniform(kinds: int, n: int = 4000) -> NDArray[np.int64]:
    return np.random.default_rng(kinds).integers(0, kinds, n)


def test_spread_by_hand() -> None:
    # p = 1/2, 1/4, 1/4: entropy 1.5 ln 2; corrected by (3 - 1) / (2 x 4)
    assert token_spread(np.array([7, 7, 1, 2])) == pytest.approx(2**1.5 * np.exp(0.25))


def test_one_token_repeated_has_spread_one() -> None:
    assert token_spread(np.full(50, 3)) == 1.0


@pytest.mark.parametrize("kinds", [2, 30, 300])
def test_correction_takes_out_most_of_the_bias(kinds: int) -> None:
    n, repeats = 4 * kinds, 200
    rng = np.random.default_rng(0)
    samples = rng.integers(0, kinds, (repeats, n))
    corrected = np.mean([np.log(token_spread(sample)) for sample in samples])
    counts = [np.unique(sample, return_counts=True)[1] / n for sample in samples]
    plain = np.mean([-(p @ np.log(p)) for p in counts])
    assert abs(corrected - np.log(kinds)) < abs(plain - np.log(kinds)) / 4


@given(tokens=st.lists(st.integers(0, 20), min_size=1, max_size=60), shift=st.integers(1, 1000))
def test_spread_knows_no_names_and_no_order(tokens: list[int], shift: int) -> None:
    sample = np.array(tokens)
    spread = token_spread(sample)
    assert spread >= 1.0
    assert token_spread(np.sort(sample) + shift) == pytest.approx(spread)


def test_no_tokens_have_no_spread() -> None:
    with pytest.raises(WorkloadError, match="at least one token"):
        token_spread(np.array([], np.int64))


def test_offsets_grow_with_entropy_from_zero_to_high() -> None:
    offsets = language_offsets({"c": uniform(400), "json": uniform(20), "python": uniform(80), "go": uniform(100)})
    assert offsets["json"] == 0.0
    assert offsets["c"] == pytest.approx(0.10)
    assert offsets["python"] is not None
    # log 80/20 of log 400/20, give or take the sampling of 4000 tokens
    assert offsets["python"] == pytest.approx(0.05 + 0.05 * np.log(4) / np.log(20), abs=0.002)
    order = [offsets[name] or 0.0 for name in ("json", "python", "go", "c")]
    assert all(a < b for a, b in pairwise(order))


def test_too_few_tokens_give_none() -> None:
    samples = {"c": uniform(400), "json": uniform(20), "go": uniform(100, MIN_TOKENS - 1)}
    offsets = language_offsets(samples)
    assert offsets["go"] is None
    assert offsets == {**language_offsets({"c": samples["c"], "json": samples["json"]}), "go": None}
    assert language_offsets({"go": uniform(9, 10)}) == {"go": None}
    assert language_offsets({}) == {}


def test_a_difference_within_noise_is_none_at_all() -> None:
    rng = np.random.default_rng(5)
    p = 1 / np.arange(1, 60)
    same = {name: rng.choice(59, 500, p=p / p.sum()) for name in ("a", "b")}
    assert language_offsets(same) == {"a": 0.0, "b": 0.0}


def test_size_of_a_sample_does_not_pass_for_variety() -> None:
    rng = np.random.default_rng(1)
    p = 1 / np.arange(1, 5001)  # like a vocabulary: most tokens are rare and unseen in a small sample
    small, large = (rng.choice(5000, n, p=p / p.sum()) for n in (400, 40_000))
    assert token_spread(large) > 1.5 * token_spread(small)
    assert language_offsets({"small": small, "large": large}) == {"small": 0.0, "large": 0.0}


def test_offsets_are_plain_floats() -> None:
    assert {type(value) for value in language_offsets({"a": uniform(4), "b": uniform(40)}).values()} == {float}


@pytest.mark.parametrize(("low", "high"), [(-0.1, 0.1), (0.2, 0.1), (float("nan"), 0.1)])
def test_bounds_are_checked(low: float, high: float) -> None:
    with pytest.raises(ConfigError, match="0 <= low <= high"):
        language_offsets({"a": uniform(4)}, low, high)


def test_min_tokens_is_checked() -> None:
    with pytest.raises(ConfigError, match="min_tokens must be at least 1, got 0"):
        language_offsets({"a": uniform(4)}, min_tokens=0)
