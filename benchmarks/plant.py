# ruff: noqa: E402 (threads are limited before numpy is imported)
"""The plant simulator: how fast, in how much memory, and whether the control loop keeps its promises on it.

python benchmarks/plant.py [speed] [memory] [promises] [opens] [detection] [decision]
    [--requests 1000000] [--windows 30000]

Without words all parts run, which takes half an hour. Drafts and step costs are those recorded in
tests/data/lookup-run: SmolLM2-135M on two cores, lookup drafts on code edits (they pay 1.49 times) and on chat (they do
not pay).

speed      requests a second, against a plain Python loop over steps in the same run
memory     resident memory after a tenth of the requests and after all of them: simulated, and read from a file
promises   each scenario: never slower than 1.02 times the better of always off and always on; on phases, within 10% of
           the best setting of each moment
opens      openings of the breaker in steady traffic that pays: at most one in 10,000 windows
detection  seconds from a wrong draft to the first step without drafts, against a window and a scrape
decision   milliseconds of one decision on a window of 500 requests with 40 candidates: five thresholds, eight lengths
"""

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # before numpy starts its threads
    os.environ[_name] = "1"

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from draftgate.control.assemble import Options, lanes
from draftgate.control.setting import Setting
from draftgate.control.tail import FileSource
from draftgate.control.window import Window
from draftgate.policy.length import Fixed
from draftgate.policy.policy import Policy
from draftgate.policy.policyset import PolicySet
from draftgate.replay.accept import Replayable
from draftgate.simulate.load import load_plant
from draftgate.simulate.outcomes import outcomes
from draftgate.simulate.plant import Conditions, Done, Plant
from draftgate.simulate.run import Delays, Pace, compared, controlled
from draftgate.simulate.scenario import SCENARIOS

RUN = Path(__file__).parents[1] / "tests" / "data" / "lookup-run"
EDIT = Conditions((("code-edit", 1.0),))
LIMIT, REGRET = 1.02, 0.10


def site(clock: float = 0.14) -> Plant:
    """On a machine so much faster than the recorded one that a window takes half a minute."""
    return load_plant(RUN, workloads=("code-edit", "chat"), clock=clock)


def plain_row(keeps: list[bool], n: int, ended: bool, most: int, k: int) -> list[float]:
    """Steps, tokens, offered and kept positions of one recorded draft when k tokens are drafted: a step at a time."""
    row = [0.0] * (2 + 2 * most)

    def close(kept: int, length: int, bonus: int, share: float = 1.0) -> None:
        row[0] += share
        row[1] += share * (kept + bonus)
        for i in range(length):
            row[2 + i] += share
        for i in range(kept):
            row[2 + most + i] += share

    start = 0
    while True:
        left = n - start
        end = k if start and n == most and min(k, left) == left else min(k, left)
        at = 0
        while at < end and start + at < n and keeps[start + at]:
            at += 1
        j = start + at
        if j == n:
            if ended:
                if at:
                    close(at, at, 0)
            elif n < most:
                close(at, min(end, at), 1)
            else:
                close(end, end, 1, (at + 1) / (end + 1))
            return row
        close(at, end, 1)
        if at < end or not keeps[j]:
            return row
        start = j + 1


def plain_rows(replayable: Replayable, k: int, missed: Any) -> np.ndarray:
    """`plain_row` of every recorded draft, with misses."""
    columns, most = replayable.columns, replayable.columns.shape[0]
    keeps = (replayable.exact & ~missed).T.tolist()
    drafts = zip(keeps, columns.drafted_n.tolist(), replayable.drafts.ended.tolist(), strict=True)
    return np.array([plain_row(row, n, ended, most, k) for row, n, ended in drafts])


def plain_requests(plant: Plant, n: int, k: int, rng: np.random.Generator) -> tuple[float, float]:
    """Tokens and seconds of n code edits, drawn and walked a draft at a time."""
    replayable = plant.workloads["code-edit"]
    columns, most = replayable.columns, replayable.columns.shape[0]
    keeps, ended = replayable.exact.T.tolist(), replayable.drafts.ended.tolist()
    drafted, step_s = columns.drafted_n.tolist(), plant.cost.step_s(np.arange(most + 1)).tolist()
    by_request = [np.flatnonzero(columns.request == r).tolist() for r in range(columns.n_requests)]
    tokens = seconds = 0.0
    for _ in range(n):
        own = by_request[int(rng.integers(len(by_request)))]
        for _ in own:
            draft = own[int(rng.integers(len(own)))]
            row = plain_row(keeps[draft], drafted[draft], ended[draft], most, k)
            tokens += row[1]
            seconds += row[0] * step_s[0] + sum(row[2 + i] * (step_s[i + 1] - step_s[i]) for i in range(most))
    return tokens, seconds


def speed(requests: int, windows: int) -> None:
    plant, rng = site(), np.random.default_rng(0)
    on = Setting.of(plant.policy)
    outcomes(plant.workloads["code-edit"], plant.policy)
    plant.run(1, on, EDIT, rng)
    ours = seconds_of(lambda: [plant.run(300, on, EDIT, rng) for _ in range(requests // 300)]) / requests
    few = max(requests // 500, 100)
    theirs = seconds_of(lambda: plain_requests(plant, few, on.k, rng)) / few
    print(f"plant: {1e6 * ours:.2f} CPU seconds for 1,000,000 requests, {theirs / ours:,.0f} times a plain loop")
    options = Options(cost=plant.cost)
    took = seconds_of(lambda: loop(plant, "step", options, requests // 5)) * 5 / requests
    print(f"with the loop: {1e6 * took:.1f} CPU seconds for 1,000,000 requests")


def loop(plant: Plant, scenario: str, options: Options, n: int, pace: Pace | None = None, **more: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "state.json"
        return controlled(plant, SCENARIOS[scenario], options, n, pace or Pace(), 0, state, **more)


def seconds_of(work: Callable[[], object]) -> float:
    """CPU seconds, which a busy machine changes less than the clock's."""
    begun_s = time.process_time()
    work()
    return time.process_time() - begun_s


def resident_mb() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def memory(requests: int, windows: int) -> None:
    """Ten times the requests: simulated on a fast machine, and lines of a file."""
    plant = site(clock=0.02)
    options = Options(cost=plant.cost)
    for n in (requests, 10 * requests):
        loop(plant, "step", options, n)
        print(f"simulated: {resident_mb():.0f} MB resident after {n:,} requests")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "requests.jsonl"
        path.touch()
        source = FileSource(path, most_s=1e9)
        done, spent_s, plain_s = 0, 0.0, 0.0
        while done < 10 * requests:
            lines = written(path, done, 20_000)
            spent_s += seconds_of(source.poll)
            if done % (20 * 20_000) == 0:
                plain_s += 20 * seconds_of(lambda lines=lines: [json.loads(line) for line in lines])  # type: ignore[misc]
            done += 20_000
            if done in (requests, 10 * requests):
                print(f"lines of a file: {resident_mb():.0f} MB resident after {done:,} requests")
        print(f"lines of a file: {done / spent_s:,.0f} requests a CPU second, {plain_s / spent_s:.1f} times json.loads")


def written(path: Path, first: int, n: int) -> list[str]:
    """Put n more requests in place of what the file held."""
    whole = {"workload": "code", "policy": "mine", "steps": 40, "covered": 36, "drafted": 180, "accepted": 95,
             "committed": 135, "kept": [30, 25, 18, 12, 10], "seconds": 0.8, "batch": 4.0, "valid": True}  # fmt: skip
    lines = [json.dumps({"id": f"cmpl-{i}", "end_s": 1.7e9 + i * 0.01} | whole) for i in range(first, first + n)]
    other = path.with_name("next")
    other.write_text("\n".join(lines) + "\n")
    other.replace(path)
    return lines


def promises(requests: int, windows: int) -> None:
    plant = site()
    options = Options(cost=plant.cost)
    heads = ("/ off", "/ on", "worst", "regret", "worst", "regret")
    print(f"{'':53} with shadows\n{'scenario':20} {' '.join(f'{head:>7}' for head in heads)}  windows  actions")
    failed = []
    for name, scenario in SCENARIOS.items():
        with tempfile.TemporaryDirectory() as folder:
            ran = compared(plant, scenario, options, requests, Pace(), 0, Path(folder) / "state.json")
        ours, shadowed = ran["controlled"], loop(plant, name, options, requests, Pace(shadows=True))
        off, on = (ours.token_s / ran[other].token_s for other in ("off", "on"))
        worst = max(shadowed.token_s / ran[other].token_s for other in ("off", "on"))
        print(
            f"{name:20} {off:7.3f} {on:7.3f} {max(off, on):7.3f} {ours.regret:7.1%} {worst:7.3f} {shadowed.regret:7.1%}"
            f"  {ours.windows:7}  {ours.actions}", flush=True,
        )  # fmt: skip
        if max(off, on, worst) > LIMIT or (name == "phased" and ours.regret > REGRET):
            failed.append(name)
    print(f"broken: {', '.join(failed)}" if failed else f"kept on all {len(SCENARIOS)}")


def opens(requests: int, windows: int) -> None:
    plant = site()
    for controller, knob in (("goodput", "k"), ("pid", "k")):
        options = Options(controller, cost=plant.cost, knob=knob, target=0.5)
        n = windows * round(30 / plant.request_s(Setting.of(plant.policy), EDIT))
        ran = loop(plant, "steady", options, n, Pace(interval_s=30.0, most_s=1e9))
        print(f"{controller}: {ran.actions.get('open', 0)} openings in {ran.windows:,} windows of steady traffic")


def detection(requests: int, windows: int) -> None:
    for clock in (0.14, 0.05, 0.02):
        plant, delays, pace = site(clock), Delays(), Pace(period=7777)
        loop(plant, "draft-swap", Options(cost=plant.cost), requests // 3, pace, took=delays)
        window_s = min(300 * plant.request_s(Setting.of(plant.policy), Conditions(EDIT.mix, wrong=1.0)), pace.most_s)
        mean_s, most_s, n = statistics.mean(delays.seconds), max(delays.seconds), len(delays.seconds)
        print(f"off {mean_s:.0f} s after a swap, {most_s:.0f} s at most, n = {n}; a window takes {window_s:.0f} s then")


def decision(requests: int, windows: int) -> None:
    whole = load_plant(RUN, workloads=("code-edit",), clock=0.14)
    ways = [Policy(f"tau{tau}", "threshold-or-lossless", tau, length=Fixed(8)) for tau in (0.1, 0.2, 0.3, 0.4, 0.5)]
    options = Options(cost=whole.cost, candidates=tuple(ways[1:]))
    (lane,) = lanes(PolicySet((ways[0],), ways[0].name), False, options, random.Random(0))
    rng, took_ms, now_s = np.random.default_rng(0), [], 0.0
    for _ in range(1000):
        setting = lane.setting
        done = whole.run(500, Setting(setting.on, None, min(setting.k, 7), None), EDIT, rng)
        window = as_window(done, now_s)
        took_ms.append(1e3 * seconds_of(lambda window=window, now_s=now_s: lane.take(window, now_s)))  # type: ignore[misc]
        now_s += done.seconds
        lane.wait(now_s, 0.0)
    middle, high = statistics.median(took_ms), statistics.quantiles(took_ms, n=100)[98]
    print(f"decision: {middle:.2f} CPU ms at the median, {high:.2f} at p99, 40 candidates, 1,000 windows")


def as_window(done: Done, start_s: float) -> Window:
    covered = max(done.offered)
    return Window(
        "*", "mine", start_s, start_s + done.seconds, done.requests, done.steps, covered, sum(done.offered),
        sum(done.kept), done.tokens, done.kept, tuple([covered, *done.kept][:-1]), done.offered, done.seconds, 1.0,
        0, 0, None, 0,
    )  # fmt: skip


PARTS = {
    "speed": speed,
    "memory": memory,
    "promises": promises,
    "opens": opens,
    "detection": detection,
    "decision": decision,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=" ".join(PARTS))
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--windows", type=int, default=30_000)
    a = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} processors")
    for part in a.parts or PARTS:
        PARTS[part](a.requests, a.windows)


if __name__ == "__main__":
    main()
