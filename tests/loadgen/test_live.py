from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftgate.control.assemble import Options
from draftgate.control.window import Window
from draftgate.engines.base import Request, Sampling
from draftgate.engines.fake import FakeEngine
from draftgate.errors import ConfigError
from draftgate.loadgen.arrivals import Closed, Open, endless
from draftgate.loadgen.live import BySteps, Live
from draftgate.policy.length import Fixed
from draftgate.policy.policy import Policy
from draftgate.policy.policyset import PolicySet
from draftgate.workload.prompt import Prompt

K = 6
SET = PolicySet((Policy("mine", length=Fixed(K)),), "mine")


def window(steps: int, workload: str = "*") -> Window:
    return Window(workload, "mine", 0.0, 1.0, 1, steps, 0, 0, 0, steps, (), (), (), 1.0, 1.0, 0, 0, None, 0)


class Given:
    """A source of given polls."""

    def __init__(self, polls: list[list[Window]]) -> None:
        self._polls = iter(polls)

    def poll(self) -> list[Window]:
        return next(self._polls)

    left_out = None

    def in_force(self) -> str | None:
        return "digest"


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 90), st.sampled_from("ab")), max_size=5), max_size=12),
    st.integers(1, 200),
)
def test_windows_are_merged_until_they_are_large_enough_and_nothing_is_lost(
    polls: list[list[tuple[int, str]]], least: int
) -> None:
    source = BySteps(Given([[window(*w) for w in poll] for poll in polls]), least)
    merged = [w for _ in polls for w in source.poll()]
    assert all(least <= w.steps < least + 90 for w in merged)
    for workload in "ab":
        given_steps = sum(n for poll in polls for n, w in poll if w == workload)
        left = given_steps - sum(w.steps for w in merged if w.workload == workload)
        assert 0 <= left < least
    assert source.in_force() == "digest"


def test_a_shadow_is_as_large_as_the_window_it_is_of() -> None:
    """Which had a step for every token that the shadow commits in fewer."""
    ran, would = window(60), replace(window(20), committed=60, shadow=True)
    source = BySteps(Given([[ran, would], [ran, would]]), 100)
    assert source.poll() == []
    assert [(w.shadow, w.steps, w.committed) for w in source.poll()] == [(False, 120, 120), (True, 40, 120)]


def test_windows_of_no_steps_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least one step"):
        BySteps(Given([]), 0)


def requests(engine: FakeEngine) -> list[Request]:
    prompts = [Prompt(id=f"p{i}", prompt="abcab" * (i + 3)) for i in range(8)]
    return [replace(engine.encode(p, "w", 64, Sampling()), id=p.id) for p in prompts]


def test_an_open_loop_serves_what_waits_together_and_is_steered(tmp_path: Path) -> None:
    """Requests come faster than one at a time can be served, so batches fill up and drafts stop paying or do not."""
    engine = FakeEngine()
    options = Options(cost=engine.measure_cost([1, 2, 4], K + 1, 0.1))
    said: list[object] = []
    slept_s = [0.0]

    def clock() -> float:
        return engine.clock() + slept_s[0]

    def sleep(seconds: float) -> None:
        slept_s[0] += seconds

    live = Live(engine, SET, tmp_path, options, said.append, clock, seed=0)
    done = list(live.run(endless(requests(engine)), Open(5.0), 60.0, sleep))
    assert {s.batch for d in done for s in d.steps} == {1, 2, 3, 4}
    assert clock() >= 60.0
    assert any(isinstance(line, dict) and line["action"] in ("hold", "change") for line in said)


def test_an_open_loop_sleeps_until_somebody_comes_and_no_longer_than_asked(tmp_path: Path) -> None:
    engine = FakeEngine()
    now_s = [0.0]

    def sleep(seconds: float) -> None:
        assert seconds > 0
        now_s[0] += seconds

    options = Options(cost=engine.measure_cost([1], K + 1, 0.1))
    live = Live(engine, SET, tmp_path, options, lambda line: None, lambda: now_s[0], seed=0)
    done = list(live.run(endless(requests(engine)), Open(0.1, seed=2), 100.0, sleep))
    assert now_s[0] == pytest.approx(100.0)
    assert 3 <= len(done) <= 20


def test_a_closed_loop_looks_once_a_window(tmp_path: Path) -> None:
    engine = FakeEngine()
    options = Options(cost=engine.measure_cost([1], K + 1, 0.1))
    live = Live(engine, SET, tmp_path, options, lambda line: None, engine.clock, 300, seed=0)
    stream, steps, looks = endless(requests(engine)), 0, 0
    for _ in range(40):
        done, decisions = live.serve([next(stream)])
        steps += sum(len(d.steps) for d in done)
        looks += bool(decisions)
        if decisions:
            assert steps >= 300
            steps = 0
    assert looks >= 3
    assert next(live.run(endless(requests(engine)), Closed(9), engine.clock() + 1e-9)).steps[0].batch == 4
