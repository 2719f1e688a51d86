"""Measured seconds of a step: verifying m tokens for each of B sequences, and drafting."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftgate.errors import ConfigError, TraceError

__all__ = ["Affine", "Curve", "StepCost"]


@dataclass(frozen=True, slots=True)
class Affine:
    """Least-squares line through a curve: seconds = base_s + per_token_s * m.

    Attributes:
        error: greatest relative distance of a measured point from the line; curves with steps (kernels that work in
            blocks of tokens) have a large one, so predictions read the measured points and use the line beyond them.
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
        """Medians of samples [n, m], n >= 1.

        The interval is the pair of order statistics that the normal approximation of Binomial(n, 1/2), with continuity
        correction, puts outside the median with chance 5% at most, whatever the distribution (David and Nagaraja,
        "Order Statistics", 2003, section 7.1). Below six samples no pair reaches that, and it is their whole range.
        """
        n = len(samples)
        ordered = np.sort(samples, axis=0)
        median = np.median(ordered, axis=0)
        low = max(int(np.floor(n / 2 - 0.98 * np.sqrt(n) - 0.5)), 0)
        error = (ordered[n - 1 - low] - ordered[low]) / (2 * median)
        return cls(batch, tuple(median.tolist()), tuple(error.tolist()), n)

    def fit(self) -> Affine:
        """The line through the measured points."""
        m, t = np.arange(1, len(self.seconds) + 1), np.array(self.seconds)
        per_token, base = np.polyfit(m, t, 1) if len(m) > 1 else (0.0, t[0])
        return Affine(float(base), float(per_token), float(np.abs((base + per_token * m) / t - 1).max()))

    def at(self, tokens: NDArray[Any]) -> NDArray[np.float64]:
        """Seconds of decodes of `tokens` >= 1 a sequence, any shape: as measured, then on along the line's slope."""
        known = np.array(self.seconds)
        inside: NDArray[np.float64] = known[np.minimum(tokens, len(known)) - 1]
        beyond = np.maximum(tokens - len(known), 0)
        return inside + beyond * max(self.fit().per_token_s, 0.0) if beyond.any() else inside


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
            raise ConfigError(f"no cost was measured at batch size {batch}; measure it, or use {sorted(self.curves)}")
        return self.curves[batch]

    def step_s(self, drafted: NDArray[Any], batch: int = 1) -> NDArray[np.float64]:
        """Seconds of steps that draft `drafted` tokens a sequence (any shape, >= 0).

        Raises:
            ConfigError: this batch size was not measured.
        """
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
        """What `to_mapping` wrote.

        Raises:
            TraceError: a value is missing; it was not written by this version.
        """
        try:
            rows = (Curve(c["batch"], tuple(c["seconds"]), tuple(c["error"]), c["n"]) for c in data["curves"])
            return cls({c.batch: c for c in rows}, data["draft_s"], data["overhead_s"])
        except (KeyError, TypeError) as error:
            raise TraceError(f"step costs cannot be read: {error!r}; measure them again") from error
