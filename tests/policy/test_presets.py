import numpy as np
import pytest

from draftgate.errors import ConfigError
from draftgate.policy.category import Category
from draftgate.policy.length import Fixed
from draftgate.policy.policy import Policy
from draftgate.policy.presets import PRESETS, preset, source_presets


def taus(policy: Policy, categories: list[Category], offsets: list[int] | None = None) -> list[float]:
    offset = np.array(offsets if offsets is not None else [0] * len(categories))
    return [float(tau) for tau in policy.taus(np.array(categories, np.uint8), offset, None)]


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_loads_and_says_what_it_is(name: str) -> None:
    policy, about = PRESETS[name]
    assert policy.name == name
    assert preset(name) is policy
    assert about


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("code-low", 0.60, 0.60),
        ("code", 0.60, 0.75),
        ("code-high", 0.75, 0.75),
        ("chat", 0.50, 0.60),
        ("structured", 0.75, 0.90),
    ],
)
def test_thresholds_are_those_of_the_source(name: str, low: float, high: float) -> None:
    for tau in taus(preset(name), list(Category)):
        assert low - 1e-6 <= tau <= high + 1e-6
    assert preset(name).rule == "threshold"
    assert preset(name).length == Fixed(5)


def test_syntax_aware_thresholds() -> None:
    categories = [Category.SPACE, Category.COMMENT, Category.WORD, Category.KEYWORD, Category.STRUCTURAL]
    assert taus(preset("syntax-aware"), categories) == pytest.approx([0.55, 0.55, 0.65, 0.65, 0.80])


def test_position_thresholds() -> None:
    offsets = [0, 100, 200, 500, 501]
    expected = [0.60, 0.60, 0.6375, 0.75, 0.75]
    assert taus(preset("position"), [Category.WORD] * 5, offsets) == pytest.approx(expected)


def test_no_speculation_drafts_nothing() -> None:
    assert [name for name, (policy, _) in PRESETS.items() if not policy.drafts] == ["none"]


def test_only_the_loose_preset_can_keep_more_than_exact_match_does_under_greedy_decoding() -> None:
    lossy = [policy for policy, _ in PRESETS.values() if not policy.lossless]
    assert [p.name for p in lossy if min(taus(p, list(Category))) < 0.5] == ["loose"]


def test_the_source_recommends_by_workload() -> None:
    named = {workload: [p.name for p in source_presets(workload)] for workload in ("chat", "tool-calls", "code-edit")}
    assert named["chat"] == ["chat"]
    assert named["tool-calls"] == ["structured", "syntax-aware"]
    assert named["code-edit"] == ["code", "syntax-aware"]


def test_unknown_preset_gets_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="unknown preset 'code-hihg'; did you mean 'code-high'"):
        preset("code-hihg")
