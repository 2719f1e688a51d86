import click


@click.command()
@click.argument("policy", metavar="PRESET|POLICY.yaml")
@click.option("--to", "engine", required=True, metavar="ENGINE", help="llamacpp")
@click.option("--draft", default="lookup", show_default=True, metavar="lookup|PATH", help="Where drafts come from.")
def command(policy: str, engine: str, draft: str) -> None:
    """Turn a policy into an engine's own settings, with a warning for what the engine cannot do.

    \b
    draftgate export runs/tune-1/code-edit/policies/goodput.yaml --to llamacpp
    """
    from draftgate.engines.export import EXPORTERS
    from draftgate.errors import ConfigError, nearest
    from draftgate.policy.file import resolve

    if engine not in EXPORTERS:
        raise ConfigError(f"cannot export to '{engine}'; {nearest(engine, EXPORTERS)}")
    exported = EXPORTERS[engine](resolve(policy), draft)
    for note in exported.notes:
        click.echo(f"note: {note}", err=True)
    click.echo(exported.text)
