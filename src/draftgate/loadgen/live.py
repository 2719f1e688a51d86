"""The closed loop in one process: an engine that serves, and the control loop that looks at it between two batches."""

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from draftgate.control.assemble import Options, lanes
from draftgate.control.lane import Decision
from draftgate.control.loop import Loop
from draftgate.control.source import Source
from draftgate.control.tail import FileSource
from draftgate.control.target import FileChannel
from draftgate.control.window import Window
from draftgate.engines.base import Completion, Engine, Request
from draftgate.errors import ConfigError
from draftgate.loadgen.arrivals import Arrivals
from draftgate.loadgen.served import Served
from draftgate.policy.policyset import PolicySet, save

__all__ = ["BySteps", "Live"]


class BySteps:
    """Windows of so many steps, whatever number of requests that takes.

    Evidence is in steps. So many requests that speculation has enough steps to be judged by have several times as many
    without it, and for as long is a wrong setting in force before it is noticed. A shadow ends with the window that it
    is of, which had a step for every token.
    """

    def __init__(self, source: Source, least_steps: int) -> None:
        """Merge a source's windows, which should be small.

        Raises:
            ConfigError: fewer than one step.
        """
        if least_steps < 1:
            raise ConfigError(f"windows need at least one step but got {least_steps}")
        self._source, self._least_steps = source, least_steps
        self._open: dict[tuple[str, str, bool], list[Window]] = {}

    @property
    def left_out(self) -> str | None:
        """As the source says."""
        return self._source.left_out

    def poll(self) -> list[Window]:
        """Windows that are large enough now."""
        done = []
        for window in self._source.poll():
            key = window.workload, window.policy, window.shadow
            parts = self._open.setdefault(key, [])
            parts.append(window)
            if sum(part.committed if part.shadow else part.steps for part in parts) >= self._least_steps:
                done.append(Window.merge(self._open.pop(key)))
        return done

    def in_force(self) -> str | None:
        """As the source says."""
        return self._source.in_force()


class Live:
    """A served engine under control; its policy file, log and state are in one folder.

    Attributes:
        served: the engine behind its files.
        loop: what steers it.
    """

    def __init__(
        self,
        engine: Engine,
        base: PolicySet,
        folder: Path,
        options: Options,
        say: Callable[[Mapping[str, Any]], None],
        clock: Callable[[], float] = time.time,
        least_steps: int = 250,
        seed: int | None = None,
    ) -> None:
        """Put the operator's policies in force.

        Args:
            say: takes each decision, as plain values.
            clock: of everything, seconds since 1970 or any other.
            least_steps: of a window.
            seed: of exploration and jitter; None differs each time.

        Raises:
            ConfigError: the options do not fit the policies.
            InputError: the folder cannot be written.
        """
        path, log = folder / "policy.yaml", folder / "requests.jsonl"
        save(base, path)
        self.served = Served(engine, path, log, clock)
        source = BySteps(FileSource(log, size=1, clock=clock), least_steps)
        made = lanes(base, True, options, random.Random(seed))
        self.loop = Loop(base, source, FileChannel(path), made, folder / "state.json", None, say, clock)
        self._clock, self._least_steps, self._unseen_steps = clock, least_steps, 0

    def serve(self, requests: Sequence[Request]) -> tuple[list[Completion], list[Decision]]:
        """Serve a batch, and look when that makes a window: completions, and what was decided.

        Raises:
            EngineError: the engine failed.
            InputError: a request does not fit, or the log cannot be written.
        """
        done = self.served.serve(requests)
        self._unseen_steps += sum(len(d.steps) for d in done)
        if self._unseen_steps < self._least_steps:
            return done, []
        self._unseen_steps = 0
        decisions = self.loop.tick()
        self.served.look()  # a new file is taken at the second look, so the next batch runs under it
        return done, decisions

    def run(
        self,
        requests: Iterator[Request],
        arrivals: Arrivals,
        until_s: float,
        sleep: Callable[[float], None] = time.sleep,
    ) -> Iterator[Completion]:
        """Serve requests as they arrive, until a time by the clock; the last batch is finished.

        Raises:
            EngineError: the engine failed.
            InputError: a request does not fit, or the log cannot be written.
        """
        most = self.served.engine.capabilities.max_batch
        while (now_s := self._clock()) < until_s:
            if n := arrivals.take(now_s, most):
                yield from self.serve(list(islice(requests, n)))[0]
            else:
                sleep(min(arrivals.wait_s(now_s), until_s - now_s))
