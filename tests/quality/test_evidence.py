import math

import pytest

from draftgate.errors import TraceError
from draftgate.quality.evidence import Evidence, Outcome, valid_tokens_per_s
from draftgate.stats import Tally


def tally(x: Tally) -> dict[float, float]:
    """Count by value."""
    return dict(zip(x.values.tolist(), x.counts.tolist(), strict=True))


@pytest.mark.parametrize(
    ("baseline", "arm", "difference", "arm_valid", "baseline_valid"),
    [
        (True, True, {0.0: 1}, {1.0: 1}, {1.0: 1}),
        (True, False, {-1.0: 1}, {0.0: 1}, {1.0: 1}),
        (False, True, {1.0: 1}, {1.0: 1}, {0.0: 1}),
        (False, False, {0.0: 1}, {0.0: 1}, {0.0: 1}),
        (True, None, {-1.0: 1}, {}, {1.0: 1}),  # ran on until it was cut, where the baseline came to a valid end
        (None, True, {1.0: 1}, {1.0: 1}, {}),
        (False, None, {0.0: 1}, {}, {0.0: 1}),
        (None, False, {0.0: 1}, {0.0: 1}, {}),
        (None, None, {}, {}, {}),
    ],
)
def test_what_a_pair_is_evidence_of(
    baseline: bool | None,
    arm: bool | None,
    difference: dict[float, int],
    arm_valid: dict[float, int],
    baseline_valid: dict[float, int],
) -> None:
    evidence = Evidence.of([Outcome("a", baseline, arm)])
    assert tally(evidence.difference) == difference
    assert tally(evidence.arm) == arm_valid
    assert tally(evidence.baseline) == baseline_valid


def test_repeats_of_a_prompt_are_one_prompt() -> None:
    evidence = Evidence.of([Outcome("a", True, True), Outcome("b", True, False), Outcome("a", True, False)])
    assert tally(evidence.difference) == {-1.0: 1, -0.5: 1}
    assert tally(evidence.arm) == {0.0: 1, 0.5: 1}
    assert tally(evidence.baseline) == {1.0: 2}


def test_invalid_and_cut_outputs_cost_time_and_bring_nothing() -> None:
    assert valid_tokens_per_s([10, 20, 40], [1.0, 1.0, 2.0], [True, False, None]) == 2.5
    assert valid_tokens_per_s([10, 20], [1.0, 1.0], [False, False]) == 0.0


@pytest.mark.parametrize(
    ("tokens", "seconds", "valid"), [([], [], []), ([5, 5], [1.0, 1.0], [None, None]), ([0], [0.0], [True])]
)
def test_a_rate_that_was_not_measured_is_missing(
    tokens: list[int], seconds: list[float], valid: list[bool | None]
) -> None:
    assert valid_tokens_per_s(tokens, seconds, valid) is None


def test_damaged_measurements_are_refused() -> None:
    with pytest.raises(TraceError, match="a judgement per output"):
        valid_tokens_per_s([1, 2], [1.0, 1.0], [True])
    for bad in (-1.0, math.nan, math.inf):
        with pytest.raises(TraceError, match="finite and not negative"):
            valid_tokens_per_s([1, 2], [1.0, bad], [True, True])
