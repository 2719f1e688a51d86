from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from draftgate.engines.export import Measured


@click.command()
@click.argument("policy", metavar="PRESET|POLICY.yaml")
@click.option("--to", "engine", required=True, metavar="ENGINE", help="llamacpp or vllm")
@click.option(
    "--draft", default="lookup", show_default=True, metavar="lookup|METHOD|PATH", help="Where drafts come from."
)
@click.option(
    "--run",
    type=click.Path(path_type=Path),
    metavar="DIR/WORKLOAD",
    help="A workload of a finished run, for settings that depend on measured costs.  [default: the policy file's]",
)
def command(policy: str, engine: str, draft: str, run: Path | None) -> None:
    """Turn a policy into an engine's own settings, with a warning for what the engine cannot do.

    \b
    draftgate export runs/tune-1/code-edit/policies/goodput.yaml --to llamacpp
    draftgate export runs/tune-1/chat/policies/exact-k3.yaml --to vllm --draft eagle3:path/to/head
    """
    from draftgate.engines.export import EXPORTERS
    from draftgate.errors import ConfigError, nearest
    from draftgate.policy.file import resolve

    if engine not in EXPORTERS:
        raise ConfigError(f"cannot export to '{engine}'; {nearest(engine, EXPORTERS)}")
    exported = EXPORTERS[engine](resolve(policy), draft, _measured(run, Path(policy)))
    for note in exported.notes:
        click.echo(f"note: {note}", err=True)
    click.echo(exported.text)


def _measured(run: Path | None, policy: Path) -> "Measured | None":
    """What the run behind a policy file (RUN/WORKLOAD/policies/NAME.yaml) measured; None where there is none."""
    from draftgate.engines.export import Measured
    from draftgate.errors import TraceError
    from draftgate.experiment.rundir import read_cost, read_json

    workload = run or policy.absolute().parent.parent
    cost, result = read_cost(workload.parent / "cost.json"), read_json(workload.parent / "result.json")
    rows = [w for w in (result or {}).get("workloads", ()) if w["name"] == workload.name]
    if cost is None or not rows:
        if run is not None:
            raise TraceError(f"{run}: is no workload of a finished run; pass RUN_DIRECTORY/WORKLOAD")
        return None
    trace = rows[0]["trace"]
    survival = [row["survival"]["rate"] or 0.0 for row in trace["positions"]]
    return Measured(cost, survival, trace["coverage"] or 0.0)
