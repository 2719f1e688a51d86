"""What happens before a verb does its work: help, imports, and wrong words."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from draftgate.cli import _VERBS, main, options
from draftgate.cli.reference import reference
from draftgate.errors import EngineError

_HEAVY = ("numpy", "rich", "scipy", "pyarrow", "jinja2", "matplotlib", "yaml", "xllamacpp", "gguf")
_ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("words", [[], *([verb] for verb in _VERBS), ["models", "pull"]])
def test_help(words, draftgate):
    said = draftgate(*words, "--help")
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith(f"Usage: {' '.join(['draftgate', *words])}")


@pytest.mark.parametrize("code", ["import draftgate", "from draftgate.cli import main; main(['--help'])"])
def test_starting_imports_nothing_heavy(code):
    look = f"import sys\ntry:\n    {code}\nexcept SystemExit: pass\nprint([m for m in {_HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_help_of_a_verb_imports_nothing_heavy_either():
    look = (
        f"import sys, click\nfrom draftgate.cli import _VERBS, cli\nctx = click.Context(cli)\n"
        f"for v in _VERBS: cli.get_command(ctx, v).get_help(click.Context(cli.get_command(ctx, v)))\n"
        f"print([m for m in {_HEAVY} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_without_words_the_help_is_shown_and_nothing_done(draftgate):
    said = draftgate()
    assert said.code == 2
    assert "Commands:" in said.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tuen"], "no such command 'tuen'; did you mean 'tune'?"),
        (["tune", "--workloda", "x"], "--workload"),
        (["models", "pul"], "pull"),
        (["tune", "-w", "code-edti"], "did you mean 'code-edit'?"),
        (["tune", "-w", "no.jsonl"], "no.jsonl: cannot read the workload"),
        (["tune", "--budget", "soon"], "must be a time such as 90s, 10m or 1h but got 'soon'"),
        (["tune", "--budget", "0"], "must be a time"),
        (["tune", "--top-p", "2"], "--top-p"),
        (["bench", "-w", "chat"], "--arm"),
        (["bench", "-w", "chat", "-a", "lose"], "did you mean 'loose'?"),
        (["bench", "-w", "chat", "-a", "no.yaml"], "no.yaml: cannot be read"),
        (["replay", "nowhere", "-p", "code"], "nowhere: is no trace"),
        (["export", "code", "--to", "lamacpp"], "did you mean 'llamacpp'?"),
        (["export", "code", "--to", "llamacpp"], "no threshold"),
        (["models", "pull", "smollm2-135"], "did you mean 'smollm2-135m'?"),
        (["models", "path", "smollm2-135m"], "draftgate models pull smollm2-135m"),
    ],
)
def test_wrong_input_is_one_line_and_exit_2(words, message, draftgate):
    said = draftgate(*words)
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("draftgate: ")
    assert said.err.count("\n") == 1
    assert message in said.err


def test_a_missing_model_says_how_to_get_it_and_fetches_nothing(tmp_path):
    environment = {**os.environ, "DRAFTGATE_MODELS": str(tmp_path / "models")}
    words = ["tune", "-w", "chat", "--out", str(tmp_path / "run")]
    code = f"from draftgate.cli import main; main({words!r})"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, stdin=subprocess.DEVNULL
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "draftgate: smollm2-135m: not on this machine yet; run: draftgate models pull smollm2-135m\n"
    assert not (tmp_path / "models").exists()
    assert not (tmp_path / "run").exists()


def _fail(*names: object) -> None:
    raise EngineError("logits are not finite\nat token 3")


def test_an_engine_that_fails_is_exit_1_and_one_line(draftgate, monkeypatch):
    monkeypatch.setattr(options, "open_engine", _fail)
    said = draftgate("tune", "-w", "chat")
    assert (said.code, said.err) == (1, "draftgate: logits are not finite at token 3\n")


def test_debug_shows_where_it_failed(draftgate, monkeypatch):
    monkeypatch.setattr(options, "open_engine", _fail)
    monkeypatch.setenv("DRAFTGATE_DEBUG", "1")
    with pytest.raises(EngineError):
        main(["tune", "-w", "chat"])


def test_a_reader_that_goes_away_is_no_traceback():
    code = "from draftgate.cli import main; main(['--help'])"
    command = f'"{sys.executable}" -c "{code}" | true'
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert "Traceback" not in done.stderr


def test_the_reference_is_current():
    written = (_ROOT / "docs" / "cli.md").read_text()
    assert written == reference(), "run: python -m draftgate.cli.reference > docs/cli.md"
    for verb in _VERBS:
        assert f"## draftgate {verb}\n" in written
    assert "## draftgate models pull\n" in written
