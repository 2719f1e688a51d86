from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftgate.engines.base import Request
from draftgate.experiment.arms import BASELINE, Arm
from draftgate.experiment.compare import arm_figures, decide, text_differences
from draftgate.experiment.live import Block, arm_speedup
from draftgate.policy.length import Calibration, Cut, Fixed, Goodput
from draftgate.policy.policy import Policy
from draftgate.quality.gate import Gate

GOODPUT = Goodput(1, Calibration({"*": ((0.0,), (0.5,))}), {1: (0.1, 0.1)}, {1: 10.0})
GATE = Gate(0.95)
NAMED = {
    arm.name: arm
    for arm in (
        Arm(Policy("default", length=Cut(8, 3.0)), "engine default"),
        Arm(Policy("fixed", length=Fixed(3)), "lossless"),
        Arm(Policy("cut", length=Cut(8, 2.0)), "lossless"),
        Arm(Policy("goodput", length=GOODPUT), "lossless"),
        Arm(Policy("lossy", "threshold", 0.1, length=Fixed(3)), "search"),
    )
}


def decided(blocks: Sequence[Block], *names: str, allow_lossy: bool = False):
    return decide([BASELINE, *(NAMED[name] for name in names)], blocks, 0.05, allow_lossy, GATE)


def test_a_proven_arm_is_recommended_with_its_figures(make_blocks, around):
    found = decided(make_blocks({"fixed": around(1.5)}), "fixed")
    assert (found.verdict, found.arm.name) == ("faster", "fixed")
    assert found.why.startswith("fixed is 1.50x [1.4")
    assert found.why.endswith("over 30 prompts")


@pytest.mark.parametrize("center", [0.7, 1.0])
def test_none_wins_when_nothing_is_faster_or_all_tie(center, make_blocks, around):
    found = decided(make_blocks({"fixed": around(center), "cut": around(center)}), "fixed", "cut")
    assert (found.verdict, found.arm) == ("off", BASELINE)


def test_exactly_equal_times_are_a_tie(make_blocks):
    assert decided(make_blocks({"fixed": [1.0] * 30}), "fixed").verdict == "off"


@pytest.mark.parametrize(
    ("speeds", "best"),
    [
        ({"goodput": 1.515, "cut": 1.5, "fixed": 1.49}, "fixed"),
        ({"goodput": 1.515, "cut": 1.5, "fixed": 1.45}, "cut"),
        ({"goodput": 1.6, "cut": 1.5, "fixed": 1.45}, "goodput"),
        ({"goodput": 1.515, "fixed": 1.5, "default": 1.49}, "default"),
    ],
)
def test_of_arms_within_two_percent_the_simplest_wins(speeds, best, make_blocks, around):
    found = decided(make_blocks({name: around(v) for name, v in speeds.items()}), *speeds)
    assert found.arm.name == best


def test_a_lossy_arm_needs_leave(make_blocks, around):
    blocks = make_blocks({"lossy": around(3.0), "fixed": around(1.5)})
    assert decided(blocks, "lossy", "fixed").arm.name == "fixed"
    assert decided(blocks, "lossy", "fixed", allow_lossy=True).arm.name == "lossy"
    assert decided(make_blocks({"lossy": around(3.0)}), "lossy").arm == BASELINE


def test_a_lossless_arm_wins_a_tie_with_a_lossy_one(make_blocks, around):
    blocks = make_blocks({"lossy": around(1.51), "goodput": around(1.5)})
    assert decided(blocks, "lossy", "goodput", allow_lossy=True).arm.name == "goodput"


@pytest.mark.parametrize("n", [0, 3])
def test_too_little_is_inconclusive(n, make_blocks, around):
    found = decided(make_blocks({"fixed": around(2.0, n)}), "fixed")
    assert (found.verdict, found.arm) == ("inconclusive", BASELINE)
    assert f"only {n} prompts" in found.why


@given(
    st.dictionaries(
        st.sampled_from(sorted(NAMED)), st.lists(st.floats(0.5, 2.0), min_size=16, max_size=16), min_size=1
    ),
    st.booleans(),
)
def test_whatever_is_recommended_is_proven_and_allowed(make_blocks, speeds, allow_lossy):
    blocks = make_blocks(speeds)
    found = decided(blocks, *speeds, allow_lossy=allow_lossy)
    if found.arm == BASELINE:
        assert found.verdict != "faster"
    else:
        low = arm_speedup(blocks, found.arm.name, 0.05, len(speeds)).low
        assert low is not None
        assert low > 1
        assert found.arm.policy.lossless or allow_lossy


def test_figures_of_an_arm_that_was_not_run_are_none(make_blocks):
    figures = arm_figures(NAMED["fixed"], make_blocks({"cut": [1.0]}), 0.05, 2, GATE)
    assert figures["requests"] == 0
    unknown = ("tokens_per_s", "acceptance_rate", "acceptance_length", "coverage")
    assert [figures[key] for key in unknown] == [None] * 4
    assert [figures["speedup"][key] for key in ("estimate", "low", "high")] == [None] * 3


def test_figures_add_up(make_blocks):
    figures = arm_figures(NAMED["fixed"], make_blocks({"fixed": [2.0, 2.0]}), 0.05, 1, GATE)
    assert figures["tokens_per_s"] == pytest.approx(4.0)  # two of three tokens come from steps, in half a second
    assert (figures["acceptance_rate"], figures["acceptance_length"], figures["coverage"]) == (0.75, 1.0, 0.5)
    baseline = arm_figures(BASELINE, make_blocks({"fixed": [2.0, 2.0]}), 0.05, 1, GATE)["speedup"]
    assert baseline == {"estimate": 1.0, "low": 1.0, "high": 1.0, "n": 2, "how": "by definition"}


class _Logits:
    """Answers the question that text_differences asks of an engine."""

    def __init__(self, gap: float, noise: float) -> None:
        self.gap, self.noise, self.asked = gap, noise, []

    def logit_gap(self, prompt, output, first, second) -> tuple[float, float]:
        self.asked.append((tuple(prompt), tuple(output), first, second))
        return self.gap, self.noise


def differing(make_run, tokens: Sequence[int], arm: str = "fixed") -> list[Block]:
    return [Block("p0", r, 1.0, (make_run("none", 1.0, [5, 6, 7]), make_run(arm, 1.0, tokens))) for r in range(2)]


REQUESTS = [Request("p0", (1, 2, 3), 8)]


@pytest.mark.parametrize(("gap", "tie"), [(-0.019, True), (0.019, True), (0.5, False)])
def test_a_gap_within_the_noise_is_a_tie(gap, tie, make_run):
    engine = _Logits(gap, 0.01)
    rows = text_differences(engine, REQUESTS, [BASELINE, NAMED["fixed"]], differing(make_run, [5, 9, 7]))
    assert [(row["offset"], row["gap"], row["tie"]) for row in rows] == [(1, abs(gap), tie)]  # once, not every round
    assert engine.asked == [((1, 2, 3), (5,), 6, 9)]


def test_a_text_that_stops_early_is_an_error_not_a_tie(make_run):
    rows = text_differences(_Logits(0, 1), REQUESTS, [BASELINE, NAMED["fixed"]], differing(make_run, [5, 6]))
    assert [(row["offset"], row["gap"], row["tie"]) for row in rows] == [(2, None, False)]


def test_equal_texts_and_lossy_arms_are_not_differences(make_run):
    same, lossy = differing(make_run, [5, 6, 7]), differing(make_run, [5, 9, 7], "lossy")
    arms = [BASELINE, NAMED["fixed"], NAMED["lossy"]]
    assert text_differences(_Logits(1, 0), REQUESTS, arms, [*same, *lossy]) == []


def test_an_arm_dropped_from_a_block_is_not_compared(make_run):
    blocks = [replace(b, runs=b.runs[:1]) for b in differing(make_run, [5, 9, 7])]
    assert text_differences(_Logits(1, 0), REQUESTS, [BASELINE, NAMED["fixed"]], blocks) == []
