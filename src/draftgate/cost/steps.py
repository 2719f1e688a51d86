"""Measured seconds of a step: verifying m tokens for each of B sequences, and drafting."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftgate.errors import ConfigError

__all__ = ["Affine", "Curve", "StepCost"]


@dataclass(frozen=True, slots=True)
class Affine:
    """Least-squares line through a curve: seconds = base_s + per_token_s * m.

    Attributes:
        error: greatest relative distance of a measured point from the line; curves with steps (kernels that work in
            blocks of tokens) have a large one, so predictions read the measured points and use the line only beyond them.
    """

    base_s: float
    per_token_s: float
    error: float


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds of one decode at one batch size.

    Attributes:
        batch: sequences in the decode.
        seconds: median for m = 1, 2, ... tokens a sequence.
        error: relative half-width of each median's 95% interval (order statistics).
        n: samples behind each median.
    """

    batch: int
    seconds: tuple[float, ...]
    error: tuple[float, ...]
    n: int

    @classmethod
    def from_samples(cls, batch: int, samples: NDArray[np.float64]) -> "Curve":
        """Medians of samples [n, m]."""
        n = len(samples)
        ordered = np.sort(samples, axis=0)
        median = np.median(ordered, axis=0)
        # Ranks n/2 -+ 1.96 sqrt(n)/2 bound the median at 95%, for any distribution.
        reach = 0.98 * np.sqrt(n)
        low, high = (int(np.clip(r, 0, n - 1)) for r in (np.floor(n / 2 - reach), np.ceil(n / 2 + reach) - 1))
        error = (ordered[high] - ordered[low]) / (2 * median)
        return cls(batch, tuple(median.tolist()), tuple(error.tolist()), n)

    def fit(self) -> Affine:
        """The line through the measured points."""
        m, t = np.arange(1, len(self.seconds) + 1), np.array(self.seconds)
        per_token, base = np.polyfit(m, t, 1) if len(m) > 1 else (0.0, t[0])
        return Affine(float(base), float(per_token), float(np.abs((base + per_token * m) / t - 1).max()))

    def at(self, tokens: NDArray[Any]) -> NDArray[np.float64]:
        """Seconds of decodes of `tokens` a sequence (any shape, >= 1): measured points, beyond them the line's slope."""
        known = np.array(self.seconds)
        inside = known[np.minimum(tokens, len(known)) - 1]
        return inside + np.maximum(tokens - len(known), 0) * max(self.fit().per_token_s, 0.0)


@dataclass(frozen=True, slots=True)
class StepCost:
    """Costs of one setup.

    Attributes:
        curves: verification by batch size.
        draft_s: seconds to draft one token at batch 1; 0 for lookup, whose time is part of `overhead_s`.
        overhead_s: seconds a step spends outside decode and draft model: lookup, rule, bookkeeping.
    """

    curves: Mapping[int, Curve]
    draft_s: float = 0.0
    overhead_s: float = 0.0

    def curve(self, batch: int) -> Curve:
        """The curve of a measured batch size.

        Raises:
            ConfigError: this batch size was not measured.
        """
        if batch not in self.curves:
            raise ConfigError(f"no cost was measured at batch size {batch}; measured: {sorted(self.curves)}")
        return self.curves[batch]

    def step_s(self, drafted: NDArray[Any], batch: int = 1) -> NDArray[np.float64]:
        """Seconds of steps that draft `drafted` tokens a sequence (any shape, >= 0)."""
        return self.curve(batch).at(drafted + 1) + self.draft_s * drafted + self.overhead_s

    def to_mapping(self) -> dict[str, Any]:
        """Plain values for JSON."""
        curves = [
            {"batch": c.batch, "seconds": list(c.seconds), "error": list(c.error), "n": c.n, "fit_error": c.fit().error}
            for c in self.curves.values()
        ]
        return {"curves": curves, "draft_s": self.draft_s, "overhead_s": self.overhead_s}

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any]) -> "StepCost":
        """What `to_mapping` wrote."""
        rows = (Curve(c["batch"], tuple(c["seconds"]), tuple(c["error"]), c["n"]) for c in data["curves"])
        return cls({c.batch: c for c in rows}, data["draft_s"], data["overhead_s"])
