from typing import Any

import click


@click.group()
def command() -> None:
    """List, fetch and locate models.

    \b
    draftgate models list
    draftgate models pull smollm2-135m
    draftgate models path smollm2-135m
    """


@command.command("list")
def list_models() -> None:
    """Models that draftgate can fetch, and where they are."""
    from rich.table import Table

    from draftgate.cli.screen import result_console
    from draftgate.engines.llamacpp.models import listing

    table = Table(box=None, pad_edge=False)
    for name in ("name", "role", "size", "here", "licence"):
        table.add_column(name, no_wrap=True)
    table.add_column("about", overflow="fold")
    for s in listing():
        m = s.model
        table.add_row(m.name, m.role, f"{m.size_bytes / 1e6:.0f} MB", "yes" if s.present else "no", m.licence, m.note)
    result_console().print(table)


@command.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
def pull(names: tuple[str, ...]) -> None:
    """Fetch models, or make them from others; what is already here is only checked."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

    from draftgate.engines.llamacpp.models import pull as fetch

    columns: tuple[Any, ...] = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        for name in names:
            task = bars.add_task(name, total=None)

            def show(done: int, total: int | None, task: TaskID = task) -> None:
                bars.update(task, completed=done, total=total)

            click.echo(fetch(name, show))


@command.command()
@click.argument("name")
def path(name: str) -> None:
    """Print where a model is."""
    from draftgate.engines.llamacpp.models import resolve

    click.echo(resolve(name))
