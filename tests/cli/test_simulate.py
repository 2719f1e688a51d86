import json
from collections.abc import Callable
from pathlib import Path

import pytest

from draftgate.cli import cli
from draftgate.errors import ConfigError, TraceError

RUN = Path(__file__).parents[1] / "data" / "lookup-run"


@pytest.fixture
def simulate(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs the verb on the recorded run: (words...) -> stdout."""

    def run(*words: object, trace: Path = RUN) -> str:
        cli.main(["simulate", str(trace), *map(str, words)], standalone_mode=False)
        return capsys.readouterr().out

    return run


def test_a_scenario_is_a_row(simulate: Callable[..., str]) -> None:
    out = simulate("--clock", 0.14, "--requests", 9000, "--period", 9000)
    title, names, row = out.splitlines()
    assert "goodput on code-edit, chat: modelled, n = 9,000 each" in title
    assert names.split()[:3] == ["scenario", "time", "/"]
    assert row.split()[0] == "draft-swap"
    assert row.endswith(" s")


def test_figures_are_one_json_object(simulate: Callable[..., str]) -> None:
    out = simulate("-s", "steady", "-s", "step", "--requests", 3000, "--controller", "pid", "--knob", "k", "--json")
    found = json.loads(out)["scenarios"]
    assert list(found) == ["steady", "step"]
    steady = found["steady"]
    assert steady["time_over_off"] == pytest.approx(
        steady["runs"]["controlled"]["seconds"] / steady["runs"]["controlled"]["tokens"]
        / (steady["runs"]["off"]["seconds"] / steady["runs"]["off"]["tokens"])
    )  # fmt: skip
    assert steady["windows"] > 0
    assert steady["off_after_s"] == []


def test_all_scenarios_can_be_named_at_once(simulate: Callable[..., str]) -> None:
    found = json.loads(simulate("-s", "all", "--requests", 300, "--json", "--workload", "code-edit"))["scenarios"]
    assert len(found) >= 15


def test_a_threshold_policy_is_steered_by_its_threshold(simulate: Callable[..., str], tmp_path: Path) -> None:
    policy = tmp_path / "loose.yaml"
    policy.write_text("{draftgate: 1, name: loose, rule: threshold-or-lossless, tau: 0.6, draft: {k: 4}}\n")
    words = ("-s", "steady", "--requests", 6000, "--clock", 0.14, "--policy", policy, "--json")
    found = json.loads(simulate(*words, "--controller", "pid", "--knob", "tau", "--target", 0.9))
    assert found["scenarios"]["steady"]["actions"]["change"] > 3


def test_what_is_wrong_is_said(simulate: Callable[..., str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'draft-swap'"):
        simulate("-s", "draftswap")
    with pytest.raises(TraceError, match="holds no trace"):
        simulate(trace=tmp_path)
    with pytest.raises(ConfigError, match="no workload"):
        simulate("--workload", "poems")
