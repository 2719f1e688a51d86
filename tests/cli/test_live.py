"""`draftgate live`, for a second a phase."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from draftgate.policy.policyset import load


def test_phases_are_served_and_every_decision_is_said(draftgate: Callable[..., Any], tmp_path: Path) -> None:
    phases = ("-w", "code-edit", "-w", "chat", "--phase", "1s")
    said = draftgate("live", *phases, "--out", tmp_path / "out")
    assert said.code == 0
    lines = [json.loads(line) for line in said.out.splitlines()]
    assert [line["workload"] for line in lines if line["action"] == "phase"] == ["code-edit", "chat"]
    assert all(line["tokens_per_s"] > 0 for line in lines if line["action"] == "phase")
    assert any(line["action"] in ("hold", "change", "open") for line in lines)
    assert lines[-1]["action"] == "stop"
    assert load(tmp_path / "out" / "policy.yaml").of().name == "exact"
    served = [json.loads(line) for line in (tmp_path / "out" / "requests.jsonl").read_text().splitlines()]
    assert {row["workload"] for row in served} == {"code-edit", "chat"}


def test_a_workload_that_does_not_exist_is_refused(draftgate: Callable[..., Any]) -> None:
    said = draftgate("live", "-w", "code-edt")
    assert said.code == 2
    assert "did you mean 'code-edit'?" in said.err
