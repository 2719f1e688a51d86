"""A run that is killed at any moment and resumed ends as one that was not."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftgate.trace.store import TraceStore

_DRIVER = Path(__file__).with_name("killed.py")
_TARGETED = [
    "os.rename run.json:1",
    "os.rename cost.json:1",
    "open .requests-:3",  # between the two Parquet files of a request
    "os.rename requests-:2",
    "fsync .steps-:1",
    "os.rename arms.json:1",
    "goodput.yaml:1",
    "open live.jsonl:1",
    "fsync live.jsonl:1",  # in the middle of a JSON line
    "os.truncate live.jsonl:1",
    "fsync live.jsonl:9",
    "fsync live.jsonl:5",
    "os.rename result.json:1",
]


def _drive(run: Path, *moments: str) -> list[str]:
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(_DRIVER), str(run), *moments], capture_output=True, text=True, check=True, env=environment
    )
    told = json.loads(done.stdout)
    assert told["status"] == 0, done.stderr
    died: list[str] = told["died"]
    return died


def _outcome(run: Path) -> dict[str, Any]:
    """Everything that a run leaves, but for where it lies."""
    (folder,) = (p for p in run.iterdir() if p.is_dir())
    requests, steps = TraceStore(folder / "trace").tables()
    files = [run / name for name in ("result.json", "cost.json", "run.json")]
    files += [folder / "arms.json", folder / "live.jsonl"]
    policies = {p.name: p.read_text() for p in (folder / "policies").glob("*.yaml")}
    read = {path.name: path.read_text().replace(str(run), "RUN") for path in files}
    return read | {"requests": requests.to_pylist(), "steps": steps.to_pylist(), "policies": policies}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory) -> dict[str, Any]:
    run = tmp_path_factory.mktemp("unbroken") / "run"
    assert _drive(run) == []
    return _outcome(run)


def _random_moments(seed: int) -> list[str]:
    return [f":{n}" for n in np.random.default_rng(seed).integers(1, 60, 14)]


@pytest.mark.parametrize("moments", [_TARGETED, _random_moments(0)], ids=["targeted", "random"])
def test_killed_and_resumed_is_the_same_as_unbroken(moments, unbroken, tmp_path):
    died = _drive(tmp_path / "run", *moments)
    assert len(died) >= 10
    assert _outcome(tmp_path / "run") == unbroken


def test_the_unbroken_run_recommends_drops_and_repeats(unbroken):
    """So that the comparison above is about something."""
    result = json.loads(unbroken["result.json"])["workloads"][0]
    blocks = [json.loads(line) for line in unbroken["live.jsonl"].splitlines()]
    assert result["verdict"] == "faster"
    assert len({(b["round"], b["prompt"]) for b in blocks}) == len(blocks)
    assert {b["round"] for b in blocks} == {0, 1, 2, 3}
    assert {len(b["runs"]) for b in blocks} == {5, 7}
