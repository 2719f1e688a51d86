"""The command line with the fake engine behind it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from draftgate.cli import main, options
from draftgate.engines.fake import FakeEngine
from draftgate.experiment import plan


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str


@pytest.fixture
def draftgate(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Said]:
    """Runs a command line in an empty folder: (words...) -> exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plan, "_SEARCHED", 200)
    monkeypatch.setattr(options, "open_engine", lambda *names: FakeEngine())
    monkeypatch.setenv("DRAFTGATE_MODELS", str(tmp_path / "models"))
    for name in ("DRAFTGATE_DEBUG", "COLUMNS", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)

    def run(*words: object) -> Said:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main([str(word) for word in words])
        said = capsys.readouterr()
        return Said(stopped.value.code or 0, said.out, said.err)

    return run
