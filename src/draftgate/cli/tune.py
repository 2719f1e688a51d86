import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from draftgate.cli import options
from draftgate.cli.options import duration, engine_options, quality_options, sampling_options
from draftgate.engines.select import Choice


@click.command()
@click.option(
    "--workload",
    "-w",
    "workloads",
    multiple=True,
    metavar="NAME|FILE.jsonl",
    help="Pack or JSONL file; repeat for several.  [default: all packs]",
)
@engine_options
@sampling_options
@click.option(
    "--budget",
    default="8m",
    show_default=True,
    type=duration,
    metavar="TIME",
    help="Time to record and run, over all workloads.",
)
@click.option(
    "--arm",
    "-a",
    "given",
    multiple=True,
    metavar="PRESET|POLICY.yaml",
    help="Prove this one too; repeat for several.",
)
@quality_options
@click.option(
    "--allow-lossy",
    is_flag=True,
    help="Let a lossy arm be recommended while its quality is not proven; never a failed one.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Run directory; an unfinished run in it is resumed.  [default: runs/tune-TIME]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def command(
    workloads: tuple[str, ...],
    choice: Choice,
    budget: float,
    given: tuple[str, ...],
    floor: float | None,
    margin: float,
    run_tests: bool,
    allow_lossy: bool,
    out: Path | None,
    as_json: bool,
    max_tokens: int,
    **sampled: Any,
) -> int:
    """Measure no speculation, record one trace, search thousands of policies offline, prove the best live, recommend.

    \b
    draftgate tune                                        all packs on the small model
    draftgate tune -w code-edit -w mine.jsonl --budget 10m
    draftgate tune -w chat --temperature 0.8 --top-p 0.95
    draftgate tune --out runs/tune-20261130-120000        resume a run that was interrupted
    """
    from draftgate.cli.screen import Screen, gate_failed
    from draftgate.engines.base import Sampling
    from draftgate.experiment.judging import GateSettings
    from draftgate.experiment.rundir import recorded_threads
    from draftgate.experiment.tune import Settings, tune
    from draftgate.policy.file import resolve
    from draftgate.report.page import write_report
    from draftgate.workload.packs import load, pack_names

    out = out or Path("runs") / time.strftime("tune-%Y%m%d-%H%M%S")
    loaded = [load(name) for name in workloads or pack_names()]
    sampling = Sampling(**sampled)
    settings = Settings(
        sampling.seed,
        budget,
        max_tokens=max_tokens,
        allow_lossy=allow_lossy,
        sampling=sampling,
        gate=GateSettings(floor, margin, run_tests),
    )
    policies = [resolve(name) for name in given]
    engine = options.open_engine(replace(choice, threads=choice.threads or recorded_threads(out)))
    try:
        with Screen() as screen:
            screen.say(f"run directory {out}; resume with --out {out}")
            result = tune(engine, loaded, settings.fitted(engine.capabilities), out, screen, policies)
            write_report(result, out / "report.html")
    except KeyboardInterrupt:
        click.echo(f"draftgate: interrupted; to go on, give the same command with --out {out}", err=True)
        return 130
    finally:
        engine.close()
    if as_json:
        click.echo(json.dumps(result, indent=1, allow_nan=False))
    else:
        _show(result, out)
    if any(gate_failed(arm) for w in result["workloads"] for arm in w["arms"]):
        return 1
    return 3 if all(w["verdict"] == "inconclusive" for w in result["workloads"]) else 0


def _show(result: dict[str, Any], out: Path) -> None:
    from draftgate.cli.screen import arm_table, quality_lines, result_console

    console = result_console()
    for w in result["workloads"]:
        verdict = f"use {w['recommended']}" if w["verdict"] == "faster" else w["verdict"]
        console.print(arm_table(f"{w['name']}: {verdict}", w["arms"], w["verdict"], w["recommended"]))
        said = (f"why: {w['why']}", w["presets"], *quality_lines(w["arms"]), _differences(w["differences"]))
        for line in filter(None, said):
            click.echo(f"  {line}")
        click.echo()
    click.echo(result["across"]["why"])
    click.echo("speedup: measured, decode time of the same prompts against no speculation; interval: 95%, valid at any")
    click.echo("number of looks, over all arms of a workload; replay: speedup predicted from the recording.")
    click.echo(f"report: {out / 'report.html'}")


def _differences(rows: list[dict[str, Any]]) -> str | None:
    if not rows:
        return None
    ties = sum(row["tie"] for row in rows)
    return f"text: {len(rows)} lossless outputs differ from the baseline's, {ties} of them at near-ties of the logits"
