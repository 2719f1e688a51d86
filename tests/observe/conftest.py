"""Windows and looks to feed with, and Debian's Prometheus to check with."""

import shutil
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from draftgate.control.breaker import Phase
from draftgate.control.lane import Decision
from draftgate.control.setting import Setting
from draftgate.control.watch import LaneState, Look
from draftgate.control.window import Window
from draftgate.observe.exporter import Exporter

_WINDOW = Window(
    "code", "mine", 1000.0, 1060.0, requests=300, steps=100, covered=80, drafted=160, accepted=100, committed=200,
    kept=(70, 30), reached=(80, 70), offered=(80, 80), seconds=5.0, batch=4.0, judged=200, valid=190, latency_s=0.02,
    errors=3,
)  # fmt: skip


@pytest.fixture(scope="session")
def window() -> Callable[..., Window]:
    """(fields that differ) -> window of the workload "code"."""
    return lambda **fields: replace(_WINDOW, **fields)


def _decision(action: str = "hold", workload: str = "code", **fields: Any) -> Decision:
    shown = {"acceptance": 0.6, "tokens_per_s": 40.0, "baseline_tok_s": 32.0} | fields
    return Decision(1060.0, workload, action, "why", "closed", "k=5 tau=0.2", **shown)


@pytest.fixture(scope="session")
def decision() -> Callable[..., Decision]:
    """(action, workload, fields that differ) -> decision."""
    return _decision


def _look(**fields: Any) -> Look:
    lanes = {"code": LaneState(Setting(True, 0.2, 5, 0.1), Phase.CLOSED)}
    return Look(**{"time_s": 1070.0, "controls": True, "fresh_s": 1065.0, "in_force": True, "lanes": lanes} | fields)


@pytest.fixture(scope="session")
def look() -> Callable[..., Look]:
    """(fields that differ) -> look of a controller that steers "code"."""
    return _look


def _program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.fail(
            f"{name} is not installed, and what is exported must be checked with it: apt-get install -y prometheus"
        )
    return path


@pytest.fixture(scope="session")
def promtool() -> str:
    return _program("promtool")


@pytest.fixture(scope="session")
def prometheus() -> str:
    return _program("prometheus")


@pytest.fixture
def free_port() -> Callable[[], int]:
    """Gives ports that nobody listens on."""

    def find() -> int:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return int(probe.getsockname()[1])

    return find


@pytest.fixture
def feed(look: Callable[..., Look]) -> Callable[[Exporter], Exporter]:
    """Gives an exporter one look in which every metric has a value."""

    def fill(exporter: Exporter) -> Exporter:
        off = replace(_WINDOW, covered=0, drafted=0, accepted=0, committed=100, kept=(), reached=(), offered=())
        decisions = (_decision("change"), _decision())
        exporter.looked(look(windows=(off, _WINDOW), decisions=decisions, failing=("source",)))
        exporter.recorded("code", {"structural": (10, 9), "word": (20, 10)})
        exporter.traced({"written": 7, "lagged": 2})
        return exporter

    return fill
