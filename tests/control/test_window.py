import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftgate.control.window import Window
from draftgate.errors import ConfigError, InputError, TraceError


@st.composite
def windows(draw: st.DrawFn, k: int = 4) -> Window:
    """Windows whose counts can be true."""
    steps = draw(st.integers(0, 1000))
    covered = draw(st.integers(0, steps))
    offered, reached, kept, most = [], [], [], covered
    for _ in range(draw(st.integers(0, k))):
        offered.append(draw(st.integers(0, most)))
        reached.append(draw(st.integers(0, offered[-1])))
        kept.append(draw(st.integers(0, reached[-1])))
        most = kept[-1]
    drafted, accepted = (sum(offered), sum(kept)) if covered else (0, 0)
    judged = draw(st.integers(0, 300))
    start_s = draw(st.floats(0, 1e9))
    return Window(
        workload="code",
        policy="mine",
        start_s=start_s,
        end_s=start_s + draw(st.floats(0, 1e6)),
        requests=draw(st.integers(0, 500)),
        steps=steps,
        covered=covered,
        drafted=drafted,
        accepted=accepted,
        committed=steps + accepted,
        kept=tuple(kept),
        reached=tuple(reached),
        offered=tuple(offered),
        seconds=draw(st.floats(0, 1e4)),
        batch=draw(st.none() | st.floats(1, 64)),
        judged=judged,
        valid=draw(st.integers(0, judged)),
        latency_s=draw(st.none() | st.floats(0, 10)),
        errors=draw(st.integers(0, 10)),
    )


EMPTY = Window("w", "p", 0.0, 0.0, 0, 0, 0, 0, 0, 0, (), (), (), 0.0, None, 0, 0, None, 0)


def test_nothing_measured_is_none_and_never_zero() -> None:
    ratios = ("acceptance_rate", "acceptance_length", "coverage", "tokens_per_s", "goodput", "validity")
    assert [getattr(EMPTY, name) for name in ratios] == [None] * len(ratios)
    unreached = replace(EMPTY, kept=(0,), reached=(0,), offered=(0,))
    assert (unreached.survival, unreached.conditional) == ((None,), (None,))


def test_survival_counts_drafts_and_conditional_those_that_got_there() -> None:
    w = replace(EMPTY, steps=10, covered=8, drafted=14, accepted=8, kept=(6, 2), reached=(8, 5), offered=(8, 6))
    assert w.survival == (0.75, 0.25)
    assert w.conditional == (0.75, 0.4)


def test_goodput_counts_valid_tokens_when_outputs_were_judged() -> None:
    w = replace(EMPTY, committed=100, seconds=2.0)
    assert (w.tokens_per_s, w.goodput) == (50.0, 50.0)
    assert replace(w, judged=10, valid=9).goodput == 45.0
    assert replace(w, judged=10, valid=0).goodput == 0.0


@given(windows())
def test_the_mapping_is_json_and_comes_back(window: Window) -> None:
    assert Window.from_mapping(json.loads(json.dumps(window.to_mapping()))) == window


@given(st.lists(windows(), min_size=1, max_size=5))
def test_a_merged_window_has_the_counts_of_its_parts(parts: list[Window]) -> None:
    merged = Window.merge(parts)
    assert merged.flaw() is None
    assert merged.committed == sum(w.committed for w in parts)
    assert sum(merged.kept) == sum(sum(w.kept) for w in parts)
    assert merged.start_s == min(w.start_s for w in parts)
    assert (merged.batch is None) == all(w.batch is None or w.steps == 0 for w in parts)


@given(st.lists(windows(), min_size=2, max_size=4))
def test_merging_in_steps_is_merging_at_once(parts: list[Window]) -> None:
    parts = [replace(w, batch=w.batch or 1.0) for w in parts]  # an unknown batch leaves its steps out of the mean
    stepwise, at_once = Window.merge([Window.merge(parts[:2]), *parts[2:]]), Window.merge(parts)
    assert stepwise.batch == pytest.approx(at_once.batch)
    assert stepwise.seconds == pytest.approx(at_once.seconds)
    assert replace(stepwise, batch=None, seconds=0.0) == replace(at_once, batch=None, seconds=0.0)


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [EMPTY, replace(EMPTY, workload="x")],
        [EMPTY, replace(EMPTY, policy="x")],
        [EMPTY, replace(EMPTY, shadow=True)],
    ],
)
def test_windows_of_different_things_do_not_merge(parts: list[Window]) -> None:
    with pytest.raises(TraceError, match="one workload, one policy and one kind"):
        Window.merge(parts)


FLAWS = [
    ({"seconds": float("nan")}, "NaN"),
    ({"batch": float("inf")}, "infinite"),
    ({"latency_s": -1.0}, "negative"),
    ({"start_s": 5.0}, "before the start"),
    ({"end_s": float("nan")}, "not a time"),
    ({"steps": -1}, "negative"),
    ({"kept": (-1,), "reached": (0,), "offered": (0,)}, "negative"),
    ({"accepted": 1}, "accepted than drafted"),
    ({"covered": 1}, "more steps drafted"),
    ({"drafted": 1}, "in no step"),
    ({"valid": 1}, "valid than were judged"),
    ({"kept": (0,)}, "differ in length"),
    ({"steps": 9, "covered": 9, "kept": (5,), "reached": (4,), "offered": (9,)}, "more often than reached"),
]


@pytest.mark.parametrize(("fields", "says"), FLAWS)
def test_figures_that_cannot_be_true_are_named(fields: dict[str, object], says: str) -> None:
    flawed = replace(EMPTY, **fields)
    assert says in (flawed.flaw() or "")
    with pytest.raises(InputError):
        Window.from_mapping(flawed.to_mapping())


@pytest.mark.parametrize("change", [{"steps": 1.5}, {"steps": True}, {"kept": None}, {"seconds": "x"}, {"kept": [1.0]}])
def test_wrong_types_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(TraceError):
        Window.from_mapping(EMPTY.to_mapping() | change)


def test_unknown_and_missing_fields_are_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'steps'"):
        Window.from_mapping(EMPTY.to_mapping() | {"step": 1})
    with pytest.raises(ConfigError, match="steps missing"):
        Window.from_mapping({k: v for k, v in EMPTY.to_mapping().items() if k != "steps"})
