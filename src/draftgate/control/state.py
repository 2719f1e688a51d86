"""The state file: what a control loop must not forget when it is killed, as JSON that is replaced in one step.

A file that is damaged, or of another version, is moved aside, and the loop starts with every breaker open: what was
known about the traffic is lost, so speculation has to earn its way back through probation. A missing file is a first
start. Nothing here raises for what a file holds.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draftgate.files import write_atomic

__all__ = ["Loaded", "load", "save", "set_aside"]

_VERSION = 1


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a state file held.

    Attributes:
        workloads: saved state by workload; empty at a first start.
        base: the operator's policy set, as `policyset.dump` gives it; None at a first start.
        damage: why the file could not be used; None when it could, or there was none.
    """

    workloads: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    base: Mapping[str, Any] | None = None
    damage: str | None = None


def load(path: Path) -> Loaded:
    """Read a state file; never raises."""
    try:
        data = json.loads(path.read_bytes(), parse_constant=_refuse)
    except FileNotFoundError:
        return Loaded()
    except (OSError, ValueError, RecursionError) as error:
        return Loaded(damage=str(error))
    if not isinstance(data, dict) or data.get("draftgate_control") != _VERSION:
        return Loaded(damage=f"not a state of version {_VERSION}")
    rows, base = data.get("workloads"), data.get("base")
    if not isinstance(base, dict) or not isinstance(rows, dict) or not all(isinstance(r, dict) for r in rows.values()):
        return Loaded(damage="holds no policies and workloads")
    return Loaded(rows, base)


def save(path: Path, base: Mapping[str, Any], workloads: Mapping[str, Mapping[str, Any]]) -> None:
    """Write a state file; a crash leaves the old one or the new one.

    Raises:
        InputError: the place cannot be written.
        ValueError: a value is NaN or infinite.
    """
    data = {"draftgate_control": _VERSION, "base": base, "workloads": workloads}
    write_atomic(path, (json.dumps(data, allow_nan=False) + "\n").encode())


def set_aside(path: Path) -> None:
    """Keep a damaged file as NAME.damaged, so that the next save does not destroy it."""
    with suppress(OSError):  # read-only or gone: the next save replaces or reports it
        os.replace(path, path.with_name(path.name + ".damaged"))


def _refuse(constant: str) -> float:
    raise ValueError(f"holds {constant}")
