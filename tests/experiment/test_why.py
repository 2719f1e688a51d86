import pytest

from draftgate.cost.steps import Curve, StepCost
from draftgate.experiment.why import across_workloads, mechanism, preset_sentence
from draftgate.policy.length import Cut, Fixed
from draftgate.policy.policy import NONE, Policy

COST = StepCost({1: Curve(1, (0.01, 0.02, 0.025, 0.03), (0.0,) * 4, 9)})


def figures(arm, estimate, origin="lossless", lossless=True, **more):
    speedup = {"estimate": estimate, "low": None, "high": None, "n": 24, "how": "measured"}
    return {"arm": arm, "origin": origin, "lossless": lossless, "speedup": speedup} | more


def test_a_fixed_length_is_weighed_against_its_step():
    said = mechanism(Policy("k3", length=Fixed(3)), {"acceptance_length": 2.5, "coverage": 1.0}, COST)
    assert said == "it commits 2.50 tokens a step, and verifying 4 tokens costs 3.0x one"


def test_a_varied_length_says_how_often_it_drafts():
    said = mechanism(Policy("cut", length=Cut(3, 2.0)), {"acceptance_length": 1.75, "coverage": 0.4}, COST)
    assert said == "it commits 1.75 tokens a step, drafting in 40% of them"


@pytest.mark.parametrize("policy", [NONE, Policy("k3", length=Fixed(3))])
def test_nothing_is_said_of_what_did_not_draft(policy):
    length = None if policy.drafts else 1.0
    assert mechanism(policy, {"acceptance_length": length, "coverage": length}, COST) is None


def test_presets_are_compared_with_the_best_lossless_arm():
    arms = [
        figures("none", 1.0, "baseline"),
        figures("exact-k3", 1.2),
        figures("goodput", 1.5),
        figures("code", 0.7, "source preset", lossless=False),
        figures("loose", 3.0, "search", lossless=False),
    ]
    said = preset_sentence(arms, {"code": {"share": 0.13, "n": 400}}, greedy=True)
    assert "code is 0.70x and rejects 13% of the 400 recorded tokens that exact match keeps" in said
    assert "the best lossless arm, goodput, is 1.50x" in said
    assert "tau >= .5" in said
    assert "tau >= .5" not in preset_sentence(arms, {"code": {"share": None, "n": 0}}, greedy=False)
    assert preset_sentence(arms[:3], {}, greedy=True) is None


def test_one_length_for_all_against_the_recommended_arms():
    results = [
        {
            "name": "edit",
            "recommended": "goodput",
            "arms": [figures("none", 1.0), figures("goodput", 2.0)],
            "fixed": [{"k": 1, "speedup": 1.2}, {"k": 3, "speedup": 2.0}],
        },
        {
            "name": "chat",
            "recommended": "none",
            "arms": [figures("none", 1.0)],
            "fixed": [{"k": 1, "speedup": 0.7}, {"k": 3, "speedup": 0.5}],
        },
    ]
    found = across_workloads(results, COST)
    assert found["fixed"] == {"k": 1, "speedup": pytest.approx(2 / (1 / 1.2 + 1 / 0.7)), "how": "replayed"}
    assert found["recommended"] == {"speedup": pytest.approx(2 / (1 / 2 + 1)), "how": "measured"}
    assert "k = 1 pays on edit (1.20x); loses on chat (0.70x)" in found["why"]
    assert "verifying 2 tokens costs 2.0x one" in found["why"]


def test_a_length_that_one_workload_says_nothing_of_is_no_length_for_all():
    row = {"recommended": "none", "arms": [figures("none", 1.0)]}
    one = row | {"name": "edit", "fixed": [{"k": 1, "speedup": 1.2}, {"k": 2, "speedup": 1.9}]}
    assert across_workloads([one, row | {"name": "chat", "fixed": [{"k": 1, "speedup": 0.9}]}], COST)["fixed"]["k"] == 1
    found = across_workloads([one, row | {"name": "chat", "fixed": []}], COST)
    assert found["fixed"] == {"k": None, "speedup": None, "how": "replayed"}
    assert "none was recorded on every workload" in found["why"]
