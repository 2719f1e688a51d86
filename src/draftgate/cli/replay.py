import json
from pathlib import Path

import click


@click.command()
@click.argument("trace", type=click.Path(path_type=Path))
@click.option(
    "--policy",
    "-p",
    "policies",
    multiple=True,
    required=True,
    metavar="PRESET|POLICY.yaml",
    help="What to predict; repeat.",
)
@click.option("--cost", type=click.Path(path_type=Path), help="cost.json of a run; found by itself in a run directory.")
@click.option("--json", "as_json", is_flag=True, help="Print arm objects as one JSON object.")
def command(trace: Path, policies: tuple[str, ...], cost: Path | None, as_json: bool) -> None:
    """Predict policies from a recorded trace, without an engine.

    \b
    draftgate replay runs/tune-1/code-edit/trace -p code -p loose
    draftgate replay runs/tune-1/code-edit/trace -p mine.yaml --json
    """
    from draftgate.cli.screen import arm_table, result_console
    from draftgate.experiment.offline import replay
    from draftgate.policy.file import resolve

    result = replay(trace, [resolve(name) for name in policies], cost)
    if as_json:
        click.echo(json.dumps(result, indent=1, allow_nan=False))
        return
    result_console().print(arm_table(str(trace), result["arms"]))
    for arm in result["arms"]:
        p = arm["predicted"]
        click.echo(
            f"  {arm['arm']}: {p['estimator']} estimator, length within {p['expected_error']:.0%} on these prompts"
        )
