from collections.abc import Iterable
from dataclasses import replace

import pytest

from draftgate.policy.policy import Policy
from draftgate.replay.predict import Prediction
from draftgate.search.session import Session
from draftgate.search.space import Space


def prediction(policy: Policy, speedup: float | None = None, nats: float | None = None) -> Prediction:
    """A made-up oracle: longer is faster, a lower tau is faster and lossier."""
    tau = policy.tau if policy.tau is not None else 1.0
    speed = 1 + policy.length.most / 10 + (0.0 if policy.lossless else 1 - tau)
    loss = 0.0 if policy.lossless else 1 - tau
    return Prediction(
        policy=policy.name,
        estimator="step",
        expected_error=0.02,
        acceptance_length=2.0,
        acceptance_rate=0.5,
        coverage=1.0,
        step_s=0.01,
        tokens_per_s=100.0,
        speedup=speed if speedup is None else speedup,
        lossy_share=0.0,
        given_up_nats=loss if nats is None else nats,
        speedup_interval=None,
        requests=3,
    )


def told(session: Session, policies: Iterable[Policy]) -> None:
    session.tell([(p, prediction(p)) for p in policies])


def run(seed: int, rounds: int, n: int = 50) -> list[str]:
    session, names = Session(Space(3), seed), []
    for _ in range(rounds):
        asked = session.ask(n)
        told(session, asked)
        names += [p.name for p in asked]
    return names


def test_the_grid_comes_first_then_neighbours():
    grid = [p.name for p in Space(3).grid()]
    names = run(0, rounds=2 + len(grid) // 50)
    assert names[: len(grid)] == grid
    assert len(names) > len(grid)


def test_a_seed_gives_one_search():
    assert run(1, 20) == run(1, 20)
    assert run(1, 20) != run(2, 20)


@pytest.mark.parametrize("n", [1, 7, 200])
def test_nothing_is_asked_twice_and_never_more_than_n(n):
    session, names = Session(Space(3), 0), []
    for _ in range(800 // n if n > 1 else 60):
        asked = session.ask(n)
        assert len(asked) <= n
        names += [p.name for p in asked]
        told(session, asked)
    assert len(set(names)) == len(names)


def test_without_answers_there_are_no_neighbours():
    session, grid = Session(Space(2), 0), list(Space(2).grid())
    assert len(session.ask(10_000)) == len(grid)
    assert session.ask(5) == []


def test_neighbours_come_from_the_front():
    session = Session(Space(2), 0)
    told(session, session.ask(10_000))
    rules = {policy.rule for policy, _ in session.front()}
    assert {p.rule for p in session.ask(30)} <= rules


def test_best_is_the_fastest_within_the_limit():
    session = Session(Space(2), 0)
    given = {0.9: 0.0, 0.5: 0.04, 0.1: 0.5}
    policies = [Policy(f"t{tau}", "threshold", tau) for tau in given]
    session.tell([(p, prediction(p, 2 - (p.tau or 0), given[p.tau or 0])) for p in policies])
    names = [best and best[0].name for best in map(session.best, (0.0, 0.05, 1.0))]
    assert names == ["t0.9", "t0.5", "t0.1"]
    assert [p.name for p, _ in session.front()] == ["t0.1", "t0.5", "t0.9"]
    assert Session(Space(2)).best(1.0) is None
    assert len(session) == len(session.told) == 3


def test_a_prediction_without_speed_is_refused():
    policy = Policy("p")
    with pytest.raises(ValueError, match="'p' has no speedup"):
        Session(Space(2)).tell([(policy, replace(prediction(policy), speedup=None))])
