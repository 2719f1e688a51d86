"""The loop around a whole engine: its requests in a file, its policy in another."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from draftgate.control import state
from draftgate.control.assemble import Options
from draftgate.engines.base import Engine, Request, Sampling
from draftgate.engines.fake import FakeEngine
from draftgate.engines.llamacpp.engine import LlamaCpp
from draftgate.loadgen.live import Live
from draftgate.policy.length import Fixed
from draftgate.policy.policy import Policy
from draftgate.policy.policyset import PolicySet
from draftgate.workload.prompt import Prompt

MOST = 6
SET = PolicySet((Policy("mine", length=Fixed(MOST)),), "mine")


def rate(engine: Engine, requests: Sequence[Request], k: int) -> float:
    done = [engine.generate([r], Policy("mine", length=Fixed(k)))[0] for r in requests]
    return sum(d.step_tokens for d in done) / sum(d.decode_s for d in done)


@pytest.mark.parametrize("token_s", [0.0002, 0.004])
def test_it_ends_near_the_best_length_of_an_engine(tmp_path: Path, token_s: float) -> None:
    """Cheap drafts and dear ones; every length was also measured for itself."""
    engine = FakeEngine(token_s=token_s)
    requests = [
        replace(engine.encode(Prompt(id=f"p{i}", prompt="abcab" * (i + 3)), "w", 64, Sampling()), id=f"p{i}")
        for i in range(16)
    ]
    rates = [rate(engine, requests, k) for k in range(MOST + 1)]
    cost = engine.measure_cost([1], MOST + 1, 0.5)
    live = Live(engine, SET, tmp_path, Options(cost=cost), lambda line: None, engine.clock, seed=0)
    for request in requests * 14:
        live.serve([request])
    assert rates[live.served.policy("w").length.most] >= 0.95 * max(rates)


def test_a_real_engine_is_steered_through_its_files(tmp_path: Path, llama: LlamaCpp) -> None:
    """How fast it is depends on the machine; what must hold anywhere is that every window is read and answered."""
    prompt = Prompt(id="p", prompt="def add(a, b):\n    return a + b\n\ndef add(a, b):\n    return")
    requests = [replace(llama.encode(prompt, "w", 24, Sampling(seed=i)), id=str(i)) for i in range(2)]
    options = Options(cost=llama.measure_cost([1], MOST + 1, 0.5))
    live = Live(llama, SET, tmp_path, options, lambda line: None, least_steps=8, seed=0)
    actions = [d.action for request in requests * 6 for d in live.serve([request])[1]]
    assert len([a for a in actions if a in ("hold", "change", "open", "close")]) >= 3
    assert live.loop.fresh_s is not None
    assert live.served.policy("w").name == "mine"
    assert state.load(tmp_path / "state.json").workloads["*"]["controller"]["seen_s"] >= 0
