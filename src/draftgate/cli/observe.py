from pathlib import Path

import click

_OUT = click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Write it there.  [default: stdout]")


@click.group()
def command() -> None:
    """Dashboard, alert rules and the list of metrics for `draftgate control --metrics-port`.

    \b
    draftgate observe alerts --out /etc/prometheus/draftgate.yml
    draftgate observe dashboard --out draftgate.json
    """


@command.command()
@_OUT
def dashboard(out: Path | None) -> None:
    """A Grafana dashboard as JSON, to import or to provision."""
    from draftgate.observe.grafana import dashboard as made

    _write(made(), out)


@command.command()
@click.option("--job", default="draftgate", show_default=True, metavar="NAME", help="Scrape job of the controllers.")
@click.option("--structured", metavar="REGEX", help="Workloads whose outputs must follow a format.  [default: by name]")
@click.option("--code-floor", type=float, metavar="SHARE", help="Least valid share of the others.  [default: 0.95]")
@click.option("--structured-floor", type=float, metavar="SHARE", help="Least valid share of these.  [default: 0.98]")
@_OUT
def alerts(out: Path | None, **given: str | float | None) -> None:
    """Alert rules for Prometheus."""
    from draftgate.observe.alerts import Choices, rules

    chosen = {name: value for name, value in given.items() if value is not None}
    _write(rules(Choices(**chosen)), out)  # type: ignore[arg-type]


@command.command()
@_OUT
def metrics(out: Path | None) -> None:
    """Every metric with its labels and what it means, as Markdown."""
    from draftgate.observe.words import markdown

    _write(markdown().encode(), out)


def _write(data: bytes, out: Path | None) -> None:
    from draftgate.files import write_atomic

    if out is None:
        click.echo(data, nl=False)
    else:
        write_atomic(out, data)
