import json
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from draftgate.engines.base import Completion, Request, Sampling
from draftgate.engines.fake import FakeEngine
from draftgate.errors import ConfigError, TraceError
from draftgate.experiment.arms import BASELINE, Arm
from draftgate.experiment.compare import decide
from draftgate.experiment.live import Block, arm_speedup, run_blocks
from draftgate.experiment.rundir import BlockLog
from draftgate.experiment.watch import Silent
from draftgate.policy.length import Fixed
from draftgate.policy.policy import Policy
from draftgate.quality.gate import Gate
from draftgate.stats.verdict import Verdict, compare

FAST, SLOW = Arm(Policy("k3", length=Fixed(3)), "given"), Arm(Policy("slow", length=Fixed(40)), "given")
ARMS = [BASELINE, FAST, Arm(Policy("k1", length=Fixed(1)), "given")]


def requests_of(engine: FakeEngine, workload, max_tokens: int = 24) -> list[Request]:
    return [engine.encode(p, workload.name, max_tokens, Sampling()) for p in workload.prompts]


def blocks_of(engine, requests, arms, path: Path, budget_s=1e9, seed=0, **kwargs) -> list[Block]:
    return run_blocks(engine, requests, arms, BlockLog(path), budget_s, seed, Silent(), clock=engine.clock, **kwargs)


def order(blocks: list[Block]) -> list[tuple[str, tuple[str, ...]]]:
    return [(b.prompt, tuple(r.arm for r in b.runs)) for b in blocks]


def test_order_is_random_in_each_block_and_reproducible(engine, small_workload, tmp_path):
    requests = requests_of(engine, small_workload(12))
    first, again, other = (
        blocks_of(FakeEngine(), requests, ARMS, tmp_path / f"{i}.jsonl", rounds=1, seed=seed)
        for i, seed in enumerate((3, 3, 4))
    )
    assert order(first) == order(again) != order(other)
    assert {b.prompt for b in first} == {r.id for r in requests}
    assert [b.prompt for b in first] != [r.id for r in requests]
    assert len({arms for _, arms in order(first)}) >= 4  # of six orders of three arms


def test_every_arm_runs_once_in_each_block_and_each_round_covers_all_prompts(engine, small_workload, tmp_path):
    requests = requests_of(engine, small_workload(8))
    blocks = blocks_of(engine, requests, [BASELINE, FAST], tmp_path / "log", rounds=2, alpha=1e-6)
    assert Counter((b.round, b.prompt) for b in blocks) == Counter((r, q.id) for r in range(2) for q in requests)
    assert all(sorted(r.arm for r in b.runs) == ["k3", "none"] for b in blocks)


def test_a_slower_arm_is_dropped_after_twelve_blocks_and_its_figures_stay(small_workload, tmp_path):
    engine = FakeEngine(token_s=0.02)
    requests = requests_of(engine, small_workload(18))
    blocks = blocks_of(engine, requests, [BASELINE, FAST, SLOW], tmp_path / "log", rounds=1)
    present = [b.run("slow") is not None for b in blocks]
    assert all(present[:12])
    assert not any(present[12:])
    assert compare(arm_speedup(blocks, "slow", 0.05, 2)) is Verdict.WORSE


def test_an_arm_that_is_not_slower_is_never_dropped(engine, small_workload, tmp_path):
    requests = requests_of(engine, small_workload(18))
    same = Arm(Policy("same", length=Fixed(0)), "given")
    blocks = blocks_of(engine, requests, [BASELINE, same], tmp_path / "log", rounds=2)
    assert all(b.run("same") for b in blocks)


def test_a_brief_arm_runs_on_the_first_prompts_only(engine, small_workload, tmp_path):
    requests = requests_of(engine, small_workload(18))
    same = Arm(Policy("same", length=Fixed(0)), "given")
    blocks = blocks_of(engine, requests, [BASELINE, FAST, same], tmp_path / "log", rounds=1, brief=["same"])
    assert [b.run("same") is not None for b in blocks] == [True] * 12 + [False] * 6


def test_nothing_more_is_measured_when_only_none_is_left(small_workload, tmp_path):
    engine = FakeEngine(token_s=0.02)
    blocks = blocks_of(engine, requests_of(engine, small_workload(18)), [BASELINE, SLOW], tmp_path / "log")
    assert len(blocks) == 12


def test_none_alone_can_be_measured(engine, small_workload, tmp_path):
    blocks = blocks_of(engine, requests_of(engine, small_workload(6)), [BASELINE], tmp_path / "log")
    assert len(blocks) == 6


def test_settled_arms_end_the_run_after_a_whole_round(small_workload, tmp_path):
    engine = FakeEngine(token_s=0.0)
    requests = requests_of(engine, small_workload(18), max_tokens=64)
    assert len(blocks_of(engine, requests, [BASELINE, FAST], tmp_path / "log", rounds=4)) == 18


@pytest.mark.parametrize("budget_s", [0.0, 0.5, 3.0, 6.0])
def test_the_budget_is_passed_by_one_block_at_most(budget_s, engine, small_workload, tmp_path):
    blocks = blocks_of(engine, requests_of(engine, small_workload(18)), ARMS, tmp_path / "log", budget_s)
    assert sum(b.seconds for b in blocks[:-1]) < budget_s or len(blocks) == 3
    assert engine.clock() == sum(b.seconds for b in blocks)


def test_blocks_in_the_log_count_and_are_not_run_again(engine, small_workload, tmp_path):
    requests = requests_of(engine, small_workload(12))
    whole = blocks_of(FakeEngine(), requests, ARMS, tmp_path / "whole", budget_s=6.0)
    blocks_of(engine, requests, ARMS, tmp_path / "cut", budget_s=2.0)
    cut = blocks_of(FakeEngine(), requests, ARMS, tmp_path / "cut", budget_s=6.0)
    assert cut == whole
    assert (tmp_path / "cut").read_bytes() == (tmp_path / "whole").read_bytes()


def test_an_end_token_first_means_no_step_and_no_speed(make_blocks, make_run):
    blocks = make_blocks({"k3": [2.0] * 10})
    assert arm_speedup(blocks, "k3", 0.05, 1).n == 10
    ended = replace(blocks[0], prompt="ended", runs=(make_run("none", 0.0, [0]), make_run("k3", 0.0, [0])))
    assert arm_speedup([*blocks, ended], "k3", 0.05, 1) == arm_speedup(blocks, "k3", 0.05, 1)


class _Ends(FakeEngine):
    """Ends one request at its first token, as the loop reports it: one token, no step."""

    def generate(self, requests, policy, record=False) -> list[Completion]:
        done = super().generate(requests, policy, record)
        return [replace(d, tokens=(0,), steps=(), decode_s=0.0) if d.request.id == "p0" else d for d in done]


def test_a_request_that_ends_at_once_passes_through_the_live_path(small_workload, tmp_path):
    engine = _Ends()
    blocks = blocks_of(engine, requests_of(engine, small_workload(10)), ARMS, tmp_path / "log", rounds=1)
    assert arm_speedup(blocks, "k3", 0.05, 2).n == 9


def test_repeats_of_a_prompt_are_averaged_and_not_counted_as_prompts(make_blocks):
    speeds = np.random.default_rng(1).lognormal(0.0, 0.3, 12)
    once = make_blocks({"k3": speeds.tolist()})
    four = [replace(b, round=r) for r in range(4) for b in once]
    assert arm_speedup(four, "k3", 0.05, 1).n == 12
    assert arm_speedup(four, "k3", 0.05, 1).low == pytest.approx(arm_speedup(once, "k3", 0.05, 1).low)


def test_what_the_fake_engine_measures_does_not_depend_on_what_ran_before(engine, small_workload):
    """The resume tests rest on this."""
    first, second = requests_of(engine, small_workload(2))
    fresh = FakeEngine().generate([second], FAST.policy)
    for policy in (SLOW.policy, FAST.policy, FAST.policy):
        engine.generate([first], policy)
        engine.generate([second], policy)
    assert engine.generate([second], FAST.policy) == fresh
    assert FakeEngine().generate([second], SLOW.policy)[0].prefill_s != fresh[0].prefill_s  # noise differs by policy


def test_nothing_measured_is_none(make_blocks):
    interval = arm_speedup(make_blocks({"k3": [2.0]}), "other", 0.05, 1)
    assert (interval.estimate, interval.low, interval.n) == (None, None, 0)


def test_two_arms_of_one_name_are_refused(engine, small_workload, tmp_path):
    with pytest.raises(ConfigError, match="two arms are called 'k3'"):
        blocks_of(engine, requests_of(engine, small_workload(6)), [BASELINE, FAST, FAST], tmp_path / "log")


@pytest.mark.parametrize("line", ['{"prompt": "p0"}', '{"prompt": "p0", "round": 0, "seconds": 1, "runs": [{"x": 1}]}'])
def test_a_block_of_another_version_is_refused_by_name(line, engine, small_workload, tmp_path):
    (tmp_path / "live.jsonl").write_text(line + "\n")
    with pytest.raises(TraceError, match=r"live\.jsonl.*remove the file"):
        blocks_of(engine, requests_of(engine, small_workload(6)), ARMS, tmp_path / "live.jsonl")


def test_a_log_holds_no_nan(engine, small_workload, tmp_path):
    blocks_of(engine, requests_of(engine, small_workload(6)), ARMS, tmp_path / "log", rounds=1)
    for line in (tmp_path / "log").read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)


def test_identical_arms_are_rarely_called_faster(small_workload, tmp_path, monkeypatch):
    """A/A through the whole live path: 60 runs of two arms that do just what none does, under heavy noise."""
    monkeypatch.setattr(os, "fsync", lambda file: None)
    arms = [BASELINE, *(Arm(Policy(name, length=Fixed(0)), "given") for name in ("a", "b"))]
    false = 0
    for seed in range(60):
        engine = FakeEngine(seed, noise=0.5)
        requests = requests_of(engine, small_workload(16), max_tokens=3)
        blocks = blocks_of(engine, requests, arms, tmp_path / f"{seed}.jsonl", seed=seed, rounds=4)
        looks = [decide(arms, blocks[:n], 0.05, False, Gate(None)).verdict for n in range(8, len(blocks) + 1, 4)]
        false += "faster" in looks
    assert false <= 3  # 5% of 60
