"""A plant of real recordings: lookup drafts on code edits, where they pay, and on chat, where they do not."""

from pathlib import Path

import pytest

from draftgate.simulate.load import load_plant
from draftgate.simulate.plant import Plant

RUN = Path(__file__).parents[1] / "data" / "lookup-run"


@pytest.fixture(scope="session")
def run() -> Path:
    return RUN


@pytest.fixture(scope="session")
def plant() -> Plant:
    """On a machine seven times as fast as the one it was recorded on, so that a window takes half a minute."""
    return load_plant(RUN, workloads=("code-edit", "chat"), clock=0.14)
