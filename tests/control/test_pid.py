"""The loop on a plant. Assumptions, under which it settles within 20 windows and does not oscillate on:

- acceptance moves linearly with the knob, by .3 to 3 per unit (gains 'variable': .2 to 2), in the direction that the
  knob's effect says, and is otherwise steady;
- a change shows after one window, through a first-order lag of at most .5;
- a window measures acceptance with a standard deviation of at most .01;
- the target is reachable within .15 of where the knob starts.

Settled: acceptance within .07 of the target from the 20th window on, and within .055 from the 60th.
"""

import json
from collections import deque
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftgate.control.pid import ARTICLE_BOUNDS, CUT, PROFILES, TAU, Gains, K, Pid, PidArticle
from draftgate.control.setting import Setting
from draftgate.control.window import Window
from draftgate.errors import ConfigError
from draftgate.policy.rules import Knob

OfRate = Callable[..., Window]

LOOSENING = Knob("tau", "target", 1, 0.0, 1.0)
START = Setting(True, 0.65, 5, None)


def run(
    of_rate: OfRate,
    controller: Pid | PidArticle,
    effect: int,
    gain: float,
    star: float,
    lag: float,
    noise: float,
    seed: int,
    n: int,
    knob: str = "tau",
) -> np.ndarray:
    """Acceptance in n windows of a plant that has the target .6 where the knob is at star."""
    rng = np.random.default_rng(seed)
    at = deque([getattr(controller.setting, knob) or 0.0] * 2, maxlen=2)
    steady = lambda value: min(max(0.6 + effect * gain * (value - star), 0.0), 1.0)  # noqa: E731
    rate, seen = steady(at[0]), []
    for _ in range(n):
        rate += (1 - lag) * (steady(at[0]) - rate)
        seen.append(rate)
        controller.update(of_rate(rate + noise * rng.normal()))
        at.append(getattr(controller.setting, knob) or 0.0)
    return np.array(seen)


@given(
    profile=st.sampled_from(sorted(PROFILES)),
    knob=st.sampled_from([TAU, LOOSENING]),
    gain=st.floats(0.3, 3.0),
    star=st.floats(0.55, 0.80),
    lag=st.floats(0.0, 0.5),
    seed=st.integers(0, 1000),
)
@settings(max_examples=300)
def test_it_settles_for_every_sign_and_gain(
    of_rate: OfRate, profile: str, knob: Knob, gain: float, star: float, lag: float, seed: int
) -> None:
    gain = gain if profile == "stable" else gain / 1.5
    error = np.abs(
        run(of_rate, Pid(START, knob, gains=PROFILES[profile]), knob.effect, gain, star, lag, 0.01, seed, 100) - 0.6
    )
    assert error[20:].max() <= 0.07
    assert error[60:].max() <= 0.055


@given(
    profile=st.sampled_from(sorted(PROFILES)),
    gain=st.floats(0.02, 0.2),
    star=st.floats(1.5, 7.5),
    start=st.integers(1, 8),
    lag=st.floats(0.0, 0.5),
    seed=st.integers(0, 1000),
)
@settings(max_examples=200)
def test_it_settles_within_a_token_of_the_length(
    of_rate: OfRate, profile: str, gain: float, star: float, start: int, lag: float, seed: int
) -> None:
    """Gains in tokens' effect on acceptance, over a range of ten, from any length; the target lies between two."""
    controller = Pid(Setting(True, None, start, None), K, gains=PROFILES[profile], bounds=(1, 8))
    error = np.abs(run(of_rate, controller, K.effect, gain, star, lag, 0.01, seed, 100, "k") - 0.6)
    assert error[20:].max() <= gain + 0.02
    assert error[60:].max() <= gain + 0.01


@given(
    profile=st.sampled_from(sorted(PROFILES)),
    gain=st.floats(0.12, 1.2),
    star=st.floats(0.3, 0.7),
    off=st.floats(-0.15, 0.15),
    lag=st.floats(0.0, 0.5),
    seed=st.integers(0, 1000),
)
@settings(max_examples=200)
def test_it_settles_for_a_cut_of_any_gain(
    of_rate: OfRate, profile: str, gain: float, star: float, off: float, lag: float, seed: int
) -> None:
    """A knob of the draft's side, whose range is 2.5 times the article's, so that gains are as much smaller."""
    gain = gain if profile == "stable" else gain / 1.5
    start = Setting(True, None, 7, min(max(star + off / gain, 0.0), 1.0))
    controller = Pid(start, CUT, gains=PROFILES[profile], bounds=(0.0, 1.0))
    error = np.abs(run(of_rate, controller, CUT.effect, gain, star, lag, 0.01, seed, 100, "cut") - 0.6)
    assert error[20:].max() <= 0.07
    assert error[60:].max() <= 0.055


@pytest.mark.parametrize("star", [0.60, 0.70])
def test_the_articles_law_runs_to_a_bound_on_a_target_side_knob(of_rate: OfRate, star: float) -> None:
    controller = PidArticle(START)
    rates = run(of_rate, controller, TAU.effect, 1.0, star, 0.3, 0.0, 0, 60)
    assert controller.setting.tau in ARTICLE_BOUNDS
    assert abs(rates[-1] - 0.6) >= 0.1
    assert abs(rates[-1] - 0.6) > abs(rates[0] - 0.6)


def test_the_articles_law_is_right_where_raising_the_knob_raises_acceptance(of_rate: OfRate) -> None:
    rates = run(of_rate, PidArticle(START), 1, 1.0, 0.70, 0.0, 0.0, 0, 200)
    assert abs(rates[-20:] - 0.6).max() < 0.05


@pytest.mark.parametrize(("knob", "rate", "up"), [(TAU, 0.4, False), (TAU, 0.8, True), (LOOSENING, 0.4, True)])
def test_the_first_move_has_the_sign_of_the_knob(of_rate: OfRate, knob: Knob, rate: float, up: bool) -> None:
    change = Pid(START, knob).update(of_rate(rate))
    assert change is not None
    assert (change.setting.tau > START.tau) == up
    assert f"acceptance {rate:.3f}, target 0.6" in change.reason


def test_it_does_not_wind_up_at_a_bound(of_rate: OfRate) -> None:
    controller = Pid(START)
    for _ in range(200):
        controller.update(of_rate(0.1))  # wants less and less; the bound is .50
    assert controller.setting.tau == ARTICLE_BOUNDS[0]
    assert abs(controller.to_mapping()["sum"]) < 2, "the sum stands still where the knob cannot move"
    for _ in range(4):
        controller.update(of_rate(0.9))
    assert controller.setting.tau > ARTICLE_BOUNDS[0] + 0.01


def test_noise_inside_the_deadband_moves_nothing(of_rate: OfRate) -> None:
    controller = Pid(START, deadband=0.02)
    assert all(controller.update(of_rate(0.6 + sign * 0.019)) is None for sign in (1, -1) * 20)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=50))
def test_it_stays_in_bounds_and_slew(of_rate: OfRate, rates: list[float]) -> None:
    controller = Pid(START, gains=Gains(5.0, 1.0, 1.0))
    for rate in rates:
        before = controller.setting.tau
        controller.update(of_rate(rate))
        assert ARTICLE_BOUNDS[0] <= controller.setting.tau <= ARTICLE_BOUNDS[1]
        assert abs(controller.setting.tau - before) <= 0.05 * 0.4 + 1e-9


def test_batched_moves_once_in_so_many_windows(of_rate: OfRate) -> None:
    controller = Pid(START, every=5)
    changes = [controller.update(of_rate(0.4)) is not None for _ in range(15)]
    assert changes == ([False] * 4 + [True]) * 3


def test_the_derivative_is_on_the_measurement(of_rate: OfRate) -> None:
    """The same measurements under a target that differs by d move the knob by kp d + ki d more, and no kick."""
    moves = []
    for target in (0.60, 0.64):
        controller = Pid(START, target=target, deadband=0.0)
        controller.update(of_rate(0.5))
        before = controller.setting.tau
        controller.update(of_rate(0.5))
        moves.append(controller.setting.tau - before)
    g = PROFILES["stable"]
    assert moves[0] - moves[1] == pytest.approx(0.04 * (g.kp + 2 * g.ki), abs=1e-4)


def test_a_rate_that_is_already_rising_is_pushed_less(of_rate: OfRate) -> None:
    moves = []
    for before in (0.50, 0.42):
        controller = Pid(START, deadband=0.0)
        controller.update(of_rate(before))
        at = controller.setting.tau
        controller.update(of_rate(0.50))
        moves.append(at - controller.setting.tau)
    g = PROFILES["stable"]
    rising, steady = moves[1], moves[0]
    # The filter lets half of the slope of .08 through; the sum has .08 more error in it.
    assert steady - rising == pytest.approx(g.kd * 0.04 - g.ki * 0.08, abs=1e-4)


def test_draft_length_moves_in_whole_tokens_and_down_when_too_little_is_accepted(of_rate: OfRate) -> None:
    controller = Pid(Setting(True, None, 7, None), K, bounds=(1, 8))
    for _ in range(20):
        controller.update(of_rate(0.3))
    assert controller.setting.k == 1
    assert type(controller.setting.k) is int


def test_a_cut_is_raised_when_too_little_is_accepted(of_rate: OfRate) -> None:
    change = Pid(Setting(True, None, 7, 0.3), CUT, bounds=(0.0, 1.0)).update(of_rate(0.3))
    assert change is not None
    assert change.setting.cut > 0.3


def test_a_window_without_drafts_changes_nothing(of_rate: OfRate) -> None:
    assert Pid(START).update(of_rate(0.0, drafted=0)) is None


@pytest.mark.parametrize("kind", [Pid, PidArticle])
def test_it_goes_on_after_a_restart_as_if_there_had_been_none(
    of_rate: OfRate, kind: type[Pid] | type[PidArticle]
) -> None:
    first, second = kind(START), kind(START)
    rates = [0.3, 0.4, 0.42, 0.7]
    for rate in rates:
        first.update(of_rate(rate))
    second.restore(json.loads(json.dumps(first.to_mapping())))
    assert second.setting == first.setting
    assert second.to_mapping() == first.to_mapping()


@pytest.mark.parametrize("kind", [Pid, PidArticle])
@pytest.mark.parametrize("damage", [{}, {"value": float("nan")}, {"value": "x"}, {"other": 1.0}])
def test_damaged_state_is_refused(kind: type[Pid] | type[PidArticle], damage: dict[str, object]) -> None:
    whole = kind(START).to_mapping()
    with pytest.raises(ConfigError):
        kind(START).restore(whole | damage if damage else {})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"bounds": (0.9, 0.5)}, "bounds"),
        ({"bounds": (0.5, 1.5)}, "bounds"),
        ({"target": 0.0}, "target"),
        ({"every": 0}, "every"),
        ({"slew": 0.0}, "slew"),
        ({"setting": Setting(True, None, 3, None)}, "moves 'tau'"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Pid(**{"setting": START} | options)


def test_the_profiles_are_the_articles() -> None:
    assert PROFILES["stable"] == Gains(0.1, 0.01, 0.05)
    variable = PROFILES["variable"]
    assert 0.2 <= variable.kp <= 0.3
    assert variable.ki < 0.02
    assert 0.03 <= variable.kd <= 0.08


def test_pooled_windows_weigh_by_tokens(of_rate: OfRate) -> None:
    controller = Pid(START, every=2, deadband=0.0)
    seen: list[Window] = [of_rate(0.9, drafted=100), of_rate(0.6, drafted=9900)]
    change = [controller.update(w) for w in seen][-1]
    assert change is not None
    assert "acceptance 0.603" in change.reason
