"""The closed loop live on the embedded engine, against what hindsight would have chosen.

    python benchmarks/closed_loop.py phased [--rounds 6] [--json phased.json]   code-edit, chat, code-edit
    python benchmarks/closed_loop.py wrong [--rounds 36]                        drafts wrong on purpose, from the start
    python benchmarks/closed_loop.py swap                                       drafts that break, and are repaired
    python benchmarks/closed_loop.py pid                                        the article's law, and one with a sign

SmolLM2-135M, greedy, one request at a time, decode seconds as measured. The loop reads the log of finished requests
and writes the policy file, as `draftgate control` does; it is not told which workload a request belongs to. Its clock
is the decode time of the requests that it steers, so other arms can run in between: each prompt runs under the fixed
arms once a phase, in random order with the steered arm, spread evenly over the phase. Intervals: 95%, bootstrap over
prompts. With --cpu, seconds are CPU seconds of one thread: those hardly depend on what else a shared machine does.
"""

import argparse
import json
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from draftgate.control.assemble import Options
from draftgate.engines.base import Engine, Request, Sampling
from draftgate.engines.llamacpp import engine as llamacpp
from draftgate.engines.llamacpp.engine import LlamaCpp
from draftgate.engines.llamacpp.models import resolve
from draftgate.loadgen.arrivals import endless
from draftgate.loadgen.live import Live
from draftgate.policy.length import Fixed
from draftgate.policy.policy import Policy
from draftgate.policy.policyset import PolicySet
from draftgate.stats.bootstrap import ratio_interval
from draftgate.testing.clock import Clocked
from draftgate.testing.drafts import wrong_drafts
from draftgate.workload.packs import load

K = 7
STEERED = -1
COST_S = 10.0


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
    steered_s: dict[str, float] = field(default_factory=dict)
    fixed_s: dict[int, dict[str, float]] = field(default_factory=dict)
    lengths: dict[int, int] = field(default_factory=dict)


def serve_phase(
    live: Live,
    engine: Engine,
    pack: str,
    requests: Sequence[Request],
    rounds: int,
    fixed: Sequence[int],
    rng: random.Random,
) -> Phase:
    """Rounds over the prompts; in one of them, another for each prompt, the fixed arms run too."""
    phase = Phase(pack, rounds, fixed_s={k: {} for k in fixed})
    turn = {r.id: i % rounds for i, r in enumerate(rng.sample(requests, len(requests)))}
    for round_ in range(rounds):
        for request in rng.sample(requests, len(requests)):
            arms = [STEERED, *(fixed if turn[request.id] == round_ else ())]
            for arm in rng.sample(arms, len(arms)):
                if arm == STEERED:
                    k = live.served.policy("").length.most
                    phase.lengths[k] = phase.lengths.get(k, 0) + 1
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
    return min(phase.fixed_s, key=lambda k: sum(phase.fixed_s[k].values()))


def compared(phases: Sequence[Phase]) -> dict[str, Any]:
    """Total steered time over that of each rival, with intervals over prompts."""
    steered = [s for p in phases for s in p.steered_s.values()]
    rivals: dict[str, Callable[[Phase], int]] = {"hindsight": hindsight, "off": lambda p: 0}
    if K in phases[0].fixed_s:
        rivals["on"] = lambda p: K
    found = {}
    for name, arm in rivals.items():
        interval = ratio_interval(steered, rival_s(phases, arm))
        found[name] = {"ratio": interval.estimate, "low": interval.low, "high": interval.high, "n": interval.n}
    return found


def show(phases: Sequence[Phase], found: Mapping[str, Mapping[str, Any]]) -> None:
    arms = phases[0].fixed_s
    heads = "".join(f"{f'k={k}' if k else 'off':>9}" for k in arms)
    print(f"\nseconds     {heads}  steered  requests by draft length")
    for p in phases:
        row = "".join(f"{sum(p.fixed_s[k].values()) * p.rounds:9.1f}" for k in arms)
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
    prompts: int
    seed: int
    verbose: bool

    def requests(self, pack: str) -> list[Request]:
        """The pack's prompts, with nothing that tells the loop which pack it is."""
        return [self.engine.encode(p, "", 64, Sampling()) for p in load(pack).prompts[: self.prompts]]

    def live(self, clocked: Clocked, policy: Policy) -> Live:
        return Live(
            clocked, PolicySet((policy,), policy.name), self.folder, self.options, self.say, lambda: clocked.now_s,
            self.window, seed=self.seed,
        )  # fmt: skip

    def say(self, line: Mapping[str, Any]) -> None:
        if self.verbose and line["action"] != "hold":
            print(f"  {line['time_s']:8.1f} s  {line['action']:10} {line['reason']}", flush=True)


def phased(bench: Bench, packs: Sequence[str], rounds: int, arms: Sequence[int]) -> dict[str, Any]:
    """Phases of load that the loop is not told of."""
    live = bench.live(Clocked(bench.engine), Policy("exact", length=Fixed(K)))
    rng = random.Random(bench.seed)
    phases = [serve_phase(live, bench.engine, pack, bench.requests(pack), rounds, arms, rng) for pack in packs]
    found = compared(phases)
    show(phases, found)
    return {"phases": [asdict(p) for p in phases], "compared": found}


def wrong(bench: Bench, rounds: int) -> dict[str, Any]:
    """Drafts that are always wrong: any speculation only costs."""
    with wrong_drafts(bench.engine):
        return phased(bench, ("chat",), rounds, (0,))


def swap(bench: Bench, draft: LlamaCpp, before: int = 6, most: int = 4000) -> dict[str, Any]:
    """Lookup drafts; a diverged draft model takes their place after some looks, until speculation is off."""
    clocked = Clocked(bench.engine)
    live = bench.live(clocked, Policy("exact", length=Fixed(K)))
    requests = endless(bench.requests("code-edit"), bench.seed)
    at_s: dict[str, float] = {}
    looks: Counter[str] = Counter()
    for _ in range(most):
        _, decisions = live.serve([next(requests)])
        looks["swapped" if clocked.engine is draft else "sound"] += bool(decisions)
        actions = [d.action for d in decisions]
        if "swapped" not in at_s and looks["sound"] >= before and live.served.policy("").drafts:
            clocked.engine, at_s["swapped"] = draft, clocked.now_s
        elif clocked.engine is draft and not live.served.policy("").drafts:
            clocked.engine, at_s["off"] = bench.engine, clocked.now_s
        elif "half-open" in actions:
            at_s["on again"] = clocked.now_s
        elif "close" in actions:
            at_s["proven again"] = clocked.now_s
            break
    print(f"\nseconds of decoding: {at_s}; looks while the wrong draft was loaded: {looks['swapped']}")
    return {"at_s": at_s, "looks": dict(looks)}


def pid(bench: Bench, windows: int = 16) -> dict[str, Any]:
    """Both laws from the article's start, on the article's bounds: tau and acceptance by window."""
    found: dict[str, Any] = {}
    for law in ("pid-article", "pid"):
        folder = bench.folder / law
        steered = replace(
            bench, folder=folder, options=replace(bench.options, controller=law, target=0.45, gains="variable")
        )
        live = steered.live(Clocked(bench.engine), Policy("threshold", "threshold", 0.65, length=Fixed(3)))
        requests = endless(bench.requests("code-edit"), bench.seed)
        seen: list[tuple[float | None, float | None]] = []
        while len(seen) < windows:
            tau = live.served.policy("").tau
            seen += [(tau, d.acceptance) for d in live.serve([next(requests)])[1] if d.acceptance is not None]
        found[law] = seen
        print(f"{law}: tau, acceptance by window: " + ", ".join(f"{t:.3f} {a:.2f}" for t, a in seen))
    return found


def open_engine(draft: str | Path, threads: int | None, cpu: bool) -> LlamaCpp:
    """The engine; on request with CPU seconds for a clock, which it has no switch for."""
    engine = LlamaCpp(resolve("smollm2-135m"), draft, threads=1 if cpu else threads)
    if cpu:
        engine._speculator._clock = time.process_time
        llamacpp.time = SimpleNamespace(perf_counter=time.process_time)  # type: ignore[attr-defined]
    return engine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("scenario", choices=["phased", "wrong", "swap", "pid"])
    parser.add_argument("--rounds", type=int, help="over the prompts in each phase  [default: 6; wrong: 36]")
    parser.add_argument("--window", type=int, default=250, help="decode steps")
    parser.add_argument("--arms", type=int, nargs="+", default=[0, 3, 5, K], help="fixed draft lengths of phased")
    parser.add_argument("--prompts", type=int, default=36, help="of each pack")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--cpu", action="store_true", help="CPU seconds of one thread instead of wall time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--verbose", action="store_true")
    a = parser.parse_args()
    with (
        closing(open_engine("lookup", a.threads, a.cpu)) as engine,
        tempfile.TemporaryDirectory() as folder,
    ):
        cost = engine.measure_cost([1], K + 1, COST_S)
        print(
            f"{engine.setup.hardware}, {engine.setup.threads} threads, load {os.getloadavg()[0]:.1f}; ms of a step:",
            end="",
        )
        print("".join(f" {1e3 * s:.1f}" for s in cost.curves[1].seconds))
        bench = Bench(engine, Options(cost=cost), Path(folder), a.window, a.prompts, a.seed, a.verbose)
        result: dict[str, Any] = {"setup": asdict(engine.setup), "cost": cost.to_mapping(), "seed": a.seed}
        if a.scenario == "phased":
            result |= phased(bench, ("code-edit", "chat", "code-edit"), a.rounds or 6, a.arms)
        elif a.scenario == "wrong":
            result |= wrong(bench, a.rounds or 36)
        elif a.scenario == "swap":
            with closing(open_engine(resolve("smollm2-135m-draft8"), a.threads, a.cpu)) as draft:
                result |= swap(bench, draft)
        else:
            result |= pid(bench)
        if a.json:
            a.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
