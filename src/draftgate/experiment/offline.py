"""Predictions from a trace on disk."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import draftgate
from draftgate.cost.steps import StepCost
from draftgate.errors import ConfigError
from draftgate.experiment.oracle import Oracle
from draftgate.experiment.record import traces_beside
from draftgate.experiment.rundir import read_cost
from draftgate.policy.policy import Policy
from draftgate.replay.predict import Prediction
from draftgate.trace.store import TraceStore

__all__ = ["replay"]


def _find_cost(trace: Path, cost: Path | None) -> StepCost | None:
    """The given file, or the one of the run directory that the trace lies in; None when there is none."""
    held = read_cost(cost or trace.resolve().parent.parent / "cost.json")
    if held is None and cost is not None:
        raise ConfigError(f"{cost}: no such file; pass the cost.json that 'draftgate tune' wrote")
    return held


def _figures(policy: Policy, p: Prediction) -> dict[str, Any]:
    i = p.speedup_interval
    return {
        "arm": policy.name,
        "origin": "given",
        "rule": policy.rule,
        "lossless": policy.lossless,
        "speedup": {
            "estimate": p.speedup,
            "low": i and i.low,
            "high": i and i.high,
            "n": p.requests,
            "how": "replayed",
        },
        "tokens_per_s": p.tokens_per_s,
        "acceptance_rate": p.acceptance_rate,
        "acceptance_length": p.acceptance_length,
        "coverage": p.coverage,
        "requests": p.requests,
        "predicted": p.to_mapping(),
        "valid": None,
        "truncated": None,
        "goodput_tok_s": None,
        "quality": None,
    }


def replay(trace: Path, policies: Sequence[Policy], cost: Path | None) -> dict[str, Any]:
    """Predict policies; arms are described as in `tune`.

    Args:
        trace: folder of a lossless trace; loose ones beside it are used too.
        cost: cost.json of a run; None looks for it in the run that the trace lies in, and without one nothing about
            time is predicted.

    Raises:
        TraceError: the trace cannot be read, or a policy drafts more than it recorded.
    """
    stores = [TraceStore(path) for path in traces_beside(trace)]
    setup = stores[0].setup()
    most = max(policy.length.most for policy in policies)
    oracle = Oracle.of(stores, _find_cost(trace, cost), setup.by_lookup, max(most, 1), frozenset())
    return {
        "schema": 1,
        "draftgate": draftgate.__version__,
        "setup": asdict(setup) | {"key": setup.key()},
        "trace": str(trace),
        "arms": [_figures(policy, oracle(policy, 1000)) for policy in policies],
    }
