"""`draftgate control` as a user starts it, in its own process where signals matter."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftgate.control import state
from draftgate.cost.steps import Curve, StepCost
from draftgate.policy.policyset import load

POLICY = "draftgate: 1\nname: mine\nrule: exact\ndraft: {k: 6}\n"


def window(k: int, cond: float, at_s: float, rng: np.random.Generator) -> dict[str, Any]:
    """A window of 2,000 steps at 10 ms, 5% more for each drafted token."""
    drafts, kept = 2000 if k else 0, []
    for _ in range(k):
        kept.append(int(rng.binomial(kept[-1] if kept else drafts, cond)))
    return {
        "workload": "*", "policy": "mine", "start_s": at_s, "end_s": at_s + 1, "requests": 300, "steps": 2000,
        "covered": drafts, "drafted": drafts * k, "accepted": sum(kept), "committed": 2000 + sum(kept), "kept": kept,
        "reached": [drafts, *kept][:k], "offered": [drafts] * k, "seconds": 20.0 * (1 + 0.05 * k), "batch": 1.0,
        "judged": 0, "valid": 0, "latency_s": None, "errors": 0,
    }  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A policy file, a finished run, and metrics of drafts that are hardly kept."""
    run = tmp_path / "run"
    (run / "chat").mkdir(parents=True)
    cost = StepCost({1: Curve(1, tuple(0.01 * (1 + 0.05 * m) for m in range(9)), (0.0,) * 9, 9)})
    (run / "cost.json").write_text(json.dumps(cost.to_mapping()))
    positions = [{"survival": {"rate": 0.8 ** (i + 1)}} for i in range(6)]
    (run / "result.json").write_text(json.dumps({"workloads": [{"name": "chat", "trace": {"positions": positions}}]}))
    (tmp_path / "policy.yaml").write_text(POLICY)
    rng = np.random.default_rng(0)
    lines = [json.dumps(window(6, 0.3, 1000.0 + i, rng)) for i in range(3)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


WORDS = ("control", "--channel", "policy.yaml", "--metrics", "metrics.jsonl", "--run", "run/chat", "--seed", "0")


def lines(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def test_once_decides_writes_and_says_why(draftgate: Callable[..., Any], folder: Path) -> None:
    said = draftgate(*WORDS, "--once")
    assert (said.code, said.err) == (0, "")
    decisions = lines(said.out)
    assert [d["action"] for d in decisions] == ["change", "hold", "hold", "write", "stop"]
    assert "k=6 -> k=" in decisions[0]["reason"]
    assert load(folder / "policy.yaml").of().length.most < 6
    assert state.load(folder / "policy.yaml.state.json").damage is None


def test_a_second_start_goes_on_from_the_operators_policies(draftgate: Callable[..., Any], folder: Path) -> None:
    draftgate(*WORDS, "--once")
    base = state.load(folder / "policy.yaml.state.json").base
    draftgate(*WORDS, "--once")
    assert state.load(folder / "policy.yaml.state.json").base == base
    assert base is not None
    assert base["policies"][0]["draft"]["k"] == 6


def test_a_dry_run_writes_nothing(draftgate: Callable[..., Any], folder: Path) -> None:
    said = draftgate(*WORDS, "--once", "--dry-run")
    assert lines(said.out)[0]["action"] == "change"
    assert (folder / "policy.yaml").read_text() == POLICY
    assert {p.name for p in folder.iterdir()} == {"policy.yaml", "metrics.jsonl", "run"}


@pytest.mark.parametrize("on_exit", ["keep", "restore", "off"])
def test_what_is_left_in_force(draftgate: Callable[..., Any], folder: Path, on_exit: str) -> None:
    draftgate(*WORDS, "--once", "--on-exit", on_exit)
    k = load(folder / "policy.yaml").of().length.most
    assert {"keep": 0 < k < 6, "restore": k == 6, "off": k == 0}[on_exit]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("--run", "run/absent"), "is no workload of a finished run"),
        (("--controller", "pid"), "moves 'tau'"),
        (("--controller", "pid-article"), "moves tau"),
        (("--controller", "schedule"), "give --schedule"),
        (("--policy", "absent.yaml"), "cannot be read"),
        (("--channel", "http://127.0.0.1:1"), "needs --state"),
        (("--channel", "http://127.0.0.1:1", "--state", "s.json"), "needs --policy"),
        (("--interval", "soon"), "must be a time"),
        (("--candidate", "loose"), "has rule 'threshold-or-lossless'"),
        (("--floor", "0.4"), "floor"),
    ],
)
def test_wrong_input_is_one_line(
    draftgate: Callable[..., Any], folder: Path, change: tuple[str, ...], says: str
) -> None:
    said = draftgate(*WORDS, "--once", *change)
    assert said.code == 2
    assert says in said.err
    assert len(said.err.splitlines()) == 1


def test_goodput_needs_costs(draftgate: Callable[..., Any], folder: Path) -> None:
    said = draftgate("control", "--channel", "policy.yaml", "--metrics", "metrics.jsonl", "--once")
    assert (said.code, "give --run" in said.err) == (2, True)


def test_a_policy_that_drafts_nothing_cannot_be_controlled(draftgate: Callable[..., Any], folder: Path) -> None:
    (folder / "policy.yaml").write_text("draftgate: 1\nname: mine\nrule: exact\ndraft: {k: 0}\n")
    said = draftgate(*WORDS, "--once")
    assert (said.code, "drafts nothing" in said.err) == (2, True)


def start(folder: Path, *more: str) -> "subprocess.Popen[str]":
    words = [sys.executable, "-c", "from draftgate.cli import main; main()", *WORDS, "--interval", "0.02s", *more]
    return subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def feed(folder: Path, n: int, rng: np.random.Generator) -> None:
    """Windows under whatever the policy file says now."""
    for _ in range(n):
        k = load(folder / "policy.yaml").of().length.most
        with (folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(window(k, float(rng.uniform(0, 0.9)), time.time(), rng)) + "\n")


def wait_for(process: "subprocess.Popen[str]", action: str) -> dict[str, Any]:
    assert process.stdout is not None
    for line in process.stdout:
        decision: dict[str, Any] = json.loads(line)
        if decision["action"] == action:
            return decision
    raise AssertionError(f"ended without '{action}': {process.stderr and process.stderr.read()}")


@pytest.mark.parametrize(("number", "on_exit", "k"), [(signal.SIGTERM, "restore", 6), (signal.SIGINT, "off", 0)])
def test_a_signal_ends_it_as_chosen(folder: Path, number: int, on_exit: str, k: int) -> None:
    with start(folder, "--on-exit", on_exit) as process:
        wait_for_first(process, folder)
        feed(folder, 5, np.random.default_rng(0))
        process.send_signal(number)
        assert wait_for(process, "stop")["reason"] == f"{on_exit} on exit"
        assert process.wait(timeout=60) == 0
    assert load(folder / "policy.yaml").of().length.most == k


def wait_for_first(process: "subprocess.Popen[str]", folder: Path) -> None:
    """Until it controls: the state file is there."""
    while not (folder / "policy.yaml.state.json").exists():
        assert process.poll() is None
        time.sleep(0.01)


def test_killed_at_any_moment_its_files_are_whole(folder: Path) -> None:
    """SIGKILL at random moments of a loop that decides all the time."""
    rng, moments = np.random.default_rng(2), random.Random(3)
    for _ in range(4):
        with start(folder) as process:
            wait_for_first(process, folder)
            until_s = time.monotonic() + moments.uniform(0.05, 0.4)
            while time.monotonic() < until_s:
                feed(folder, 1, rng)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        loaded = state.load(folder / "policy.yaml.state.json")
        assert loaded.damage is None
        assert loaded.workloads["*"]["breaker"]["phase"] in ("closed", "open", "half-open")
        assert load(folder / "policy.yaml").of().name == "mine"
    left = {p.name for p in folder.iterdir() if not p.name.startswith(".")}
    assert left <= {"policy.yaml", "metrics.jsonl", "run", "policy.yaml.state.json", "policy.yaml.state.json.lease"}
