from collections.abc import Callable
from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftgate.errors import ConfigError
from draftgate.policy.category import GROUPS, Category
from draftgate.policy.length import Calibration, Cut, Fixed, Goodput, Length
from draftgate.policy.policy import NONE, Policy
from draftgate.policy.syntax import canonical, language_names

NAN = float("nan")


def threshold(**settings: Any) -> Policy:
    given: dict[str, Any] = {"rule": "threshold", "tau": 0.5} | settings
    return Policy("x", **given)


REFUSED: list[tuple[Callable[[], Policy], str]] = [
    (lambda: Policy("x", "treshold", 0.5), "unknown rule 'treshold'; did you mean 'threshold'"),
    (lambda: threshold(tau=NAN), r"tau must be in \[0, 1\] but got nan"),
    (lambda: threshold(tau=1.01), r"tau must be in \[0, 1\] but got 1.01"),
    (lambda: threshold(tau=-0.01), "tau must be"),
    (lambda: threshold(tau=None), "needs either tau or a position schedule but got neither"),
    (lambda: threshold(position=((0, 0.5),)), "needs either tau or a position schedule but got both"),
    (lambda: threshold(tau=None, position=((9, 0.5), (3, 0.6))), r"offsets must be >= 0 and rise .* got \[9, 3\]"),
    (lambda: threshold(tau=None, position=((3, 0.5), (3, 0.6))), "rise from point to point"),
    (lambda: threshold(tau=None, position=((-1, 0.5),)), "must be >= 0"),
    (lambda: threshold(tau=None, position=((0, 0.5), (7, 1.5))), r"tau at offset 7 must be in \[0, 1\] but got 1.5"),
    (lambda: threshold(tau=None, position=((0, NAN),)), "tau at offset 0 must be"),
    (lambda: threshold(bounds=(0.8, 0.4)), r"0 <= least <= greatest <= 1 but got \[0.8, 0.4\]"),
    (lambda: threshold(bounds=(-0.1, 0.4)), "bounds must satisfy"),
    (lambda: threshold(bounds=(0.1, 1.1)), "bounds must satisfy"),
    (lambda: threshold(bounds=(NAN, 1.0)), "bounds must satisfy"),
    (lambda: threshold(bounds=(0.0, NAN)), "bounds must satisfy"),
    (lambda: threshold(category={"structral": 0.1}), "unknown category 'structral'; did you mean 'structural'"),
    (lambda: threshold(category={"safe": -1.5}), r"category.safe must be in \[-1, 1\] but got -1.5"),
    (lambda: threshold(category={"safe": NAN}), "category.safe must be"),
    (lambda: threshold(language={"pyton": 0.1}), "unknown language 'pyton'; did you mean 'python'"),
    (lambda: threshold(language={"python": 1.5}), r"language.python must be in \[-1, 1\]"),
    (lambda: threshold(language={"js": 0.1, "javascript": 0.2}), "language.javascript: 'javascript' is given twice"),
    (lambda: Policy("x", "sglang", 0.5, {"ac": 0.5}), "no parameter 'ac'; did you mean 'acc'"),
    (lambda: Policy("x", "sglang", 0.5, {"acc": 0.0}), r"params.acc must be in \[0.001, 1\] but got 0"),
    (lambda: Policy("x", "typical", 0.5, {"delta": NAN}), "params.delta must be"),
    (lambda: Policy("x", "typical", 0.5, {"tau": 0.5}), "no parameter 'tau'; valid: delta"),
    (lambda: Policy("x", params={"delta": 0.5}), "rule 'exact' has no parameter 'delta'; it has none"),
    (lambda: Policy("x", tau=0.5), "rule 'exact' has no threshold, so tau would do nothing"),
    (lambda: Policy("x", tau=0.0), "so tau would do nothing"),
    (lambda: Policy("x", "cascade", category={"safe": 0.1}), "so category would do nothing"),
    (lambda: Policy("x", "lossless", language={"python": 0.1}), "so language would do nothing"),
    (lambda: Policy("x", "topk-margin", position=((0, 0.5),)), "so position would do nothing"),
    (lambda: Policy("x", bounds=(0.2, 0.8)), "so bounds would do nothing"),
    (lambda: Policy("x", length=Fixed(-1)), "draft length k must be >= 0 but got -1"),
    (lambda: Policy("x", length=Cut(-2, 0.5)), "draft length k must be >= 0 but got -2"),
    (lambda: Policy("x", draft_temperature=-0.1), r"draft temperature must be in \[0, 10\]"),
    (lambda: Policy("x", draft_temperature=NAN), "draft temperature must be"),
    (lambda: Policy("x", draft_top_p=0.0), "draft top_p must be"),
    (lambda: Policy("x", draft_top_p=1.1), "draft top_p must be"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_bad_settings_are_refused(make: Callable[[], Policy], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^policy 'x': .*{message}"):
        make()


def test_parameters_are_completed_from_defaults() -> None:
    assert Policy("x", "topk-margin").params == {"top_k": 10, "delta": 0.1}
    assert Policy("x", "topk-margin", params={"delta": 0.5}).params == {"top_k": 10, "delta": 0.5}
    assert threshold().params == {}


def test_a_policy_is_immutable_also_through_what_it_was_made_of() -> None:
    offsets = {"safe": 0.1}
    policy = threshold(category=offsets)
    offsets["safe"] = 0.9
    assert policy.category == {"safe": 0.1}
    with pytest.raises(FrozenInstanceError):
        policy.tau = 0.1  # type: ignore[misc]


def test_spellings_of_a_language_make_equal_policies() -> None:
    assert threshold(language={"js": 0.1}) == threshold(language={"JavaScript": 0.1})


def test_what_a_policy_says_of_itself() -> None:
    assert not NONE.drafts
    assert threshold().drafts
    assert [Policy("x").lossless, threshold().lossless] == [True, False]
    groups = {"*": ((0.0,), (0.5,)), "safe": ((0.0,), (0.9,))}
    plain, grouped = (Goodput(1, Calibration(g), {1: (1.0, 1.0)}, {1: 1.0}) for g in ({"*": groups["*"]}, groups))
    lengths: list[Length] = [Fixed(3), Cut(3, 0.5), plain, grouped]
    assert [Policy("x", length=length).uses_category for length in lengths] == [False, False, False, True]
    assert threshold(category={"word": 0.1}).uses_category


# Thresholds

OFFSETS = st.floats(-1, 1)
SPELLINGS = ("py", "python3", "JavaScript", "jsx", "c++", "go", None)


def tau_of(policy: Policy, category: Category, offset: int, language: str | None) -> float:
    """The threshold of one token, by the definition."""
    if policy.tau is not None:
        tau = policy.tau
    else:
        points = policy.position
        if offset <= points[0][0]:
            tau = points[0][1]
        elif offset >= points[-1][0]:
            tau = points[-1][1]
        else:
            after = next(i for i, (at, _) in enumerate(points) if at > offset)
            (x0, y0), (x1, y1) = points[after - 1 : after + 1]
            tau = y0 + (y1 - y0) * (offset - x0) / (x1 - x0)
    name = category.name.lower()
    tau += policy.category[name] if name in policy.category else policy.category.get(GROUPS[category], 0.0)
    if language is not None:
        tau += policy.language.get(canonical(language), 0.0)
    return min(max(tau, policy.bounds[0]), policy.bounds[1])


@st.composite
def thresholds(draw: st.DrawFn) -> Policy:
    names = sorted({c.name.lower() for c in Category} | set(GROUPS.values()))
    at = sorted(draw(st.sets(st.integers(0, 600), max_size=4)))
    low, high = sorted(draw(st.tuples(st.floats(0, 1), st.floats(0, 1))))
    return threshold(
        tau=None if at else draw(st.floats(0, 1)),
        position=tuple((x, draw(st.floats(0, 1))) for x in at),
        category=draw(st.dictionaries(st.sampled_from(names), OFFSETS, max_size=4)),
        language=draw(st.dictionaries(st.sampled_from(language_names()), OFFSETS, max_size=3)),
        bounds=(low, high),
    )


@given(policy=thresholds(), language=st.sampled_from(SPELLINGS), seed=st.integers(0, 999))
def test_taus_are_those_of_a_loop_over_tokens(policy: Policy, language: str | None, seed: int) -> None:
    rng = np.random.default_rng(seed)
    category = rng.integers(0, len(Category), (3, 5)).astype(np.uint8)
    offset = rng.integers(0, 700, (3, 5))
    taus = policy.taus(category, offset, language)
    expected = [
        tau_of(policy, Category(int(c)), int(o), language) for c, o in zip(category.flat, offset.flat, strict=True)
    ]
    assert taus.dtype == np.float32
    assert taus.shape == category.shape
    assert taus.ravel() == pytest.approx(expected, abs=1e-6)


def test_a_category_wins_over_its_group() -> None:
    policy = threshold(category={"normal": 0.2, "keyword": 0.0, "structural": 0.1})
    taus = policy.taus(np.array(list(Category), np.uint8), np.zeros(len(Category), int), None)
    by_name = dict(zip([c.name for c in Category], taus.tolist(), strict=True))
    assert by_name["KEYWORD"] == pytest.approx(0.5)
    assert by_name["WORD"] == pytest.approx(0.7)
    assert by_name["STRUCTURAL"] == pytest.approx(0.6)
    assert by_name["SPACE"] == pytest.approx(0.5)


def test_position_is_linear_between_its_points_and_flat_outside() -> None:
    policy = threshold(tau=None, position=((100, 0.60), (500, 0.75)))
    offset = np.array([0, 100, 300, 500, 9000])
    assert policy.taus(np.zeros(5, np.uint8), offset, "python") == pytest.approx([0.60, 0.60, 0.675, 0.75, 0.75])


def test_bounds_clip_after_all_offsets() -> None:
    policy = threshold(tau=0.8, category={"structural": 0.5, "safe": -0.7}, language={"py": 0.1}, bounds=(0.3, 0.9))
    category = np.array([Category.STRUCTURAL, Category.SPACE, Category.WORD], np.uint8)
    assert policy.taus(category, np.arange(3), "python") == pytest.approx([0.9, 0.3, 0.9])
    assert policy.taus(category, np.arange(3), None) == pytest.approx([0.9, 0.3, 0.8])


def test_a_language_without_an_offset_has_none_and_an_unknown_one_is_refused() -> None:
    policy = threshold(language={"python": 0.1})
    token = np.zeros(1, np.uint8), np.zeros(1, int)
    assert policy.taus(*token, "go") == pytest.approx([0.5])
    with pytest.raises(ConfigError, match="did you mean 'python'"):
        policy.taus(*token, "pyton")


def test_a_rule_without_threshold_has_taus_of_zero() -> None:
    assert Policy("x").taus(np.zeros(2, np.uint8), np.arange(2), None).tolist() == [0.0, 0.0]
