from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftgate.control.setting import OFF, Setting
from draftgate.errors import ConfigError
from draftgate.simulate.plant import Conditions, Plant

EDIT, CHAT = Conditions((("code-edit", 1.0),)), Conditions((("chat", 1.0),))
K7 = Setting(True, None, 7, None)


@pytest.mark.parametrize("setting", [OFF, Setting(True, None, 3, None), K7], ids=str)
@pytest.mark.parametrize("under", [EDIT, CHAT, Conditions(wrong=0.3, batch=3.0, context=0.1, clock=2.0)])
def test_runs_average_to_the_rate(plant: Plant, setting: Setting, under: Conditions) -> None:
    rng = np.random.default_rng(0)
    done = [plant.run(300, setting, under, rng) for _ in range(100)]
    rates = np.array([d.tokens / d.seconds for d in done])
    expected = plant.rate(setting, under)
    assert sum(d.tokens for d in done) / sum(d.seconds for d in done) == pytest.approx(expected, rel=0.01)
    assert 0.01 < rates.std() / expected < 0.06
    assert sum(d.seconds for d in done) / 30_000 == pytest.approx(plant.request_s(setting, under), rel=0.02)


@given(
    k=st.integers(0, 7),
    n=st.integers(1, 400),
    wrong=st.floats(0, 1),
    batch=st.floats(1, 20),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=60)
def test_counts_never_contradict_each_other(
    plant: Plant, k: int, n: int, wrong: float, batch: float, seed: int
) -> None:
    setting = Setting(k > 0, None, k, None)
    done = plant.run(n, setting, Conditions(wrong=wrong, batch=batch), np.random.default_rng(seed))
    assert done.steps >= max(done.offered)
    assert all(a >= b for a, b in zip(done.offered, done.offered[1:], strict=False))
    assert all(kept <= offered for kept, offered in zip(done.kept, done.offered, strict=True))
    assert all(a >= b for a, b in zip(done.kept, done.kept[1:], strict=False))
    assert sum(n > 0 for n in done.offered) <= k
    assert done.seconds > 0


def test_a_wrong_draft_hardly_keeps_a_token_and_writes_the_same_text(plant: Plant) -> None:
    rng = np.random.default_rng(0)
    right, wrong = (plant.run(3000, K7, replace(EDIT, wrong=w), rng) for w in (0.0, 1.0))
    assert right.kept[0] / right.offered[0] > 0.5
    assert wrong.kept[0] / wrong.offered[0] < 0.02
    assert wrong.tokens == pytest.approx(right.tokens, rel=0.02)
    assert wrong.seconds > 3 * right.seconds


@pytest.mark.parametrize(("worse", "k7_loses_more"), [({"context": 0.3}, True), ({"clock": 1.4}, False)])
def test_machines_and_prompts_slow_it_down(plant: Plant, worse: dict[str, float], k7_loses_more: bool) -> None:
    slow = replace(EDIT, **worse)
    off, on = (plant.rate(s, slow) / plant.rate(s, EDIT) for s in (OFF, K7))
    assert off < 1
    assert (on < 0.95 * off) == k7_loses_more


def test_what_pays_depends_on_the_batch(plant: Plant) -> None:
    assert plant.best(EDIT) == K7
    assert plant.best(replace(EDIT, batch=8.0)).k < 7
    assert plant.best(CHAT) == OFF


def test_a_workload_that_was_not_recorded_is_refused(plant: Plant) -> None:
    with pytest.raises(ConfigError, match="did you mean 'code-edit'"):
        plant.rate(OFF, Conditions((("code-edits", 1.0),)))


def test_traces_of_other_lengths_are_not_mixed(plant: Plant) -> None:
    with pytest.raises(ConfigError, match="one longest draft"):
        Plant({}, plant.cost, plant.policy)
