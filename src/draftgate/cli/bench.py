import json
from pathlib import Path
from typing import Any

import click

from draftgate.cli.options import Duration, engine_options, open_engine, sampling_options


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
@click.option("--budget", default="2m", show_default=True, type=Duration(), help="Time to run.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Run directory to keep the measurements in; resumed if unfinished."
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def command(workload: str, arms: tuple[str, ...], as_json: bool, **options: Any) -> int:
    """Run arms interleaved on the same prompts and compare each with no speculation.

    \b
    draftgate bench -w code-edit -a exact -a code -a syntax-aware
    draftgate bench -w mine.jsonl -a runs/tune-1/mine/policies/goodput.yaml --json
    """
    from draftgate.cli.screen import Screen, arm_table
    from draftgate.engines.base import Sampling
    from draftgate.experiment.bench import bench
    from draftgate.policy.file import resolve
    from draftgate.workload.packs import load

    policies = [resolve(name) for name in arms]
    loaded = load(workload)
    o = options
    sampling = Sampling(o["temperature"], o["top_k"], o["top_p"], o["min_p"], o["seed"])
    engine = open_engine(o["target"], o["draft"], o["context"], o["threads"])
    try:
        with Screen() as screen:
            result = bench(engine, loaded, policies, sampling, o["max_tokens"], o["budget"], o["out"], screen)
    finally:
        engine.close()
    if as_json:
        click.echo(json.dumps(result, indent=1))
    else:
        from rich.console import Console

        Console().print(arm_table(f"{loaded.name}", result["arms"]))
    return 0
