"""A small plant: what an engine would show under a setting, with known acceptance and costs."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pytest

from draftgate.control.setting import Setting
from draftgate.control.window import Window
from draftgate.cost.steps import Curve, StepCost


@dataclass
class Plant:
    """Steps whose drafts keep each position with chance `cond`; verifying m tokens costs 10 ms (1 + slope (m - 1))."""

    cond: float = 0.7
    slope: float = 0.1
    noise: float = 0.02
    steps: int = 2000
    batch: float = 1.0
    seed: int = 0
    now_s: float = 0.0
    rng: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    @cached_property
    def cost(self) -> StepCost:
        curves = {b: Curve(b, tuple(0.01 * (1 + self.slope * b**0.5 * m) for m in range(17)), (0.0,) * 17, 9)
                  for b in (1, 8, 32)}  # fmt: skip
        return StepCost(curves)

    def rate(self, setting: Setting) -> float:
        """True tokens per second and sequence."""
        kept = sum(self.cond ** (i + 1) for i in range(setting.k))
        return (1 + kept) / self.cost.curves[int(self.batch)].seconds[setting.k]

    def best(self, most: int) -> Setting:
        return max((Setting(k > 0, None, k, None) for k in range(most + 1)), key=self.rate)

    def window(self, setting: Setting, **fields: Any) -> Window:
        """The next window under a setting."""
        drafts = self.steps if setting.on else 0
        kept, left = [], drafts
        for _ in range(setting.k):
            left = int(self.rng.binomial(left, self.cond))
            kept.append(left)
        committed = self.steps + sum(kept)
        seconds = committed / self.rate(setting) / self.batch * float(np.exp(self.rng.normal() * self.noise))
        start_s, self.now_s = self.now_s, self.now_s + seconds
        window = Window(
            workload="*",
            policy="mine",
            start_s=start_s,
            end_s=self.now_s,
            requests=300,
            steps=self.steps,
            covered=drafts,
            drafted=drafts * setting.k,
            accepted=sum(kept),
            committed=committed,
            kept=tuple(kept),
            reached=tuple([drafts, *kept][: setting.k]),
            offered=(drafts,) * setting.k,
            seconds=seconds,
            batch=self.batch,
            judged=0,
            valid=0,
            latency_s=None,
            errors=0,
        )
        return replace(window, **fields)


def _of_rate(rate: float, drafted: int = 3000) -> Window:
    """A window of which nothing but the acceptance rate matters."""
    accepted = round(drafted * min(max(rate, 0.0), 1.0))
    counts = {"requests": 300, "steps": 1000, "covered": 1000, "drafted": drafted, "accepted": accepted}
    return Window(
        "*", "mine", 0.0, 1.0, **counts, committed=1000 + accepted, kept=(), reached=(), offered=(), seconds=1.0,
        batch=1.0, judged=0, valid=0, latency_s=None, errors=0,
    )  # fmt: skip


@pytest.fixture(scope="session")
def plant() -> type[Plant]:
    """The class: a test makes the plant that it needs."""
    return Plant


@pytest.fixture(scope="session")
def of_rate() -> Callable[..., Window]:
    """(acceptance rate, drafted tokens) -> window."""
    return _of_rate
