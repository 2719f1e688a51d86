import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from draftgate.cli.options import duration

if TYPE_CHECKING:
    from draftgate.control.assemble import Options
    from draftgate.simulate.plant import Plant
    from draftgate.simulate.run import Outcome, Pace

_CONTROLLERS = ("goodput", "pid", "pid-article")
_COLUMNS = ("time / off", "time / on", "regret", "windows", "changes", "opened", "off after")


@click.command()
@click.argument("trace", metavar="TRACE|RUN", type=click.Path(path_type=Path))
@click.option(
    "--scenario", "-s", "scenarios", multiple=True, default=("draft-swap",), show_default=True, metavar="NAME",
    help="What happens; repeatable, or 'all'.",
)  # fmt: skip
@click.option("--controller", default="goodput", show_default=True, type=click.Choice(_CONTROLLERS))
@click.option("--policy", metavar="PRESET|FILE", help="Start from.  [default: exact, with the longest recorded draft]")
@click.option("--knob", default="k", show_default=True, type=click.Choice(["tau", "k", "cut"]), help="For pid.")
@click.option("--target", default=0.60, show_default=True, type=click.FloatRange(0, 1), help="Acceptance pid holds.")
@click.option(
    "--workload", "workloads", multiple=True, metavar="NAME",
    help="Workloads of a run, first to last in the scenario.  [default: all, those that drafts help most first]",
)  # fmt: skip
@click.option("--cost", type=click.Path(path_type=Path), help="cost.json of a run; found by itself in a run directory.")
@click.option("--clock", default=1.0, show_default=True, type=click.FloatRange(1e-4, 1e4), help="Factor on seconds.")
@click.option("--requests", default=100_000, show_default=True, type=click.IntRange(1), help="To serve.")
@click.option("--period", default=30_000, show_default=True, type=click.IntRange(30), help="A scenario's, in requests.")
@click.option("--window", "size", default=300, show_default=True, type=click.IntRange(1), help="Requests of a window.")
@click.option("--window-time", default="60s", show_default=True, type=duration, metavar="TIME", help="Longest window.")
@click.option("--interval", default="10s", show_default=True, type=duration, metavar="TIME", help="Between looks.")
@click.option("--shadows", is_flag=True, help="The engine scores its drafts on finished texts while off.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0))
@click.option("--json", "as_json", is_flag=True, help="Print what each run came to as one JSON object.")
def command(trace: Path, scenarios: tuple[str, ...], policy: str | None, as_json: bool, **given: Any) -> None:
    """Try the control loop on recorded drafts and measured step costs, without an engine.

    \b
    draftgate simulate runs/first --scenario draft-swap
    draftgate simulate runs/first --workload code-edit --workload chat -s phased -s burst --requests 1000000
    draftgate simulate runs/first/code-edit/trace -s all --controller pid --knob k --json

    Engine seconds over those of never drafting and of always drafting; below 1 is faster. Regret is the share of the
    time that the best setting of each moment would have saved. The figures are modelled, from measured step costs.
    """
    from draftgate.policy.file import resolve
    from draftgate.simulate.load import load_plant
    from draftgate.simulate.run import Pace

    chosen = None if policy is None else resolve(policy)
    plant = load_plant(trace, chosen, given["workloads"], given["cost"], given["clock"])
    pace = Pace(given["period"], given["interval"], given["size"], given["window_time"], given["shadows"])
    found = {name: _simulated(plant, name, _options(plant, given), pace, given) for name in _named(scenarios)}
    if as_json:
        click.echo(json.dumps({"requests": given["requests"], "scenarios": found}, indent=1, allow_nan=False))
    else:
        _print(
            found, f"{given['controller']} on {', '.join(plant.workloads)}: modelled, n = {given['requests']:,} each"
        )


def _named(scenarios: tuple[str, ...]) -> tuple[str, ...]:
    from draftgate.simulate.scenario import SCENARIOS, scenario_named

    if scenarios == ("all",):
        return tuple(SCENARIOS)
    for name in scenarios:
        scenario_named(name)
    return scenarios


def _options(plant: "Plant", given: dict[str, Any]) -> "Options":
    from draftgate.control.assemble import Options

    return Options(given["controller"], cost=plant.cost, knob=given["knob"], target=given["target"])


def _simulated(plant: "Plant", name: str, options: "Options", pace: "Pace", given: dict[str, Any]) -> dict[str, Any]:
    from draftgate.simulate.run import Delays, compared
    from draftgate.simulate.scenario import scenario_named

    delays = Delays()
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "state.json"
        ran = compared(plant, scenario_named(name), options, given["requests"], pace, given["seed"], state, delays)
    return _figures(ran) | {"off_after_s": delays.seconds}


def _figures(ran: "dict[str, Outcome]") -> dict[str, Any]:
    ours = ran["controlled"]
    ratios = {f"time_over_{name}": ours.token_s / ran[name].token_s for name in ("off", "on")}
    return (
        ratios
        | {"regret": ours.regret, "windows": ours.windows, "actions": dict(ours.actions)}
        | {"runs": {name: outcome.to_mapping() for name, outcome in ran.items()}}
    )


def _print(found: dict[str, dict[str, Any]], title: str) -> None:
    from rich.table import Table

    from draftgate.cli.screen import result_console

    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("scenario")
    for name in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for name, row in found.items():
        after, actions = row["off_after_s"], row["actions"]
        table.add_row(
            name,
            f"{row['time_over_off']:.3f}",
            f"{row['time_over_on']:.3f}",
            f"{row['regret']:.1%}",
            str(row["windows"]),
            str(actions.get("change", 0)),
            str(actions.get("open", 0)),
            f"{max(after):.0f} s" if after else "-",
        )
    result_console().print(table)
