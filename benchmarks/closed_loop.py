"""The closed loop live on the embedded engine, against what hindsight would have chosen.

    python benchmarks/closed_loop.py phased [--rounds 8] [--json phased.json]   code-edit, chat, code-edit
    python benchmarks/closed_loop.py wrong [--rounds 16]                        drafts wrong on purpose, from the start
    python benchmarks/closed_loop.py swap                                       drafts that break, and are repaired
    python benchmarks/closed_loop.py pid                                        the article's law, and the one with a sign

SmolLM2-135M, greedy, one request at a time, decode seconds as measured. The loop reads the log of finished requests and
writes the policy file, as `draftgate control` does; it is not told which workload a request belongs to. Its clock is the
decode time of the requests that it steers, so other arms can run in between: each prompt runs under the fixed arms once
a phase, in random order with the steered arm, spread evenly over the phase. Intervals: 95%, bootstrap over prompts.
"""

import argparse
import json
import os
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from draftgate.control.assemble import Options
from draftgate.engines.base import Capabilities, Completion, Engine, Request, Sampling
from draftgate.engines.drafters import Drafter
from draftgate.engines.llamacpp.engine import LlamaCpp
from draftgate.engines.llamacpp.models import resolve
from draftgate.engines.verify import Proposal
from draftgate.loadgen.live import Live
from draftgate.policy.length import Fixed
from draftgate.policy.policy import Policy
from draftgate.policy.policyset import PolicySet
from draftgate.stats.bootstrap import ratio_interval
from draftgate.workload.packs import load

K = 7
ARMS = (0, 1, 3, 5, 7)  # fixed draft lengths
STEERED = -1
COST_S = 10.0


@dataclass
class Clocked:
    """An engine whose clock is the decode time of what it has served."""

    engine: Engine
    now_s: float = 0.0

    @property
    def capabilities(self) -> Capabilities:
        return self.engine.capabilities

    def generate(self, requests: Sequence[Request], policy: Policy, record: bool = False) -> list[Completion]:
        done = self.engine.generate(requests, policy, record)
        self.now_s += max(d.decode_s for d in done)
        return done


@dataclass
class Wrong:
    """A drafter whose tokens are exchanged for others: confident, and never right."""

    inner: Drafter
    exchanged: np.ndarray

    def start(self, sequence: int, prompt: Sequence[int]) -> None:
        self.inner.start(sequence, prompt)

    def extend(self, sequence: int, tokens: Sequence[int]) -> None:
        self.inner.extend(sequence, tokens)

    def propose(self, *args: Any) -> Proposal:
        proposal = self.inner.propose(*args)
        return replace(proposal, tokens=self.exchanged[proposal.tokens])


@contextmanager
def wrong_drafts(engine: LlamaCpp) -> Iterator[None]:
    """Drafts are wrong meanwhile; the engine has no such switch, so this reaches inside."""
    speculator = engine._speculator
    right = speculator._drafter
    exchanged = np.roll(np.arange(len(engine._target.pieces), dtype=np.int32), 1)
    speculator._drafter = Wrong(right, exchanged)
    try:
        yield
    finally:
        speculator._drafter = right


@dataclass
class Phase:
    """What one phase took, by prompt.

    Attributes:
        steered_s: decode seconds of the steered arm, summed over rounds.
        fixed_s: arm -> seconds of each prompt, once.
        lengths: requests served at each draft length of the steered arm.
    """

    pack: str
    rounds: int
    steered_s: dict[str, float] = field(default_factory=lambda: {})
    fixed_s: dict[int, dict[str, float]] = field(default_factory=lambda: {k: {} for k in ARMS})
    lengths: Counter[int] = field(default_factory=Counter)


def serve_phase(
    live: Live, engine: Engine, pack: str, requests: Sequence[Request], rounds: int, rng: random.Random
) -> Phase:
    """Rounds over the prompts; in one of them, another for each prompt, the fixed arms run too."""
    phase = Phase(pack, rounds)
    turn = {r.id: i % rounds for i, r in enumerate(rng.sample(requests, len(requests)))}
    for round_ in range(rounds):
        for request in rng.sample(requests, len(requests)):
            arms = [STEERED, *(ARMS if turn[request.id] == round_ else ())]
            for arm in rng.sample(arms, len(arms)):
                if arm == STEERED:
                    phase.lengths[live.served.policy("").length.most] += 1
                    ((done,), _) = live.serve([request])
                    phase.steered_s[request.id] = phase.steered_s.get(request.id, 0.0) + done.decode_s
                else:
                    (done,) = engine.generate([request], Policy("fixed", length=Fixed(arm)))
                    phase.fixed_s[arm][request.id] = done.decode_s
    return phase


def rival_s(phases: Sequence[Phase], arm: Callable[[Phase], int]) -> list[float]:
    """Seconds of each prompt and phase under the arm that is chosen for the phase, as if it had served all rounds."""
    return [s * p.rounds for p in phases for s in (p.fixed_s[arm(p)][prompt] for prompt in p.steered_s)]


def hindsight(phase: Phase) -> int:
    return min(ARMS, key=lambda k: sum(phase.fixed_s[k].values()))


def compared(phases: Sequence[Phase]) -> dict[str, Any]:
    """Total steered time over that of each rival, with intervals over prompts."""
    steered = [s for p in phases for s in p.steered_s.values()]
    rivals: dict[str, Callable[[Phase], int]] = {"hindsight": hindsight, "off": lambda p: 0, "on": lambda p: K}
    found = {}
    for name, arm in rivals.items():
        interval = ratio_interval(steered, rival_s(phases, arm))
        found[name] = {"ratio": interval.estimate, "low": interval.low, "high": interval.high, "n": interval.n}
    return found


def show(phases: Sequence[Phase], found: Mapping[str, Mapping[str, Any]]) -> None:
    heads = "".join(f"{f'k={k}' if k else 'off':>9}" for k in ARMS)
    print(f"\nseconds     {heads}  steered  requests by draft length")
    for p in phases:
        row = "".join(f"{sum(p.fixed_s[k].values()) * p.rounds:9.1f}" for k in ARMS)
        print(f"{p.pack:12}{row}{sum(p.steered_s.values()):9.1f}  {dict(sorted(p.lengths.items()))}")
    for name, f in found.items():
        print(f"steered / {name:10} {f['ratio']:.3f} [{f['low']:.3f}, {f['high']:.3f}], n = {f['n']} prompts")


@dataclass
class Bench:
    """The engine, its step costs, and where to put the loop's files."""

    engine: LlamaCpp
    options: Options
    folder: Path
    window: int
    seed: int
    verbose: bool

    def requests(self, pack: str) -> list[Request]:
        """The pack's prompts, with nothing that tells the loop which pack it is."""
        return [self.engine.encode(p, "", 64, Sampling()) for p in load(pack).prompts]

    def live(self, clocked: Clocked, policy: Policy) -> Live:
        return Live(
            clocked, PolicySet((policy,), policy.name), self.folder, self.options, self.say, lambda: clocked.now_s,
            self.window, seed=self.seed,
        )  # fmt: skip

    def say(self, line: Mapping[str, Any]) -> None:
        if self.verbose and line["action"] != "hold":
            print(f"  {line['time_s']:8.1f} s  {line['action']:10} {line['reason']}", flush=True)


def phased(bench: Bench, packs: Sequence[str], rounds: int) -> dict[str, Any]:
    """Phases of load that the loop is not told of."""
    live = bench.live(Clocked(bench.engine), Policy("exact", length=Fixed(K)))
    rng = random.Random(bench.seed)
    phases = [serve_phase(live, bench.engine, pack, bench.requests(pack), rounds, rng) for pack in packs]
    found = compared(phases)
    show(phases, found)
    return {"phases": [asdict(p) for p in phases], "compared": found}
