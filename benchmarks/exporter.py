"""What a scrape costs, against prometheus_client's own registry with as many plain gauges; and what a look costs.

python benchmarks/exporter.py [--rounds 30] [--series 2000]

Target: a scrape of 2,000 series in 10 ms. CPU time is measured, which other work on the machine disturbs less than the
clock. Both sides write the same text format with the same function, so the ratio says what the table costs.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence

import prometheus_client

from draftgate.control.breaker import Phase
from draftgate.control.lane import Decision
from draftgate.control.setting import Setting
from draftgate.control.watch import LaneState, Look
from draftgate.control.window import Window
from draftgate.observe.exporter import Exporter, registry

K = 16


def look(workloads: int, time_s: float) -> Look:
    """A look with a window, a decision and a state for each workload."""
    kept = tuple(1000 - 50 * i for i in range(K))
    names = [f"workload-{i}" for i in range(workloads)]
    windows = [
        Window(
            name, "mine", time_s, time_s + 60, requests=300, steps=1000, covered=1000, drafted=1000 * K,
            accepted=sum(kept), committed=1000 + sum(kept), kept=kept, reached=(1000, *kept[:-1]), offered=(1000,) * K,
            seconds=10.0, batch=8.0, judged=300, valid=299, latency_s=0.02, errors=0,
        )
        for name in names
    ]  # fmt: skip
    decisions = [Decision(time_s, name, "hold", "", "closed", "k=16", 0.6, 900.0, 700.0) for name in names]
    lanes = {name: LaneState(Setting(True, 0.2, K, None), Phase.CLOSED) for name in names}
    return Look(time_s, True, time_s, True, (), tuple(windows), tuple(decisions), lanes)


def filled(series: int) -> tuple[Exporter, int, int]:
    """An exporter with about as many series, of how many workloads, and how many series it really has."""
    for workloads in range(1, 1000):
        exporter = Exporter(most=workloads)
        exporter.looked(look(workloads, 0.0))
        found = sum(len(samples) for _, samples in exporter.snapshot())
        if found >= series:
            return exporter, workloads, found
    raise ValueError(f"--series {series} is too many")


def plain(series: int) -> prometheus_client.CollectorRegistry:
    """The rival: gauges with two labels each, set one by one."""
    rival = prometheus_client.CollectorRegistry()
    gauges = [
        prometheus_client.Gauge(f"plain_{i}", "A gauge.", ("workload", "position"), registry=rival) for i in range(40)
    ]
    for i in range(series):
        gauges[i % 40].labels(f"workload-{i // (40 * K)}", str(i // 40 % K)).set(i / 7)
    return rival


def ms(work: Callable[[], object], rounds: int) -> list[float]:
    """Milliseconds of CPU time of each call."""
    took = []
    for _ in range(rounds):
        begun_s = time.process_time()
        work()
        took.append(1e3 * (time.process_time() - begun_s))
    return took


def p95(took: Sequence[float]) -> float:
    return statistics.quantiles(took, n=20)[18]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--series", type=int, default=2000)
    a = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} processors")
    exporter, workloads, series = filled(a.series)
    ours, rival = registry(exporter), plain(series)
    scrapes: tuple[list[float], list[float]] = ([], [])
    for _ in range(a.rounds):  # in turn, so that both see the same machine
        for took, one in zip(scrapes, (ours, rival), strict=True):
            took += ms(lambda one=one: prometheus_client.generate_latest(one), 1)  # type: ignore[misc]
    mine, theirs = map(statistics.median, scrapes)
    print(f"scrape of {series} series of {workloads} workloads: {mine:.2f} ms, p95 {p95(scrapes[0]):.2f} ms")
    print(f"{series} plain gauges: {theirs:.2f} ms; the table costs {mine / theirs:.2f} times as much")
    looks = ms(lambda: exporter.looked(look(workloads, 1.0)), a.rounds)
    print(f"a look with a window of each of {workloads} workloads: {statistics.median(looks):.2f} ms")


if __name__ == "__main__":
    main()
