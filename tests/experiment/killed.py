"""Runs `tune` on the fake engine in children that die by SIGKILL, one after the other, until one of them finishes.

python killed.py RUN [WHERE:N...]: each child dies at its Nth write whose label, such as "os.rename cost.json" or
"fsync live.jsonl", holds the text WHERE. A write is an open for writing, a rename, a truncation or an fsync; the child
dies before it happens, and at an fsync it first tears some bytes off the file, as a crash before the fsync may. Prints
the labels at which children died.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from draftgate.engines.fake import FakeEngine
from draftgate.experiment import plan
from draftgate.experiment.tune import Settings, tune
from draftgate.experiment.watch import Silent
from draftgate.workload.prompt import Prompt, Workload

plan._SEARCHED = 200


class _Doom:
    """Kills this process at the nth write below a folder whose label holds a text."""

    def __init__(self, folder: Path, where: str, n: int, note: Path) -> None:
        self.folder, self.where, self.left, self.note = str(folder), where, n, note
        self.fsync = os.fsync
        os.fsync = self.tear  # fsync has no audit event
        sys.addaudithook(self.hook)

    def hook(self, event: str, args: tuple[Any, ...]) -> None:
        writes = event in ("os.rename", "os.truncate") or (event == "open" and args[2] & (os.O_WRONLY | os.O_RDWR))
        path = str(args[1 if event == "os.rename" else 0]) if writes else ""
        if path.startswith(self.folder):
            self.count(f"{event} {Path(path).name}", None)

    def tear(self, file: int) -> None:
        self.count(f"fsync {Path(os.readlink(f'/proc/self/fd/{file}')).name}", file)
        self.fsync(file)

    def count(self, label: str, file: int | None) -> None:
        self.left -= self.where in label
        if self.left == 0:
            self.left = -1
            with self.note.open("a") as note:
                note.write(label + "\n")
            if file is not None:
                os.ftruncate(file, max(os.fstat(file).st_size - 9, 0))
            os.kill(os.getpid(), signal.SIGKILL)


def _tune(run: Path) -> None:
    texts = [f"{'abc def ' * (1 + i % 3)}{i * 7919}" for i in range(24)]
    workload = Workload("../small one", tuple(Prompt(f"p{i}", text) for i, text in enumerate(texts)))
    engine = FakeEngine(seed=4, base_s=0.01, token_s=0.007)
    tune(engine, [workload], Settings(budget_s=400.0, max_tokens=48), run, Silent(), clock=engine.clock)


def main(run: Path, moments: list[str]) -> None:
    note = run.with_suffix(".killed")
    note.touch()
    for moment in [*moments, "never:1"]:
        child = os.fork()
        if child == 0:
            where, _, n = moment.rpartition(":")
            _Doom(run, where, int(n), note)
            _tune(run)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status != -signal.SIGKILL:
            break
    print(json.dumps({"status": status, "died": note.read_text().splitlines()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
