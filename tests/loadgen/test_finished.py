"""A shadow says what speculation would have come to: the same as when it does run."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftgate.engines.base import Request, Sampling
from draftgate.engines.fake import FakeEngine
from draftgate.loadgen.finished import line, shadow
from draftgate.policy.length import Fixed
from draftgate.policy.policy import NONE, Policy
from draftgate.workload.prompt import Prompt


def request(engine: FakeEngine, words: int, most: int) -> Request:
    return engine.encode(Prompt(id="p", prompt="abcab" * words), "w", most, Sampling())


@given(words=st.integers(1, 8), most=st.integers(1, 60), k=st.integers(1, 9), seed=st.integers(0, 20))
@settings(max_examples=60)
def test_a_shadow_is_what_greedy_speculation_does(words: int, most: int, k: int, seed: int) -> None:
    engine = FakeEngine(seed)
    asked = request(engine, words, most)
    (off,), (on,) = (engine.generate([asked], policy) for policy in (NONE, Policy("on", length=Fixed(k))))
    told = shadow(off, "1", "p", 1.0, k, engine.end_tokens)
    ran = line(on, "1", "p", 1.0, 1.0)
    assert told.pop("shadow")
    for name in ("steps", "covered", "drafted", "accepted", "committed", "workload", "id", "end_s"):
        assert told[name] == ran[name], name
    n = len(told["kept"])
    assert [told[name] for name in ("kept", "reached", "offered")] == [
        ran[name][:n] for name in ("kept", "reached", "offered")
    ]


def test_a_shadow_has_the_batch_of_its_request_and_no_seconds() -> None:
    engine = FakeEngine()
    requests = [replace(request(engine, 2, 30), id=str(i)) for i in range(3)]
    told = [shadow(done, "1", "p", 1.0, 4, engine.end_tokens) for done in engine.generate(requests, NONE)]
    assert told[0]["batch"] == pytest.approx(3.0, abs=1.0)
    assert "seconds" not in told[0]
