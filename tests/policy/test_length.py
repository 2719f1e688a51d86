from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from draftgate.policy.category import GROUPS, Category
from draftgate.policy.length import Calibration, Cut, Fixed, Goodput, Length

WIDTH = 5  # tokens of the proposals below
GROUP_NAMES = sorted(set(GROUPS.values()))
EVIDENCE = st.integers(-1, 9).map(float)
PROBABILITY = st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.8, 0.95, 1.0])

Proposals = tuple[NDArray[np.float64], NDArray[np.uint8], NDArray[np.int64]]


@st.composite
def proposals(draw: st.DrawFn, n: int = 4) -> Proposals:
    """Evidence [n, WIDTH], categories [n, WIDTH] and what is available [n]."""
    rows = st.lists(EVIDENCE, min_size=WIDTH, max_size=WIDTH)
    kinds = st.lists(st.sampled_from(Category), min_size=WIDTH, max_size=WIDTH)
    evidence, category = (draw(st.lists(row, min_size=n, max_size=n)) for row in (rows, kinds))
    available = draw(st.lists(st.integers(0, WIDTH), min_size=n, max_size=n))
    return np.array(evidence), np.array(category, np.uint8), np.array(available)


@st.composite
def calibrations(draw: st.DrawFn) -> Calibration:
    def table() -> tuple[tuple[float, ...], tuple[float, ...]]:
        edges = sorted(draw(st.sets(EVIDENCE, min_size=1, max_size=4)))
        chance = sorted(draw(st.lists(PROBABILITY, min_size=len(edges), max_size=len(edges))))
        return tuple(edges), tuple(chance)

    own = draw(st.sets(st.sampled_from(GROUP_NAMES)))
    return Calibration({name: table() for name in ["*", *sorted(own)]})


@st.composite
def goodputs(draw: st.DrawFn) -> Goodput:
    """Any curve: falling and flat ones too."""
    k = draw(st.integers(0, WIDTH + 1))
    batches = draw(st.sets(st.integers(1, 9), min_size=1, max_size=3))
    curve = st.lists(st.integers(1, 30).map(float), min_size=k + 1, max_size=k + 1).map(tuple)
    return Goodput(
        k,
        draw(calibrations()),
        {batch: draw(curve) for batch in batches},
        {batch: draw(st.sampled_from([0.01, 0.1, 0.3, 1.0])) for batch in batches},
        draw(st.sampled_from([0.0, 0.5, 3.0])),
    )


LENGTHS: st.SearchStrategy[Length] = st.one_of(
    st.builds(Fixed, st.integers(0, WIDTH + 1)), st.builds(Cut, st.integers(0, WIDTH + 1), EVIDENCE), goodputs()
)


@given(length=LENGTHS, many=proposals(), batch=st.integers(1, 12))
def test_many_proposals_are_chosen_as_one_by_one(length: Length, many: Proposals, batch: int) -> None:
    evidence, category, available = many
    chosen = length.choose(evidence, category, available, batch)
    alone = [
        int(length.choose(e[:a], c[:a], int(a), batch)) for e, c, a in zip(evidence, category, available, strict=True)
    ]
    assert chosen.shape == available.shape
    assert chosen.tolist() == alone
    assert (chosen >= 0).all()
    assert (chosen <= np.minimum(available, length.most)).all()


@given(length=LENGTHS, many=proposals())
def test_leading_axes_are_free(length: Length, many: Proposals) -> None:
    evidence, category, available = many
    flat = length.choose(evidence, category, available)
    square = length.choose(evidence.reshape(2, 2, WIDTH), category.reshape(2, 2, WIDTH), available.reshape(2, 2))
    assert square.reshape(-1).tolist() == flat.tolist()


def test_no_proposals_are_no_lengths() -> None:
    nothing = np.zeros((0, WIDTH)), np.zeros((0, WIDTH), np.uint8), np.zeros(0, int)
    for length in (Fixed(3), Cut(3, 0.5), GOODPUT):
        assert length.choose(*nothing).shape == (0,)


@given(many=proposals(), k=st.integers(0, WIDTH + 1))
def test_fixed_takes_k_or_all_there_are(many: Proposals, k: int) -> None:
    assert Fixed(k).choose(*many).tolist() == [min(k, a) for a in many[2].tolist()]


@given(many=proposals(), k=st.integers(0, WIDTH + 1), least=EVIDENCE)
def test_cut_ends_before_the_first_weak_token(many: Proposals, k: int, least: float) -> None:
    expected = []
    for evidence, available in zip(many[0], many[2], strict=True):
        kept = 0
        while kept < min(k, available) and evidence[kept] >= least:
            kept += 1
        expected.append(kept)
    assert Cut(k, least).choose(*many).tolist() == expected


# Calibration


@given(calibration=calibrations(), many=proposals())
def test_chance_is_that_of_the_step_below_the_evidence(calibration: Calibration, many: Proposals) -> None:
    evidence, category, _ = many
    expected = []
    for value, kind in zip(evidence.flat, category.flat, strict=True):
        edges, chance = calibration.groups.get(GROUPS[Category(int(kind))], calibration.groups["*"])
        below = [c for edge, c in zip(edges, chance, strict=True) if edge <= value]
        expected.append(below[-1] if below else chance[0])
    found = calibration.chance(evidence, category)
    assert found.shape == evidence.shape
    assert found.ravel().tolist() == expected
    assert found.max() <= calibration.best


def test_groups_differ_and_share_the_pooled_table() -> None:
    calibration = Calibration({"*": ((1.0, 4.0), (0.2, 0.6)), "structural": ((2.0,), (0.9,))})
    category = np.array([Category.WORD, Category.SPACE, Category.STRUCTURAL], np.uint8)
    assert calibration.chance(np.full(3, 4.0), category).tolist() == [0.6, 0.6, 0.9]
    assert calibration.chance(np.full(3, 0.0), category).tolist() == [0.2, 0.2, 0.9]
    assert calibration.best == 0.9


# Goodput

GOODPUT = Goodput(3, Calibration({"*": ((0.0, 5.0), (0.1, 0.9))}), {1: (1.0, 1.1, 1.2, 1.3)}, {1: 1.0})
STRONG, WEAK = np.full(3, 9.0), np.full(3, 0.0)
WORDS = np.zeros(3, np.uint8)


def worth(length: Goodput, k: int, evidence: Any, category: Any, batch: int) -> float:
    """Expected committed tokens of a step of k drafts, less what its time would have earned."""
    near = min(length.verify_s, key=lambda b: (abs(b - batch), b))
    reached, committed = 1.0, 1.0
    for value, kind in zip(evidence[:k], category[:k], strict=True):
        reached *= float(length.calibration.chance(np.array([value]), np.array([kind]))[0])
        committed += reached
    return committed - (length.verify_s[near][k] + k * length.draft_s) * length.rate_tok_s[near]


@given(length=goodputs(), many=proposals(), batch=st.integers(1, 12))
def test_goodput_is_the_best_of_all_lengths(length: Goodput, many: Proposals, batch: int) -> None:
    chosen = length.choose(*many, batch)
    for evidence, category, available, k in zip(*many, chosen, strict=True):
        values = [worth(length, j, evidence, category, batch) for j in range(min(length.k, available) + 1)]
        assert values[k] >= max(values) - 1e-9
        assert max(values[:k], default=-np.inf) < values[k] + 1e-9


def test_goodput_drafts_when_it_pays_and_not_when_nothing_does() -> None:
    assert GOODPUT.choose(STRONG, WORDS, 3) == 3
    assert GOODPUT.choose(STRONG, WORDS, 2) == 2
    assert GOODPUT.choose(WEAK, WORDS, 3) == 0
    slow = Goodput(3, GOODPUT.calibration, {1: (1.0, 2.0, 3.0, 4.0)}, {1: 1.0})
    assert slow.choose(STRONG, WORDS, 3) == 0


def test_goodput_that_only_breaks_even_does_not_draft() -> None:
    even = Goodput(1, Calibration({"*": ((0.0,), (0.5,))}), {1: (1.0, 1.5)}, {1: 1.0})
    assert even.choose(STRONG[:1], WORDS[:1], 1) == 0


def test_goodput_looks_past_a_step_in_the_curve() -> None:
    # The first drafted token costs much and the next two nothing, as when a kernel's tile is filled.
    step = Goodput(3, GOODPUT.calibration, {1: (1.0, 2.0, 2.0, 2.0)}, {1: 1.0})
    assert step.choose(STRONG, WORDS, 3) == 3
    assert step.choose(STRONG, WORDS, 1) == 0


def test_goodput_does_not_choose_tokens_that_are_not_there() -> None:
    # Three drafts are cheaper than one: an artefact of measurement, and no reason to want three where one exists.
    falling = Goodput(3, GOODPUT.calibration, {1: (1.0, 1.5, 1.4, 1.2)}, {1: 1.0})
    assert falling.choose(STRONG, WORDS, 1) == 1
    assert falling.choose(STRONG, WORDS, 0) == 0


def test_drafting_time_counts() -> None:
    slow_draft = Goodput(3, GOODPUT.calibration, GOODPUT.verify_s, {1: 1.0}, draft_s=0.85)
    assert slow_draft.price_tok(1).tolist() == pytest.approx([1.0, 1.95, 2.9, 3.85])
    assert slow_draft.choose(STRONG, WORDS, 3) == 0


@pytest.mark.parametrize(("batch", "serves"), [(1, 2), (2, 2), (4, 2), (5, 2), (6, 8), (8, 8), (99, 8)])
def test_the_nearest_measured_batch_serves_and_the_smaller_in_a_tie(batch: int, serves: int) -> None:
    length = Goodput(1, GOODPUT.calibration, {8: (8.0, 8.1), 2: (2.0, 2.1)}, {8: 1.0, 2: 1.0})
    assert length.price_tok(batch).tolist() == list(length.verify_s[serves])


@given(length=goodputs(), many=proposals(1), batch=st.integers(1, 12))
def test_drafting_on_never_stops_short_of_what_would_be_kept(length: Goodput, many: Proposals, batch: int) -> None:
    evidence, category = many[0][0], many[1][0]
    k = int(length.choose(evidence, category, WIDTH, batch))
    for n in range(k):
        gain = worth(length, k, evidence, category, batch) - worth(length, n, evidence, category, batch)
        assert length.continues(evidence[:n], category[:n], batch) or gain < 1e-9


def test_drafting_on_ends_when_it_cannot_pay() -> None:
    assert GOODPUT.continues(STRONG[:0], WORDS[:0])
    assert GOODPUT.continues(STRONG[:2], WORDS[:2])
    assert not GOODPUT.continues(STRONG, WORDS), "the draft is full"
    assert not GOODPUT.continues(WEAK[:2], WORDS[:2]), "a chance of .01 x .9 for .1 token"


def test_drafting_on_takes_the_best_chance_of_any_group() -> None:
    calibration = Calibration({"*": ((0.0,), (0.1,)), "structural": ((0.0,), (0.9,))})
    length = Goodput(1, calibration, {1: (1.0, 1.5)}, {1: 1.0})
    assert length.continues(STRONG[:0], WORDS[:0])


def test_drafting_on_looks_at_each_length_not_only_the_longest() -> None:
    length = Goodput(2, GOODPUT.calibration, {1: (1.0, 1.1, 9.0)}, {1: 1.0})
    assert length.continues(STRONG[:0], WORDS[:0])
    assert not length.continues(STRONG[:1], WORDS[:1])
