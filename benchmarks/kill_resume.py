"""Kill -9 `tune` at random moments on the real engine, resume it each time, and compare with an unbroken run.

    python benchmarks/kill_resume.py [--workload code-edit] [--budget 110s] [--kills 10] [--out DIR]

Prints what each run recommends, and checks that no block is lost, doubled or half there. Measured seconds differ
between runs, so the recommendation is the same only where it does not hang on noise.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def command(out: Path, workload: str, budget: str) -> list[str]:
    arguments = ["tune", "-w", workload, "--budget", budget, "--seed", "3", "--out", str(out)]
    return [sys.executable, "-c", "from draftgate.cli import main; main()", *arguments]


def run(out: Path, workload: str, budget: str) -> float:
    start = time.monotonic()
    done = subprocess.run(command(out, workload, budget), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if done.returncode not in (0, 3):
        raise SystemExit(f"tune ended with exit code {done.returncode}")
    return time.monotonic() - start


def broken(out: Path, workload: str, budget: str, kills: int, whole_s: float) -> list[float]:
    """Run with `kills` kills spread over the length of an unbroken run, then to the end; seconds of each life."""
    rng, lives = random.Random(0), []
    for _ in range(kills):
        process = subprocess.Popen(command(out, workload, budget), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        life = rng.uniform(0.3, 2 * whole_s / kills)
        try:
            process.wait(timeout=life)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            lives.append(life)
    run(out, workload, budget)
    return lives


def blocks(out: Path, workload: str) -> list[dict]:
    return [json.loads(line) for line in (out / workload / "live.jsonl").read_text("utf-8").splitlines()]


def told(out: Path) -> str:
    w = json.loads((out / "result.json").read_text("utf-8"))["workloads"][0]
    return f"{w['verdict']}: {w['recommended']}; {w['why']}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workload", default="code-edit")
    parser.add_argument("--budget", default="110s")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--out", type=Path)
    a = parser.parse_args()
    folder = a.out or Path(tempfile.mkdtemp())
    whole_s = run(folder / "unbroken", a.workload, a.budget)
    lives = broken(folder / "broken", a.workload, a.budget, a.kills, whole_s)
    print(f"unbroken ({whole_s:.0f} s): {told(folder / 'unbroken')}")
    print(f"killed {len(lives)} times after {', '.join(f'{s:.1f}' for s in lives)} s: {told(folder / 'broken')}")
    for name in ("unbroken", "broken"):
        rows = blocks(folder / name, a.workload)
        keys = [(row["round"], row["prompt"]) for row in rows]
        if len(set(keys)) < len(keys):
            raise SystemExit(f"{name}: a block is there twice")
        print(f"{name}: {len(rows)} blocks, {sum(len(row['runs']) for row in rows)} runs, none lost or doubled")


if __name__ == "__main__":
    main()
