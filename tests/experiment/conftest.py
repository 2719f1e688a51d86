"""A small workload, a fake engine, and blocks made by hand."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest

from draftgate.engines.fake import FakeEngine
from draftgate.experiment.live import Block, Run
from draftgate.workload.prompt import Prompt, Workload

_WORDS = ("alpha beta ", "for i in range(10): ", "return value; ", "{'key': 1} ", "the cat sat ", "x = x + 1 ")


def _workload(n: int = 18, name: str = "small") -> Workload:
    texts = (_WORDS[i % len(_WORDS)] * (1 + i % 4) + str(i) for i in range(n))
    return Workload(name, tuple(Prompt(f"p{i}", text) for i, text in enumerate(texts)))


def _run(arm: str, decode_s: float, tokens: Sequence[int] = (1, 2, 3), status: str | None = None) -> Run:
    return Run(arm, tuple(tokens), "length", 0.01, decode_s, steps=2, covered=1, drafted=4, accepted=3, status=status)


def _blocks(speedups: Mapping[str, Sequence[float]]) -> list[Block]:
    n = len(next(iter(speedups.values()), ()))
    return [
        Block(f"p{i}", 0, 1.0, (_run("none", 1.0), *(_run(arm, 1 / s[i]) for arm, s in speedups.items())))
        for i in range(n)
    ]


def _around(center: float, n: int = 30, spread: float = 0.02) -> list[float]:
    noise = np.random.default_rng(0).normal(0.0, spread, n)
    values: list[float] = (center * np.exp(noise - noise.sum() / max(n, 1))).tolist()
    return values


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture(scope="session")
def small_workload() -> Callable[..., Workload]:
    """(n, name) -> n prompts of bytes that repeat themselves."""
    return _workload


@pytest.fixture(scope="session")
def make_run() -> Callable[..., Run]:
    """(arm, decode_s, tokens, status) -> a run."""
    return _run


@pytest.fixture(scope="session")
def make_blocks() -> Callable[..., list[Block]]:
    """{arm: speedup of each prompt} -> one block a prompt, in which none takes a second."""
    return _blocks


@pytest.fixture(scope="session")
def around() -> Callable[..., list[float]]:
    """(center, n, spread) -> n speedups with geometric mean `center`."""
    return _around
