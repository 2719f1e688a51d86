"""Measure false alarms and delays of the drift detectors, and print the tables of docs/statistics.md, "Drift".

python benchmarks/drift_delay.py [--outputs 1000000] [--runs 500]        (about half a minute)
"""

import argparse
from collections import deque
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from draftgate.stats import Cusum, PageHinkley

Row = tuple[object, ...]

_PATIENCE = 5000  # outputs after which a detector has missed a rise


class PlainWindow:
    """The source's alert read literally: fewer valid outputs in the last 100 than the floor."""

    def __init__(self, floor: float) -> None:
        self.floor = floor
        self.recent: deque[int] = deque(maxlen=100)
        self.valid = 0

    def update(self, invalid: int) -> bool:
        if len(self.recent) == 100:
            self.valid -= 1 - self.recent[0]
        self.recent.append(invalid)
        self.valid += 1 - invalid
        alarm = len(self.recent) == 100 and self.valid < round(100 * self.floor)
        if alarm:
            self.recent.clear()
            self.valid = 0
        return alarm


def floor_alarms(outputs: int) -> Iterator[Row]:
    """Outputs per alarm at a steady share of invalid outputs."""
    yield "invalid", "CUSUM, floor 95%", "window of 100 below 95%", "CUSUM, floor 98%", "window of 100 below 98%"
    for invalid in (0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.10, 0.20, 0.50):
        detectors = (Cusum.of_share(0.05, 0.10), PlainWindow(0.95), Cusum.of_share(0.02, 0.04), PlainWindow(0.98))
        yield f"{invalid:.0%}", *(spacing(detector.update, invalid, outputs) for detector in detectors)


def fall_alarms(outputs: int, runs: int) -> Iterator[Row]:
    """Page-Hinkley: outputs per alarm without a rise, and outputs until one is found after 1,000 at the old share."""
    rises = (0.02, 0.05, 0.10, 0.20)
    yield "invalid before", "outputs per false alarm", *(f"{100 * rise:.0f} points more" for rise in rises)
    for before in (0.005, 0.01, 0.02, 0.05):
        found = (delay(before, before + rise, runs) for rise in rises)
        yield f"{before:.1%}", spacing(PageHinkley().update, before, outputs), *found


def spacing(update: Callable[[int], bool], invalid: float, outputs: int) -> str:
    alarms = sum(map(update, drawn(0, invalid, outputs)))
    return f"{outputs / alarms:,.0f}" if alarms >= 10 else f"> {outputs // 10:,}"


def delay(before: float, after: float, runs: int) -> str:
    """Mean outputs to the alarm, with the share of runs that had none within patience."""
    waits = [wait(seed, before, after) for seed in range(runs)]
    found = [n for n in waits if n is not None]
    missed = 1 - len(found) / runs
    return f"{np.mean(found):,.0f}" + (f" ({missed:.0%} missed)" if missed >= 0.005 else "")


def wait(seed: int, before: float, after: float) -> int | None:
    detector = PageHinkley()
    for invalid in drawn(seed, before, 1000):
        detector.update(invalid)
    stream = drawn(seed + 1_000_000, after, _PATIENCE)
    return next((n for n, invalid in enumerate(stream, 1) if detector.update(invalid)), None)


def drawn(seed: int, invalid: float, n: int) -> list[int]:
    return [int(x) for x in np.random.default_rng(seed).random(n) < invalid]


def print_table(rows: Iterable[Row]) -> None:
    for index, row in enumerate(rows):
        print("| " + " | ".join(str(cell) for cell in row) + " |", flush=True)
        if index == 0:
            print("|---" * len(row) + "|")
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--outputs", type=int, default=1_000_000, help="outputs per false-alarm cell")
    parser.add_argument("--runs", type=int, default=500, help="runs per delay cell")
    args = parser.parse_args()
    print_table(floor_alarms(args.outputs))
    print_table(fall_alarms(args.outputs, args.runs))


if __name__ == "__main__":
    main()
