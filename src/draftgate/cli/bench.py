import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from draftgate.cli import options
from draftgate.cli.options import duration, engine_options, quality_options, sampling_options
from draftgate.engines.select import Choice


@click.command()
@click.option("--workload", "-w", required=True, metavar="NAME|FILE.jsonl", help="Pack or JSONL file.")
@click.option(
    "--arm",
    "-a",
    "arms",
    multiple=True,
    required=True,
    metavar="PRESET|POLICY.yaml",
    help="What to compare; repeat. 'none' is always added.",
)
@engine_options
@sampling_options
@quality_options
@click.option("--budget", default="2m", show_default=True, type=duration, metavar="TIME", help="Time to run.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Run directory to keep the measurements in; resumed if unfinished."
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def command(
    workload: str,
    arms: tuple[str, ...],
    choice: Choice,
    budget: float,
    floor: float | None,
    margin: float,
    run_tests: bool,
    out: Path | None,
    as_json: bool,
    max_tokens: int,
    **sampled: Any,
) -> int:
    """Run arms interleaved on the same prompts and compare each with no speculation.

    \b
    draftgate bench -w code-edit -a exact -a code -a syntax-aware
    draftgate bench -w mine.jsonl -a runs/tune-1/mine/policies/goodput.yaml --json
    """
    from draftgate.cli.screen import Screen, arm_table, gate_failed, quality_lines, result_console
    from draftgate.engines.base import Sampling
    from draftgate.experiment.bench import bench
    from draftgate.experiment.judging import GateSettings
    from draftgate.experiment.rundir import recorded_threads
    from draftgate.policy.file import resolve
    from draftgate.workload.packs import load

    policies, loaded, sampling = [resolve(name) for name in arms], load(workload), Sampling(**sampled)
    threads = choice.threads or (recorded_threads(out) if out else None)
    engine = options.open_engine(replace(choice, threads=threads))
    try:
        with Screen() as screen:
            gate = GateSettings(floor, margin, run_tests)
            result = bench(engine, loaded, policies, sampling, max_tokens, budget, out, screen, gate)
    except KeyboardInterrupt:
        kept = f"to go on, give the same command with --out {out}" if out else "nothing is kept without --out"
        click.echo(f"draftgate: interrupted; {kept}", err=True)
        return 130
    finally:
        engine.close()
    if as_json:
        click.echo(json.dumps(result, indent=1, allow_nan=False))
    else:
        result_console().print(arm_table(loaded.name, result["arms"]))
        for line in quality_lines(result["arms"]):
            click.echo(f"  {line}")
    compared = [arm for arm in result["arms"] if arm["arm"] != "none"]
    if any(gate_failed(arm) for arm in compared):
        return 1
    return 3 if compared and all(arm["speedup"]["low"] is None for arm in compared) else 0
