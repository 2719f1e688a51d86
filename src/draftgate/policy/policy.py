"""A policy: everything that decides which drafted tokens are kept and how many are drafted."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftgate.errors import ConfigError, nearest
from draftgate.policy.category import GROUPS, Category
from draftgate.policy.length import Fixed, Length
from draftgate.policy.lexer import canonical
from draftgate.policy.rules import RULES, Rule, rule_named

__all__ = ["NONE", "Policy"]


@dataclass(frozen=True)
class Policy:
    """One way to speculate; immutable and checked when made.

    The threshold of a token is `tau`, or the `position` schedule at its output offset, plus the offsets of its category
    and of the request's language, clipped to `bounds`.

    Attributes:
        tau: base threshold in [0, 1]; None for rules without one.
        params: the rule's other knobs by name; missing ones take their defaults.
        category: offset on tau by category name or group name ("safe", "normal", "structural").
        language: offset on tau by language name.
        position: (offset in output tokens, tau) points, linear between them, flat outside.
        bounds: least and greatest threshold after all offsets.
        length: draft length.
        draft_temperature: temperature of a draft model; 0 drafts its argmax.
        draft_top_p: nucleus of a draft model.

    Raises:
        ConfigError: a value is out of range, or a setting does nothing under this rule.
    """

    name: str
    rule: str = "exact"
    tau: float | None = None
    params: Mapping[str, float] = field(default_factory=dict)
    category: Mapping[str, float] = field(default_factory=dict)
    language: Mapping[str, float] = field(default_factory=dict)
    position: tuple[tuple[int, float], ...] = ()
    bounds: tuple[float, float] = (0.0, 1.0)
    length: Length = field(default_factory=lambda: Fixed(3))
    draft_temperature: float = 0.0
    draft_top_p: float = 1.0

    def __post_init__(self) -> None:
        rule = rule_named(self.rule)
        self._check_tau(rule)
        object.__setattr__(self, "params", self._complete_params(rule))
        object.__setattr__(self, "language", {canonical(k): v for k, v in self.language.items()})
        for name in self.category:
            if name not in _CATEGORY_NAMES:
                raise ConfigError(f"policy '{self.name}': unknown category '{name}'; {nearest(name, _CATEGORY_NAMES)}")
        for key, value in {**self.category, **self.language}.items():
            self._within(f"offset of '{key}'", value, -1.0, 1.0)
        self._within("draft temperature", self.draft_temperature, 0.0, 10.0)
        self._within("draft top_p", self.draft_top_p, 1e-6, 1.0)
        if self.length.most < 0:
            raise ConfigError(f"policy '{self.name}': draft length k must be >= 0 but got {self.length.most}")

    def _within(self, what: str, value: float, low: float, high: float) -> None:
        if not low <= value <= high:  # also refuses NaN
            raise ConfigError(f"policy '{self.name}': {what} must be in [{low:g}, {high:g}] but got {value}")

    def _check_tau(self, rule: Rule) -> None:
        low, high = self.bounds
        self._within("bounds", low, 0.0, 1.0)
        self._within("bounds", high, low, 1.0)
        if not rule.uses_tau:
            useless = [k for k in ("tau", "category", "language", "position") if getattr(self, k) not in (None, {}, ())]
            if useless:
                raise ConfigError(
                    f"policy '{self.name}': rule '{rule.name}' has no threshold, so {useless[0]} would do nothing; "
                    f"remove it or use 'threshold' or 'threshold-or-lossless'"
                )
            return
        if (self.tau is None) == (not self.position):
            raise ConfigError(f"policy '{self.name}': rule '{rule.name}' needs either tau or a position schedule")
        for tau in [self.tau] if self.tau is not None else [t for _, t in self.position]:
            self._within("tau", tau, 0.0, 1.0)
        offsets = [at for at, _ in self.position]
        if offsets != sorted(set(offsets)) or any(at < 0 for at in offsets):
            raise ConfigError(f"policy '{self.name}': position offsets must rise from >= 0 but got {offsets}")

    def _complete_params(self, rule: Rule) -> dict[str, float]:
        knobs = {knob.name: knob for knob in rule.knobs if knob.name != "tau"}
        for name, value in self.params.items():
            if name not in knobs:
                hint = nearest(name, knobs) if knobs else "it has none"
                raise ConfigError(f"policy '{self.name}': rule '{rule.name}' has no parameter '{name}'; {hint}")
            self._within(name, value, knobs[name].low, knobs[name].high)
        return {name: self.params.get(name, knob.default) for name, knob in knobs.items()}  # type: ignore[misc]

    @property
    def lossless(self) -> bool:
        """Whether the output law is the target's."""
        return RULES[self.rule].lossless

    @property
    def drafts(self) -> bool:
        """Whether it ever drafts; False is "no speculation"."""
        return self.length.most > 0

    @property
    def uses_category(self) -> bool:
        """Whether decisions depend on token categories."""
        return bool(self.category) or len(getattr(getattr(self.length, "calibration", None), "groups", "*")) > 1

    def category_offsets(self) -> NDArray[np.float32]:
        """Offset on tau by category, [len(Category)]; a category's own name wins over its group's."""
        pairs = ((self.category.get(c.name.lower()), self.category.get(GROUPS[c], 0.0)) for c in Category)
        return np.array([group if own is None else own for own, group in pairs], np.float32)

    def taus(self, category: NDArray[np.uint8], offset: NDArray[Any], language: str | None) -> NDArray[np.float32]:
        """Threshold of each token.

        Args:
            category: token categories, any shape.
            offset: output offsets of the tokens, same shape.
            language: the request's language, None when unknown.
        """
        if self.position:
            at, tau = zip(*self.position, strict=True)
            base = np.interp(offset, at, tau).astype(np.float32)
        else:
            base = np.full(category.shape, 0.0 if self.tau is None else self.tau, np.float32)
        if self.category:
            base += self.category_offsets()[category]
        if self.language and language is not None:
            base += np.float32(self.language.get(canonical(language), 0.0))
        return base.clip(*self.bounds)


_CATEGORY_NAMES = frozenset({c.name.lower() for c in Category} | set(GROUPS.values()))

NONE = Policy("none", length=Fixed(0))
