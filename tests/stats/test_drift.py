import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftgate.errors import ConfigError, TraceError
from draftgate.stats import Cusum, PageHinkley

levels = st.floats(-100, 100)
sixteenths = st.integers(1, 400).map(lambda n: n / 16)  # sums of these are exact
streams = st.lists(st.integers(0, 3), max_size=200)


def alarms(detector: Cusum | PageHinkley, stream: list[float] | list[int]) -> list[int]:
    """How many observations had been seen at each alarm."""
    return [n for n, x in enumerate(stream, 1) if detector.update(x)]


@given(levels, st.floats(0, 10))
def test_cusum_is_silent_at_or_below_its_reference(reference: float, below: float) -> None:
    assert not alarms(Cusum(reference, threshold=1.0), [reference - below] * 300)


@given(sixteenths, sixteenths)
def test_cusum_finds_a_steady_rise_after_threshold_over_rise(rise: float, threshold: float) -> None:
    expected = math.floor(threshold / rise) + 1
    cusum = Cusum(reference=0.0, threshold=threshold)
    assert not alarms(cusum, [-1.0] * 50)
    assert alarms(cusum, [rise] * expected) == [expected]


def test_an_alarm_starts_the_detector_afresh() -> None:
    assert alarms(Cusum(0.0, 2.5), [1.0] * 10) == [3, 6, 9]
    page_hinkley = PageHinkley(threshold=5.0)
    assert alarms(page_hinkley, [0.0] * 100 + [1.0] * 6) == [106]
    assert page_hinkley == PageHinkley(threshold=5.0)


@pytest.mark.parametrize(("accepted", "alarming"), [(0.05, 0.10), (0.02, 0.04), (0.3, 0.5)])
def test_cusum_of_a_share_keeps_its_promises(accepted: float, alarming: float) -> None:
    spaced, rng = 200, np.random.default_rng(5)
    detector = Cusum.of_share(accepted, alarming, false_alarm_every=spaced)
    quiet = (rng.random(200_000) < accepted).astype(int).tolist()
    assert 0 < len(alarms(detector, quiet)) <= 200_000 / spaced

    one, zero = math.log(alarming / accepted), math.log((1 - alarming) / (1 - accepted))
    divergence = alarming * one + (1 - alarming) * zero
    loud = (rng.random(200_000) < alarming).astype(int).tolist()
    # Wald: a walk that drifts by the divergence passes log(spaced) by one step at most.
    assert 200_000 / len(alarms(detector, loud)) <= (math.log(spaced) + one) / divergence


@given(levels)
def test_page_hinkley_is_silent_on_a_constant(level: float) -> None:
    assert not alarms(PageHinkley(threshold=0.1), [level] * 300)


@given(before=st.integers(30, 300), rise=st.floats(0.1, 5))
def test_page_hinkley_finds_a_step_when_the_sum_of_deviations_passes_the_threshold(before: int, rise: float) -> None:
    detector = PageHinkley(delta=0.05, threshold=3.0)
    t = np.arange(1, 400)
    expected = (rise * before / (before + t) - detector.delta).cumsum()  # the mean follows: what is left of the rise
    clear = np.abs(expected - detector.threshold).min() > 1e-6
    found = alarms(detector, [0.0] * before + [rise] * len(t))
    if clear and expected.max() > detector.threshold:
        assert found[0] == before + t[expected > detector.threshold][0]
    elif clear:
        assert not found


@given(streams)
def test_page_hinkley_is_the_textbook_form(stream: list[int]) -> None:
    x = np.array(stream, dtype=float)
    deviation = (x - x.cumsum() / np.arange(1, len(x) + 1) - 0.1).cumsum()
    above_least = deviation - np.minimum.accumulate(np.minimum(deviation, 0.0)) if len(x) else deviation
    detector = PageHinkley(delta=0.1, threshold=1e9)
    for value, expected in zip(stream, above_least, strict=True):
        detector.update(value)
        assert detector.sum == pytest.approx(expected, abs=1e-9)


def test_page_hinkley_waits_for_least_n() -> None:
    assert alarms(PageHinkley(threshold=0.5, least_n=50), [0.0] * 9 + [1.0] * 60)[0] == 50


@pytest.mark.parametrize("detector", [Cusum(0.5, 4.0), PageHinkley(0.1, 4.0)])
@given(before=streams, after=streams)
def test_a_restart_changes_nothing(detector: Cusum | PageHinkley, before: list[int], after: list[int]) -> None:
    running = type(detector).from_mapping(detector.to_mapping())
    alarms(running, before)
    restored = type(detector).from_mapping(json.loads(json.dumps(running.to_mapping())))
    assert alarms(restored, after) == alarms(running, after)


@pytest.mark.parametrize("detector", [Cusum(0.5, 4.0), PageHinkley(0.1, 4.0)])
def test_a_damaged_state_is_refused(detector: Cusum | PageHinkley) -> None:
    kind, state = type(detector), detector.to_mapping()
    with pytest.raises(ConfigError, match=r"has no field 'treshold'; did you mean 'threshold'"):
        kind.from_mapping({**state, "treshold": 1.0})
    with pytest.raises(ConfigError, match="sum missing from the saved state"):
        kind.from_mapping({name: value for name, value in state.items() if name != "sum"})
    for bad in (math.nan, "1", None):
        with pytest.raises(ConfigError, match="sum must be a finite number"):
            kind.from_mapping({**state, "sum": bad})
    with pytest.raises(ConfigError, match="sum not negative"):
        kind.from_mapping({**state, "sum": -1.0})


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match="threshold must be positive"):
        Cusum(0.5, 0.0)
    with pytest.raises(ConfigError, match="alarming must be above accepted"):
        Cusum.of_share(0.1, 0.05)
    with pytest.raises(ConfigError, match="accepted must be between 0 and 1"):
        Cusum.of_share(0.0, 0.05)
    with pytest.raises(ConfigError, match="false_alarm_every must be above 1"):
        Cusum.of_share(0.05, 0.1, 1.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_observations_must_be_finite(bad: float) -> None:
    for detector in (Cusum(0.5, 4.0), PageHinkley()):
        with pytest.raises(TraceError, match="leave failed measurements out"):
            detector.update(bad)
