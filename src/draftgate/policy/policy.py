"""A policy: everything that decides which drafted tokens are kept and how many are drafted."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftgate.errors import ConfigError, nearest
from draftgate.policy.category import GROUPS, Category
from draftgate.policy.length import Fixed, Goodput, Length
from draftgate.policy.rules import RULES, Rule, rule_named
from draftgate.policy.syntax import canonical

__all__ = ["NONE", "Policy"]


@dataclass(frozen=True, slots=True)
class Policy:
    """One way to speculate; immutable and checked when made.

    The threshold of a token is `tau`, or the `position` schedule at its output offset, plus the offsets of its category
    and of the request's language, clipped to `bounds`.

    Attributes:
        name: how reports and error messages call it.
        rule: name of an acceptance rule in `rules.RULES`.
        tau: base threshold in [0, 1]; None for rules without one, and with a position schedule.
        params: the rule's other knobs by name; missing ones take their defaults.
        category: offset on tau in [-1, 1] by category name or group name ("safe", "normal", "structural").
        language: offset on tau in [-1, 1] by language name; kept under canonical names.
        position: (offset in output tokens, tau) points with rising offsets, linear between them, flat outside.
        bounds: least and greatest threshold after all offsets, within [0, 1].
        truncate: tokens that the target draws itself also come from its law cut to what the rule keeps; for rules that
            truncate, without category offsets. Without drafts it is sampling under the rule's cut.
        length: draft length.
        draft_temperature: temperature of a draft model in [0, 10]; 0 drafts its argmax.
        draft_top_p: nucleus of a draft model in (0, 1].

    Raises:
        ConfigError: a name is unknown, a value is out of range, or a setting does nothing under this rule.
    """

    name: str
    rule: str = "exact"
    tau: float | None = None
    params: Mapping[str, float] = field(default_factory=dict)
    category: Mapping[str, float] = field(default_factory=dict)
    language: Mapping[str, float] = field(default_factory=dict)
    position: tuple[tuple[int, float], ...] = ()
    bounds: tuple[float, float] = (0.0, 1.0)
    truncate: bool = False
    length: Length = field(default_factory=lambda: Fixed(3))
    draft_temperature: float = 0.0
    draft_top_p: float = 1.0

    def __post_init__(self) -> None:
        try:
            rule = rule_named(self.rule)
            self._check_threshold(rule)
            self._check_draft()
            complete = {
                "params": _params(rule, self.params),
                "category": _category(self.category),
                "language": _language(self.language),
            }
        except ConfigError as error:
            raise ConfigError(f"policy '{self.name}': {error}") from None
        for name, value in complete.items():
            object.__setattr__(self, name, value)

    def _check_threshold(self, rule: Rule) -> None:
        if self.truncate and (not rule.truncates or self.category):
            able = sorted(r.name for r in RULES.values() if r.truncates)
            raise ConfigError(f"truncate needs a rule of {able} without category offsets but got '{rule.name}'")
        if not rule.uses_tau:
            self._refuse_threshold(rule)
            return
        if (self.tau is None) == (not self.position):
            got = "neither" if self.tau is None else "both"
            raise ConfigError(f"rule '{rule.name}' needs either tau or a position schedule but got {got}")
        if self.tau is not None:
            _within("tau", self.tau, 0.0, 1.0)
        for at, tau in self.position:
            _within(f"position: tau at offset {at}", tau, 0.0, 1.0)
        offsets = [at for at, _ in self.position]
        if offsets != sorted(set(offsets)) or any(at < 0 for at in offsets):
            raise ConfigError(f"position: offsets must be >= 0 and rise from point to point but got {offsets}")
        low, high = self.bounds
        if not 0.0 <= low <= high <= 1.0:  # also refuses NaN
            raise ConfigError(f"bounds must satisfy 0 <= least <= greatest <= 1 but got {list(self.bounds)}")

    def _refuse_threshold(self, rule: Rule) -> None:
        given = {name: getattr(self, name) for name in ("tau", "category", "language", "position")}
        useless = [name for name, value in given.items() if value not in (None, {}, ())]
        if self.bounds != (0.0, 1.0):
            useless.append("bounds")
        if useless:
            raise ConfigError(
                f"rule '{rule.name}' has no threshold, so {useless[0]} would do nothing; "
                f"remove it or use 'threshold' or 'threshold-or-lossless'"
            )

    def _check_draft(self) -> None:
        if self.length.most < 0:
            raise ConfigError(f"draft length k must be >= 0 but got {self.length.most}")
        _within("draft temperature", self.draft_temperature, 0.0, 10.0)
        _within("draft top_p", self.draft_top_p, 1e-6, 1.0)

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
        return bool(self.category) or (isinstance(self.length, Goodput) and len(self.length.calibration.groups) > 1)

    def category_offsets(self) -> NDArray[np.float32]:
        """Offset on tau by category, [len(Category)]; a category's own name wins over its group's."""
        pairs = ((self.category.get(c.name.lower()), self.category.get(GROUPS[c], 0.0)) for c in Category)
        return np.array([group if own is None else own for own, group in pairs], np.float32)

    def taus(self, category: NDArray[np.uint8], offset: NDArray[Any], language: str | None) -> NDArray[np.float32]:
        """Threshold of each token.

        Args:
            category: token categories, any shape.
            offset: output offsets of the tokens, same shape.
            language: the request's language in any spelling, None when unknown.

        Returns:
            Thresholds shaped as `category`, in the policy's bounds. They are float32, so compare with a tolerance.

        Raises:
            ConfigError: the policy has language offsets, and no such language exists.
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
        taus: NDArray[np.float32] = base.clip(*self.bounds)
        return taus


_CATEGORY_NAMES = frozenset({c.name.lower() for c in Category} | set(GROUPS.values()))


def _within(what: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:  # also refuses NaN
        raise ConfigError(f"{what} must be in [{low:g}, {high:g}] but got {value}")


def _params(rule: Rule, given: Mapping[str, float]) -> dict[str, float]:
    """Every parameter of the rule: the given ones, and the defaults of the others."""
    knobs = {knob.name: knob for knob in rule.knobs if knob.name != "tau"}
    for name, value in given.items():
        if name not in knobs:
            hint = nearest(name, knobs) if knobs else "it has none"
            raise ConfigError(f"params: rule '{rule.name}' has no parameter '{name}'; {hint}")
        _within(f"params.{name}", value, knobs[name].low, knobs[name].high)
    return {name: knob.default for name, knob in knobs.items() if knob.default is not None} | dict(given)


def _category(offsets: Mapping[str, float]) -> dict[str, float]:
    for name, value in offsets.items():
        if name not in _CATEGORY_NAMES:
            raise ConfigError(f"unknown category '{name}'; {nearest(name, _CATEGORY_NAMES)}")
        _within(f"category.{name}", value, -1.0, 1.0)
    return dict(offsets)


def _language(offsets: Mapping[str, float]) -> dict[str, float]:
    """The offsets under canonical names."""
    out: dict[str, float] = {}
    for name, value in offsets.items():
        _within(f"language.{name}", value, -1.0, 1.0)
        key = canonical(name)
        if key in out:
            raise ConfigError(f"language.{name}: '{key}' is given twice; keep one spelling")
        out[key] = value
    return out


NONE = Policy("none", length=Fixed(0))
