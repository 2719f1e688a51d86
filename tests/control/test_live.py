"""The closed loop on the real engine: real text and real acceptance; steps cost what a measured curve says.

Seconds come from a curve that was measured on two quiet cores, so nothing here depends on how busy this machine is.
`benchmarks/closed_loop.py` measures the same with real seconds.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from draftgate.control.assemble import Options
from draftgate.control.lane import Decision
from draftgate.cost.steps import Curve, StepCost
from draftgate.engines.base import Capabilities, Completion, Request, Sampling
from draftgate.engines.llamacpp import models
from draftgate.engines.llamacpp.engine import LlamaCpp
from draftgate.loadgen.live import Live
from draftgate.policy.length import Fixed
from draftgate.policy.policy import Policy
from draftgate.policy.policyset import PolicySet
from draftgate.workload.packs import load

MOST = 4
# Milliseconds of a decode of 1, 2, ... tokens: SmolLM2-135M Q8_0 on two cores, as `measure_cost` gave it.
CURVE_MS = (10.0, 14.0, 16.0, 18.0, 20.0)
WINDOW = 12


def cost(draft_s: float = 0.0) -> StepCost:
    seconds = tuple(ms / 1e3 for ms in CURVE_MS)
    return StepCost({1: Curve(1, seconds, (0.0,) * len(seconds), 9)}, draft_s)


@dataclass
class Priced:
    """The real engine; steps cost what a curve says, and each text is decoded once."""

    engine: LlamaCpp
    cost: StepCost
    now_s: float = 0.0
    known: dict[tuple[object, ...], Completion] = field(default_factory=dict)

    @property
    def capabilities(self) -> Capabilities:
        return self.engine.capabilities

    def completion(self, request: Request, policy: Policy) -> Completion:
        key = (id(self.engine), request.tokens, policy.rule, policy.tau, policy.length.most)
        if key not in self.known:
            done = self.engine.generate([request], policy)[0]
            seconds = self.cost.step_s(np.array([s.drafted_n for s in done.steps], np.int64)).tolist()
            steps = tuple(replace(s, draft_s=0.0, verify_s=t) for s, t in zip(done.steps, seconds, strict=True))
            self.known[key] = replace(done, decode_s=sum(seconds), steps=steps)
        return replace(self.known[key], request=request)

    def generate(self, requests: Sequence[Request], policy: Policy, record: bool = False) -> list[Completion]:
        (request,) = requests
        done = self.completion(request, policy)
        self.now_s += done.decode_s
        return [done]
