"""The loop around a whole engine: its requests in a file, its policy in another."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from draftgate.control.assemble import Options, lanes
from draftgate.control.loop import Loop
from draftgate.control.setting import Setting
from draftgate.control.tail import FileSource
from draftgate.control.target import FileChannel
from draftgate.engines.base import Completion, Engine, Request, Sampling
from draftgate.engines.fake import FakeEngine
from draftgate.engines.llamacpp.engine import LlamaCpp
from draftgate.policy.length import Fixed
from draftgate.policy.policy import Policy
from draftgate.policy.policyset import PolicySet, load, save
from draftgate.workload.prompt import Prompt

MOST = 6


def line(done: Completion, id_: str, at_s: float) -> str:
    """A finished request, as a server that knows draftgate's words would log it."""
    steps = done.steps
    drafted = np.array([s.drafted_n for s in steps])
    kept = np.array([s.accepted for s in steps])
    positions = np.arange(MOST)[:, None]
    return json.dumps(
        {
            "id": id_,
            "policy": "mine",
            "end_s": at_s,
            "steps": len(steps),
            "covered": int((drafted > 0).sum()),
            "drafted": int(drafted.sum()),
            "accepted": int(kept.sum()),
            "committed": sum(s.committed for s in steps),
            "kept": (kept > positions).sum(axis=1).tolist(),
            "reached": ((drafted > positions) & (kept >= positions)).sum(axis=1).tolist(),
            "offered": (drafted > positions).sum(axis=1).tolist(),
            "seconds": done.decode_s,
            "batch": 1.0,
        }
    )


@dataclass
class Served:
    """An engine that serves requests under its policy file, and the loop that steers it."""

    folder: Path
    engine: Engine
    requests: Sequence[Request]
    now_s: float = 0.0

    def __post_init__(self) -> None:
        base = PolicySet((Policy("mine", length=Fixed(MOST)),), "mine")
        self.path, self.log = self.folder / "policy.yaml", self.folder / "requests.jsonl"
        self.log.write_text("")
        save(base, self.path)
        source = FileSource(self.log, size=len(self.requests), most_s=1e9, clock=lambda: self.now_s)
        cost = self.engine.measure_cost([1], MOST + 1, 0.5)
        made = lanes(base, False, Options(cost=cost), random.Random(0))
        self.lines: list[object] = []
        self.loop = Loop(
            base, source, FileChannel(self.path), made, self.folder / "state.json", None, self.lines.append,
            lambda: self.now_s,
        )  # fmt: skip

    @property
    def setting(self) -> Setting:
        return Setting.of(load(self.path).of())

    def serve(self, n: int) -> list[str]:
        """n windows, with a look after each."""
        actions = []
        for _ in range(n):
            policy, self.now_s = load(self.path).of(), self.now_s + 10.0
            with self.log.open("a") as log:
                for request in self.requests:
                    (done,) = self.engine.generate([request], policy)
                    log.write(line(done, f"{self.now_s}-{request.id}", self.now_s) + "\n")
            self.now_s += 1.0
            actions += [d.action for d in self.loop.tick()]
        return actions


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
    served = Served(tmp_path, engine, requests)
    served.serve(14)
    assert rates[served.setting.k] >= 0.95 * max(rates)


def test_a_real_engine_is_steered_through_its_files(tmp_path: Path, llama: LlamaCpp) -> None:
    """How fast it is depends on the machine; what must hold anywhere is that every window is read and answered."""
    prompt = Prompt(id="p", prompt="def add(a, b):\n    return a + b\n\ndef add(a, b):\n    return")
    requests = [replace(llama.encode(prompt, "w", 24, Sampling(seed=i)), id=str(i)) for i in range(2)]
    served = Served(tmp_path, llama, requests)
    actions = served.serve(3)
    assert len([a for a in actions if a in ("hold", "change", "open", "close")]) >= 3
    assert served.loop.fresh_s is not None
    assert load(served.path).of().name == "mine"
    assert json.loads((tmp_path / "state.json").read_text())["workloads"]["*"]["controller"]["seen_s"] >= 0
