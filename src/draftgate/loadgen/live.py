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
from draftgate.control.tail import FileSource
from draftgate.control.target import FileChannel
from draftgate.engines.base import Completion, Engine, Request
from draftgate.loadgen.arrivals import Arrivals
from draftgate.loadgen.served import Served
from draftgate.policy.policyset import PolicySet, save

__all__ = ["Live"]


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
        clock: Callable[[], float],
        size: int,
        interval_s: float = 0.0,
        seed: int | None = None,
    ) -> None:
        """Put the operator's policies in force.

        Args:
            say: takes each decision, as plain values.
            clock: of everything, seconds since 1970 or any other.
            size: requests of a window.
            interval_s: time between two looks; 0 looks after every batch.
            seed: of exploration and jitter; None differs each time.

        Raises:
            ConfigError: the options do not fit the policies.
            InputError: the folder cannot be written.
        """
        path, log = folder / "policy.yaml", folder / "requests.jsonl"
        save(base, path)
        self.served = Served(engine, path, log, clock)
        source = FileSource(log, size=size, clock=clock)
        made = lanes(base, True, options, random.Random(seed))
        self.loop = Loop(base, source, FileChannel(path), made, folder / "state.json", None, say, clock)
        self._clock, self._interval_s, self._looked_s = clock, interval_s, clock()

    def serve(self, requests: Sequence[Request]) -> tuple[list[Completion], list[Decision]]:
        """Serve a batch, and look if it is time: completions, and what was decided.

        Raises:
            EngineError: the engine failed.
            InputError: a request does not fit, or the log cannot be written.
        """
        done = self.served.serve(requests)
        now_s = self._clock()
        if 0 <= now_s - self._looked_s < self._interval_s:
            return done, []
        self._looked_s = now_s
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
                done, _ = self.serve(list(islice(requests, n)))
                yield from done
            else:
                sleep(min(arrivals.wait_s(now_s), until_s - now_s))
