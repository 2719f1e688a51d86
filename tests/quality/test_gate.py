import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from draftgate.errors import ConfigError
from draftgate.quality.evidence import Evidence, Outcome
from draftgate.quality.gate import FLOORS, Gate, Quality
from draftgate.stats import Tally

OK, FAILED, INCONCLUSIVE = Quality.OK, Quality.FAILED, Quality.INCONCLUSIVE
Bits = NDArray[np.bool_]

judgements = st.sampled_from([True, True, True, False, None])
outcome_lists = st.lists(st.builds(Outcome, st.sampled_from("abcdefghijkl"), judgements, judgements), max_size=60)
gates = st.builds(Gate, st.sampled_from([None, 0.3, 0.6, 0.95]), st.sampled_from([0.05, 0.3]), st.just(0.3))


def outcomes(*groups: tuple[int, bool | None, bool | None]) -> list[Outcome]:
    """(how many prompts, baseline, arm)."""
    pairs = [(baseline, arm) for n, baseline, arm in groups for _ in range(n)]
    return [Outcome(str(i), baseline, arm) for i, (baseline, arm) in enumerate(pairs)]


def looks(baseline: Bits, arm: Bits) -> Evidence:
    """Evidence[runs, n] after every prompt of runs."""

    def running(low: float, *seen: Bits) -> Tally:
        values = np.linspace(low, 1.0, len(seen))
        return Tally(values, np.stack(seen, axis=-1).cumsum(axis=1, dtype=np.float64), low)

    lost, won = baseline & ~arm, arm & ~baseline
    return Evidence(
        running(-1.0, lost, baseline == arm, won), running(0.0, ~arm, arm), running(0.0, ~baseline, baseline)
    )


def simulated(gate: Gate, valid: float, balanced: float, loss: float, lossless: bool = False) -> tuple[Bits, Bits]:
    """(ok, failed)[2000, 200]: 2,000 comparisons looked at after each of 200 prompts.

    `balanced` is the share of pairs that differ by chance, half of them won and half lost.
    """
    rng = np.random.default_rng(17)
    parts = []
    for _ in range(8):
        u = rng.random((250, 200))
        baseline = u < valid
        arm = (baseline & (u >= balanced / 2 + loss)) | (u > 1 - balanced / 2)
        parts.append(gate.verdicts(looks(baseline, arm), lossless))
    ok, failed = (np.concatenate(flags) for flags in zip(*parts, strict=True))
    return ok, failed


@pytest.mark.parametrize(
    ("floor", "groups", "verdict"),
    [
        (None, [(98, True, True)], OK),
        (None, [(97, True, True)], INCONCLUSIVE),
        (None, [(60, False, False), (60, True, True)], OK),
        (None, [(400, True, True), (5, True, False)], OK),
        (None, [(30, True, True), (9, True, False)], FAILED),
        (None, [(30, True, True), (9, True, False), (9, False, True)], INCONCLUSIVE),
        (0.98, [(248, True, True)], OK),
        (0.98, [(247, True, True)], INCONCLUSIVE),  # within the margin, but the floor is not proven
        (0.95, [(98, True, True)], OK),
        (0.95, [(97, True, True)], INCONCLUSIVE),
        (0.98, [(985, True, True), (15, True, False)], INCONCLUSIVE),  # worse, but within the margin
        (0.98, [(20, True, True), (20, False, False)], INCONCLUSIVE),  # below a floor that the baseline misses too
        (None, [], INCONCLUSIVE),
        (0.98, [(50, None, None)], INCONCLUSIVE),
    ],
)
def test_a_lossy_arm_is_ok_only_when_proven(
    floor: float | None, groups: list[tuple[int, bool | None, bool | None]], verdict: Quality
) -> None:
    assert Gate(floor).decide(outcomes(*groups), lossless=False).verdict is verdict


def test_a_loss_within_the_margin_is_ok_even_when_it_is_real() -> None:
    result = Gate(floor=None).decide(outcomes((1980, True, True), (20, True, False)), lossless=False)
    assert result.difference.high is not None
    assert result.difference.high < 0
    assert result.verdict is OK
    assert result.why.startswith("loses less than 5 points: -1.0 points [")


def test_a_lossless_arm_is_ok_unless_proven_worse() -> None:
    gate = Gate(floor=0.98)
    for groups in ([], [(3, True, True)], [(20, True, True), (3, True, False)], [(200, False, False)]):
        result = gate.decide(outcomes(*groups), lossless=True)
        assert (result.verdict, result.needed) == (OK, 0)
    worse = gate.decide(outcomes((30, True, True), (9, True, False)), lossless=True)
    assert worse.verdict is FAILED
    assert "the engine or the rule is at fault" in worse.why


def test_an_arm_below_the_floor_fails_even_within_the_margin() -> None:
    groups = [(940, True, True), (29, True, False), (1, False, True), (30, False, False)]
    with_floor = Gate(floor=0.965, margin=0.1).decide(outcomes(*groups), lossless=False)
    assert Gate(floor=None, margin=0.1).decide(outcomes(*groups), lossless=False).verdict is OK
    assert with_floor.verdict is FAILED
    assert "misses the floor of 96.5%: 94.1% valid [" in with_floor.why


def test_a_floor_that_the_baseline_misses_is_waived_and_said_so() -> None:
    result = Gate(floor=0.98).decide(outcomes((100, True, True), (50, False, False)), lossless=False)
    assert result.verdict is OK
    assert "the floor of 98% is waived, as outputs without speculation miss it: 66.7% valid [" in result.why
    lost = Gate(floor=0.98).decide(outcomes((100, True, True), (50, False, False), (12, True, False)), lossless=False)
    assert lost.verdict is FAILED


def test_a_floor_is_not_waived_because_the_baseline_seems_to_miss_it() -> None:
    seems = Gate(floor=0.95, margin=0.2).decide(outcomes((93, True, True), (7, False, False)), lossless=False)
    assert seems.baseline_valid.estimate == 0.93
    assert seems.verdict is INCONCLUSIVE
    assert "not proven to reach the floor of 95%" in seems.why


def test_nothing_judged_is_said() -> None:
    unjudged = outcomes((9, None, None))
    lossy, lossless = (Gate(floor=0.95).decide(unjudged, lossless) for lossless in (False, True))
    assert (lossy.verdict, lossy.needed, lossy.n, lossy.valid.estimate) == (INCONCLUSIVE, None, 0, None)
    assert lossy.why == "no output was judged"
    assert lossless.why == "lossless, and no output was judged"


def test_an_arm_that_runs_on_until_it_is_cut_fails() -> None:
    result = Gate(floor=0.95).decide(outcomes((30, True, True), (12, True, None)), lossless=False)
    assert result.verdict is FAILED
    assert result.valid.estimate == 1.0
    never_ended = Gate(floor=0.95).decide(outcomes((30, True, None)), lossless=False)
    assert "no output of the arm was judged" in never_ended.why
    unknown = Gate(floor=0.95).decide(outcomes((30, None, True)), lossless=False)
    assert unknown.verdict is INCONCLUSIVE  # nothing is known of the baseline, so the arm has the floor to prove


@given(outcome_lists, gates)
def test_the_verdict_is_what_the_intervals_show(seen: list[Outcome], gate: Gate) -> None:
    result = gate.decide(seen, lossless=False)
    low, high = (-1.0 if b is None else b for b in (result.difference.low, result.difference.high))
    if not result.n:
        assert result.verdict is INCONCLUSIVE
        return
    base, arm = result.baseline_valid, result.valid
    floor = 0.0 if gate.floor is None else gate.floor
    waived = base.high is not None and base.high < floor
    reached = waived or (arm.low or 0.0) >= floor
    missed = arm.high is not None and arm.high < floor and base.estimate is not None and base.estimate >= floor
    assert (result.verdict is OK) == (low >= -gate.margin and reached)
    assert (result.verdict is FAILED) == (missed or (high < 0 and low < -gate.margin))
    assert (result.needed == 0) == (result.verdict is not INCONCLUSIVE)


@given(outcome_lists, gates, st.booleans())
def test_order_and_names_do_not_matter(seen: list[Outcome], gate: Gate, lossless: bool) -> None:
    renamed = [replace(o, prompt=f"prompt {o.prompt}") for o in reversed(seen)]
    first, second = gate.decide(seen, lossless), gate.decide(renamed, lossless)
    assert (first.verdict, first.why) == (second.verdict, second.why)


@given(outcome_lists, gates, st.booleans())
def test_repeating_every_prompt_adds_no_evidence(seen: list[Outcome], gate: Gate, lossless: bool) -> None:
    assert gate.decide(seen * 3, lossless) == gate.decide(seen, lossless)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=40), st.data())
def test_a_better_output_never_lowers_a_bound(pairs: list[tuple[bool, bool]], data: st.DataObject) -> None:
    seen = [Outcome(str(i), *pair) for i, pair in enumerate(pairs)]
    i = data.draw(st.sampled_from(range(len(seen))))
    better = [*seen[:i], replace(seen[i], arm=True), *seen[i + 1 :]]
    before, after = (Gate(floor=0.5).decide(o, lossless=False) for o in (seen, better))
    for old, new in ((before.difference, after.difference), (before.valid, after.valid)):
        assert old.low is not None
        assert new.low is not None
        assert new.low >= old.low - 1e-9


@given(outcome_lists)
def test_alpha_is_shared_by_the_arms(seen: list[Outcome]) -> None:
    shared = Gate(floor=0.6, alpha=0.3, arms=3).decide(seen, lossless=False)
    assert shared == Gate(floor=0.6, alpha=0.3 / 3).decide(seen, lossless=False)


@pytest.mark.parametrize(
    ("floor", "unit"),
    [
        (None, [(40, True, True)]),
        (0.98, [(40, True, True)]),
        (0.95, [(49, True, True), (1, False, False)]),
        (None, [(18, True, True), (1, True, False), (1, False, True)]),
        (None, [(8, True, True), (2, True, False)]),
    ],
)
def test_as_many_more_prompts_as_needed_settle_it(
    floor: float | None, unit: list[tuple[int, bool | None, bool | None]]
) -> None:
    gate, seen = Gate(floor), outcomes(*unit)
    needed = gate.decide(seen, lossless=False).needed
    assert needed is not None

    def after(more: float) -> bool:
        ok, failed = gate.verdicts(Evidence.of(seen).times(1 + more / len(seen)), lossless=False)
        return bool(ok | failed)

    assert after(needed)
    assert not after(0.97 * needed - 1)


def test_needed_is_missing_when_no_number_of_prompts_would_do() -> None:
    balanced = outcomes((50, True, True), (25, True, False), (25, False, True))
    assert Gate(floor=None, margin=0.0).decide(balanced, lossless=False).needed is None


def test_the_sentence_says_what_is_missing() -> None:
    result = Gate(floor=0.98).decide(outcomes((120, True, True)), lossless=False)
    assert result.needed == 129
    assert result.why.endswith("about 129 more prompts like these would settle it")
    assert "not proven to reach the floor of 98%: 100.0% valid [95.9, 100.0]" in result.why


@pytest.mark.parametrize("lossless", [False, True])
@pytest.mark.parametrize(("valid", "balanced"), [(0.95, 0.02), (0.95, 0.1), (0.6, 0.48)])
def test_equal_arms_seldom_fail_however_often_one_looks(valid: float, balanced: float, lossless: bool) -> None:
    _, failed = simulated(Gate(floor=None), valid, balanced, loss=0.0, lossless=lossless)
    assert failed.any(axis=1).mean() <= 0.05  # seen: up to 0.014


@pytest.mark.parametrize("balanced", [0.0, 0.02, 0.1])
def test_an_arm_worse_by_the_margin_is_seldom_ok_however_often_one_looks(balanced: float) -> None:
    ok, _ = simulated(Gate(floor=None), 0.95, balanced, loss=0.05)
    assert 0 < ok.any(axis=1).mean() <= 0.05  # seen: up to 0.014


def test_equal_arms_at_the_floor_seldom_fail_however_often_one_looks() -> None:
    _, failed = simulated(Gate(floor=0.9), 0.9, 0.1, loss=0.0)
    assert 0 < failed.any(axis=1).mean() <= 0.05


@pytest.mark.parametrize(
    ("balanced", "loss", "n", "least_ok", "least_failed"),
    [(0.0, 0.0, 100, 1.0, 0.0), (0.02, 0.0, 200, 0.75, 0.0), (0.0, 0.1, 100, 0.0, 0.7), (0.05, 0.2, 100, 0.0, 0.9)],
)
def test_power(balanced: float, loss: float, n: int, least_ok: float, least_failed: float) -> None:
    ok, failed = simulated(Gate(floor=None), 0.95, balanced, loss)
    assert ok[:, :n].any(axis=1).mean() >= least_ok
    assert failed[:, :n].any(axis=1).mean() >= least_failed


def test_the_floors_of_the_source() -> None:
    assert FLOORS == {"chat": None, "code": 0.95, "structured": 0.98}
    for floor in FLOORS.values():
        Gate(floor)


@pytest.mark.parametrize("floor", [0.0, 1.0, -0.1, 95.0, math.nan])
def test_a_floor_is_a_share(floor: float) -> None:
    with pytest.raises(ConfigError, match="floor must be between 0 and 1"):
        Gate(floor)


def test_settings_are_checked() -> None:
    for margin in (-0.01, 1.0, 5.0, math.nan):
        with pytest.raises(ConfigError, match="margin must be at least 0 and below 1"):
            Gate(None, margin)
    with pytest.raises(ConfigError, match="alpha must be between 0 and 1"):
        Gate(None, alpha=0.0)
    with pytest.raises(ConfigError, match="arms must be at least 1"):
        Gate(None, arms=0)
