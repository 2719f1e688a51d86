from pathlib import Path

import click


@click.command()
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="POLICY.yaml", help="Where to write it.  [default: stdout]"
)
def command(checkpoint: Path, out: Path | None) -> None:
    """Read the acceptance settings of a speculators checkpoint as a policy, a start for tuning.

    \b
    draftgate import path/to/checkpoint --out start.yaml
    draftgate tune -w mine.jsonl --arm start.yaml
    """
    from draftgate.engines.speculators import policy_of
    from draftgate.files import dump_yaml
    from draftgate.policy.file import dump, save

    policy, notes = policy_of(checkpoint)
    for note in notes:
        click.echo(f"note: {note}", err=True)
    if out is None:
        click.echo(dump_yaml(dump(policy)).decode(), nl=False)
    else:
        save(policy, out)
