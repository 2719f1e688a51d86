"""Every error that draftgate raises on purpose, and the exit code a command gives for it.

DraftgateError              exit 1
├── InputError              exit 2   something the user wrote or named; says what, where, and what to do
│   ├── ConfigError                  policy files, presets, settings
│   ├── WorkloadError                prompt packs and JSONL files
│   ├── ModelError                   missing, truncated or mismatched models
│   ├── TraceError                   traces that cannot be read, or belong to another setup
│   └── MissingExtraError            an optional dependency is not installed; names the extra
└── EngineError             exit 1   the engine failed while running (decode error, NaN logits)
"""

import importlib
from collections.abc import Iterable
from difflib import get_close_matches
from types import ModuleType

__all__ = [
    "ConfigError",
    "DraftgateError",
    "EngineError",
    "InputError",
    "MissingExtraError",
    "ModelError",
    "TraceError",
    "WorkloadError",
    "nearest",
    "require",
]


class DraftgateError(Exception):
    """Root of the tree."""

    exit_code = 1


class InputError(DraftgateError):
    """Input that draftgate refuses; the message says what, where and what to do."""

    exit_code = 2


class ConfigError(InputError):
    """A policy file, preset or setting is wrong."""


class WorkloadError(InputError):
    """A prompt pack or JSONL file is wrong."""


class ModelError(InputError):
    """A model file is missing, damaged, or does not fit the other model."""


class TraceError(InputError):
    """A trace cannot be read, or was recorded on another setup."""


class MissingExtraError(InputError):
    """An optional dependency is needed and not installed."""


class EngineError(DraftgateError):
    """The engine failed while it was running."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """End of an error sentence: the closest valid name if there is one, else all of them.

    >>> nearest("tua", ["tau", "rule"])
    "did you mean 'tau'?"
    >>> nearest("zzz", ["tau", "rule"])
    'valid: rule, tau'
    """
    names = sorted(valid)
    close = get_close_matches(name, names, n=1)
    return f"did you mean '{close[0]}'?" if close else f"valid: {', '.join(names)}"


def require(module: str, extra: str) -> ModuleType:
    """Import an optional dependency, or say which extra brings it.

    Raises:
        MissingExtraError: the module is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise
        raise MissingExtraError(
            f"{module} is not installed; this needs the extra '{extra}': pip install 'draftgate[{extra}]'"
        ) from error
