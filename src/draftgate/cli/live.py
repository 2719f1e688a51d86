import json
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from draftgate.cli import options
from draftgate.cli.options import duration, engine_options, sampling_options
from draftgate.engines.select import Choice

if TYPE_CHECKING:
    from collections.abc import Mapping

    from draftgate.engines.base import Request
    from draftgate.loadgen.live import Live
    from draftgate.policy.policyset import PolicySet

_COST_S = 5.0
_K = 7


@click.command()
@click.option(
    "--workload",
    "-w",
    "workloads",
    multiple=True,
    required=True,
    metavar="NAME|FILE.jsonl",
    help="Pack or JSONL file, served for one phase; repeat.",
)
@click.option("--phase", default="60s", show_default=True, type=duration, metavar="TIME", help="Time of each phase.")
@engine_options
@sampling_options
@click.option(
    "--policy",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Policies to start from; workloads that they name are steered one by one.  [default: exact, k = 7]",
)
@click.option(
    "--controller",
    default="goodput",
    show_default=True,
    type=click.Choice(["goodput", "pid", "pid-article"]),
    help="As of 'draftgate control'.",
)
@click.option("--knob", default="tau", show_default=True, type=click.Choice(["tau", "k", "cut"]), help="For pid.")
@click.option("--target-acceptance", default=0.60, show_default=True, type=click.FloatRange(0, 1), help="For pid.")
@click.option(
    "--window", "steps", default=250, show_default=True, type=click.IntRange(1), help="Decode steps of a window."
)
@click.option(
    "--rate", type=click.FloatRange(0, min_open=True), help="Requests a second.  [default: one after another]"
)
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="Keep policy, log and state there."
)
def command(
    workloads: tuple[str, ...],
    phase: float,
    choice: Choice,
    policy: Path | None,
    steps: int,
    rate: float | None,
    out: Path | None,
    max_tokens: int,
    controller: str,
    knob: str,
    target_acceptance: float,
    **sampled: Any,
) -> int:
    """Watch the control loop steer an engine of this process through phases of load.

    \b
    draftgate live -w code-edit -w chat -w code-edit --phase 60s
    draftgate live -w chat --rate 2 --policy policies.yaml --out live

    Step costs are measured first. Every decision is one JSON line on stdout, as 'draftgate control' writes it, and
    so is what each phase came to.
    """
    from draftgate.control.assemble import Options
    from draftgate.engines.base import Sampling
    from draftgate.loadgen.live import Live
    from draftgate.workload.packs import load

    sampling, loaded, base = Sampling(**sampled), [load(name) for name in workloads], _base(policy)
    engine = options.open_engine(choice)
    try:
        phases = [[engine.encode(p, w.name, max_tokens, sampling) for p in w.prompts] for w in loaded]
        click.echo(f"measuring step costs for {_COST_S:g} s", err=True)
        cost = engine.measure_cost([1], max(p.length.most for p in base.policies) + 1, _COST_S)
        with tempfile.TemporaryDirectory() as scratch:
            asked = Options(controller=controller, cost=cost, knob=knob, target=target_acceptance)
            live = Live(engine, base, out or Path(scratch), asked, _say, least_steps=steps, seed=sampling.seed)
            for requests in phases:
                _phase(live, requests, rate, phase, sampling.seed)
            live.loop.stop("keep")
    except KeyboardInterrupt:
        click.echo("draftgate: interrupted", err=True)
        return 130
    finally:
        engine.close()
    return 0


def _base(policy: Path | None) -> "PolicySet":
    from draftgate.policy.length import Fixed
    from draftgate.policy.policy import Policy
    from draftgate.policy.policyset import PolicySet, load

    return PolicySet((Policy("exact", length=Fixed(_K)),), "exact") if policy is None else load(policy)


def _say(line: "Mapping[str, Any]") -> None:
    click.echo(json.dumps(line, allow_nan=False))


def _phase(live: "Live", requests: "list[Request]", rate: float | None, phase_s: float, seed: int) -> None:
    """One phase, and what it came to: decode seconds, without prompts and waiting."""
    from draftgate.loadgen.arrivals import Closed, Open, endless

    begin_s = time.time()
    arrivals = Closed() if rate is None else Open(rate, begin_s, seed)
    done = list(live.run(endless(requests, seed), arrivals, begin_s + phase_s))
    steps = [step for d in done for step in d.steps]
    covered, drafted = sum(s.drafted_n > 0 for s in steps), sum(s.drafted_n for s in steps)
    seconds = sum(d.decode_s for d in done)
    _say(
        {
            "time_s": round(time.time(), 4),
            "workload": requests[0].workload,
            "action": "phase",
            "reason": f"{len(done)} requests, {covered} of {len(steps)} steps drafted",
            "acceptance": round(sum(s.accepted for s in steps) / drafted, 4) if drafted else None,
            "tokens_per_s": round(sum(d.step_tokens for d in done) / seconds, 4) if seconds else None,
        }
    )
