"""The command line: one file a verb, loaded when it is called, so that --help stays fast."""

import importlib
import os
import sys
from collections.abc import Sequence

import click

import draftgate
from draftgate.errors import DraftgateError, nearest

__all__ = ["cli", "main"]

_VERBS = {
    "tune": "Measure, search offline, prove live, and recommend, for each workload.",
    "bench": "Run arms side by side on a workload and compare them with no speculation.",
    "check": "Check outputs from anywhere: syntax, JSON Schema, tool calls, tests.",
    "replay": "Predict policies from a recorded trace, without an engine.",
    "export": "Turn a policy into an engine's own settings.",
    "import": "Read a checkpoint's acceptance settings as a policy.",
    "control": "Keep a running engine on the setting that pays, and off while none does.",
    "live": "Watch the control loop steer an engine of this process through phases of load.",
    "simulate": "Try the control loop on recorded drafts under drift, without an engine.",
    "observe": "Print the dashboard, alert rules and metrics of a controller.",
    "models": "List, fetch and locate models.",
}


_MODULES = {"import": "import_"}  # names that are Python keywords


class _Verbs(click.Group):
    """Imports a verb's module only when that verb runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        if cmd_name not in _VERBS:
            raise click.UsageError(f"no such command '{cmd_name}'; {nearest(cmd_name, _VERBS)}", ctx)
        command: click.Command = importlib.import_module(f"draftgate.cli.{_MODULES.get(cmd_name, cmd_name)}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_VERBS.items()))


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(draftgate.__version__, prog_name="draftgate")
def cli() -> None:
    """Find, prove and keep the speculative-decoding settings that pay on your workload.

    \b
    draftgate models pull smollm2-135m           a small model to try it with
    draftgate tune --workload code-edit          the whole job on one workload
    draftgate tune --workload mine.jsonl --target model.gguf --budget 10m

    Exit codes: 0 ok, 1 failed, 2 wrong input, 3 inconclusive, 130 interrupted. DRAFTGATE_DEBUG=1 shows tracebacks.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; every expected error is one line on stderr and an exit code.

    Args:
        arguments: words after the program's name; None reads the command line.
    """
    try:
        code = cli(arguments, prog_name="draftgate", standalone_mode=False)
    except DraftgateError as error:
        if os.environ.get("DRAFTGATE_DEBUG"):
            raise
        code = _fail(str(error), error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        code = error.exit_code
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        hint = f" (see: {context.command_path} --help)" if context else ""
        code = _fail(error.format_message() + hint, error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        code = _fail("interrupted", 130)
    except BrokenPipeError:  # the reader of our output went away, as in: draftgate models list | head -1
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    sys.exit(code)


def _fail(message: str, code: int) -> int:
    click.echo(f"draftgate: {' '.join(message.splitlines())}", err=True)
    return code
