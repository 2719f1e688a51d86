"""An engine behind its files: a policy file in, one JSON line for each finished request out."""

import json
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np

from draftgate.control.channel import Channel
from draftgate.engines.base import Completion, Engine, Request
from draftgate.errors import ConfigError, InputError
from draftgate.loadgen.finished import line, shadow
from draftgate.policy.policy import Policy

__all__ = ["Served"]


class Served:
    """Serves requests under the policies that a file holds, as any server with draftgate does.

    Attributes:
        engine: may be replaced while it serves, as when another draft is loaded.
        log: where finished requests go, in the form that `control.tail.FileSource` reads, and behind each that ran
            without drafts what lookup drafts would have come to, if that is how this engine drafts.
    """

    def __init__(self, engine: Engine, policies: Path, log: Path, clock: Callable[[], float]) -> None:
        """Read the policies and start an empty log.

        Args:
            clock: seconds since 1970, or any other clock that the reader of the log goes by.

        Raises:
            ConfigError: the policy file cannot be used.
            InputError: the log cannot be written.
        """
        self.engine, self.log = engine, log
        self._channel, self._clock = Channel(policies), clock
        self._served = 0
        self.look()
        if self._channel.current is None:
            raise ConfigError(self._channel.error or f"{policies}: holds no policy")
        self._started = self._channel.current
        self._write("", "w")

    def look(self) -> None:
        """See whether the policy file has changed."""
        self._channel.poll()

    def policy(self, workload: str) -> Policy:
        """What serves a workload now."""
        assert self._channel.current is not None
        return self._channel.current.of(workload)

    def serve(self, requests: Sequence[Request]) -> list[Completion]:
        """Complete requests, those under one policy together, and log them.

        Raises:
            EngineError: the engine failed.
            InputError: a request does not fit, or the log cannot be written.
        """
        self.look()
        done: list[Completion] = []
        ordered = sorted(requests, key=lambda r: self.policy(r.workload).name)
        for _, group in groupby(ordered, key=lambda r: self.policy(r.workload).name):
            together = list(group)
            policy = self.policy(together[0].workload)
            batch = self.engine.generate(together, policy)
            self._log(batch, policy)
            done += batch
        return done

    def _log(self, batch: Sequence[Completion], policy: Policy) -> None:
        shares = _shares(batch)
        rows = []
        for done, seconds in zip(batch, shares, strict=True):
            self._served += 1
            named = done, f"{self._served}", policy.name, self._clock()
            rows.append(json.dumps(line(*named, seconds)))
            if most := self._shadowed(policy, done.request.workload):
                rows.append(json.dumps(shadow(*named, most, self.engine.end_tokens)))
        self._write("".join(f"{row}\n" for row in rows), "a")

    def _shadowed(self, policy: Policy, workload: str) -> int:
        """The longest draft of a shadow: while off, what the policies at the start have; 0 where none can be told."""
        told = policy.lossless and not policy.drafts and self.engine.setup.by_lookup
        return self._started.of(workload).length.most if told else 0

    def _write(self, text: str, mode: str) -> None:
        try:
            with self.log.open(mode) as file:
                file.write(text)
        except OSError as error:
            raise InputError(f"{self.log}: cannot be written: {error.strerror or error}") from error


def _shares(batch: Sequence[Completion]) -> list[float]:
    """Engine seconds of each request, which add up to the batch's: a step of B sequences counts 1 / B for each."""
    weights = np.array([sum(s.draft_s + s.verify_s / s.batch for s in done.steps) for done in batch])
    total = max(done.decode_s for done in batch)
    shares: list[float] = (weights * (total / weights.sum() if weights.any() else 0.0)).tolist()
    return shares
