"""The short form of benchmarks/fuzz_validators.py."""

import runpy
from pathlib import Path

FUZZ = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "fuzz_validators.py"))


def test_no_promise_is_broken() -> None:
    counts, broken = FUZZ["fuzz"](5.0, seed=1)
    assert broken == []
    assert counts.total() > 20
