"""Policies as tensors: a row of every table is a policy, so that one batch can mix policies without a branch.

Tables have a fixed size and are updated in place: a policy changes between two steps without a new allocation, a kernel
compiled anew, or a wait for the device. What is the same for all rows (which rules are in use at all) is known on the
host, and saves work there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftgate.errors import ConfigError
from draftgate.policy.category import Category, category_table
from draftgate.policy.policy import Policy
from draftgate.policy.rules import RULES, Residual
from draftgate.policy.syntax import canonical, language_names

__all__ = ["LANGUAGES", "MAX_POINTS", "PARAMS", "RULE_IDS", "Facts", "PolicyTables", "category_tables", "language_id"]

LANGUAGES: tuple[str | None, ...] = (None, *sorted(language_names()))
"""Languages by id; 0 is an unknown one, which has no offset on tau."""

RULE_IDS = {name: i for i, name in enumerate(RULES)}

PARAMS = tuple(sorted({knob.name for rule in RULES.values() for knob in rule.knobs} - {"tau"}))
"""Columns of `PolicyTables.params`."""

MAX_POINTS = 16  # of a position schedule

_KEEP_THE_CHOICE = frozenset({"exact", "lossless", "threshold-or-lossless", "sglang", "topk-margin", "cascade"})
_TYPICAL_DELTA = 0.99  # up to which 'typical' is one of them, rounding included


def language_id(language: str | None) -> int:
    """Id of a language in any spelling; 0 for None.

    Raises:
        ConfigError: no such language.
    """
    return 0 if language is None else LANGUAGES.index(canonical(language))


def category_tables(pieces: Sequence[bytes]) -> NDArray[np.uint8]:
    """Category of every token in every language, [len(LANGUAGES), V], from the tokens' decoded bytes."""
    return np.stack([category_table(pieces, language) for language in LANGUAGES])


@dataclass(frozen=True, slots=True)
class Facts:
    """What the host knows of some policies, and need not ask the device.

    Attributes:
        rules: names of their rules, sorted.
        needs: fields of `Scores` that some rule reads.
        keep_choice: whether every rule keeps the target's own choice under greedy decoding, however probable it is.
        params: whether some policy has parameters.
        position: whether some threshold depends on the output offset; and so on.
        bounds: whether some threshold has to be clamped.
    """

    rules: tuple[str, ...]
    needs: frozenset[str]
    keep_choice: bool
    params: bool
    position: bool
    category: bool
    language: bool
    bounds: bool

    @classmethod
    def of(cls, policies: Sequence[Policy]) -> "Facts":
        """Facts that hold for all of them at once."""
        rules = sorted({policy.rule for policy in policies})
        category, language = (any(getattr(p, name) for p in policies) for name in ("category", "language"))
        return cls(
            rules=tuple(rules),
            needs=frozenset[str]().union(*(RULES[rule].needs for rule in rules)),
            keep_choice=all(map(_keeps_the_choice, policies)),
            params=any(policy.params for policy in policies),
            position=any(len(policy.position) > 1 for policy in policies),
            category=category,
            language=language,
            bounds=category or language or any(policy.bounds != (0.0, 1.0) for policy in policies),
        )


class PolicyTables:
    """`slots` policies on a device. Slots start empty; a request must not point to an empty one.

    Strings and comments depend on the text before a token, which only the host knows; a step must not wait for the
    host, so here a token's category is what the token alone says (`category.category_table`), and a threshold meant
    for strings or comments acts on their delimiters only.

    Attributes:
        rule: index into `RULES` [P].
        residual: whether a rejection is replaced from the law without x, or minus q [P, 2].
        params: parameters of the rules, columns as in `PARAMS` [P, len(PARAMS)], float64.
    """

    def __init__(self, device: torch.device | str, slots: int = 16) -> None:
        def table(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros((slots, *shape), dtype=dtype, device=device)

        self.device = torch.device(device)
        self.rule = table(dtype=torch.int64)
        self.residual = table(2, dtype=torch.bool)
        self.params = table(len(PARAMS), dtype=torch.float64)
        self._points = table(3, MAX_POINTS, dtype=torch.float64)  # offset, tau there, slope from there
        self._constant = table()  # tau of policies without a schedule
        self._constants = self._constant.unbind()  # views of it, so that one policy's costs nothing
        self._category = table(len(Category))
        self._language = table(len(LANGUAGES))
        self._bounds = table(2)
        self._categories: Tensor | None = None
        self._policies = [_EMPTY] * slots
        self._facts = [Facts.of([_EMPTY])] * slots
        self._all = Facts.of([])

    def __len__(self) -> int:
        return len(self._policies)

    def __getitem__(self, slot: int) -> Policy:
        return self._policies[slot]

    def set(self, slot: int, policy: Policy) -> None:
        """Put a policy into a slot. Call it between steps, on the stream that the steps run on.

        Raises:
            ConfigError: no such slot, a position schedule of too many points, a policy that truncates, or category
                offsets before `load_categories`.
        """
        if not 0 <= slot < len(self):
            raise ConfigError(f"policy '{policy.name}': slot must be in [0, {len(self)}) but got {slot}")
        if policy.truncate:
            raise ConfigError(f"policy '{policy.name}': truncate: vLLM draws the tokens that were not drafted itself")
        if policy.category and self._categories is None:
            raise ConfigError(f"policy '{policy.name}': category: the tokenizer's categories are not loaded")
        rule = RULES[policy.rule]
        without = rule.residual is Residual.LAW_WITHOUT_X, rule.residual is Residual.LAW_MINUS_Q
        points = _points(policy)
        _write(self._points[slot], points)
        self._constant[slot] = float(np.float32(points[1, 0]))
        _write(self.residual[slot], np.array(without))
        _write(self.params[slot], np.array([policy.params.get(name, 0.0) for name in PARAMS]))
        _write(self._category[slot], policy.category_offsets())
        _write(self._language[slot], np.array([policy.language.get(name or "", 0.0) for name in LANGUAGES]))
        _write(self._bounds[slot], np.array(policy.bounds))
        self.rule[slot] = RULE_IDS[policy.rule]
        self._policies[slot], self._facts[slot] = policy, Facts.of([policy])
        self._all = Facts.of([held for held in self._policies if held is not _EMPTY])

    def clear(self, start: int) -> None:
        """Empty the slots from `start` on, so that policies that are no longer in force cost nothing."""
        self._policies[start:] = [_EMPTY] * (len(self) - start)
        self._all = Facts.of([held for held in self._policies if held is not _EMPTY])

    def facts(self, slot: Tensor | int) -> Facts:
        """Facts of the policy in a slot, or of all policies when slots are on the device."""
        return self._facts[slot] if isinstance(slot, int) else self._all

    def load_categories(self, categories: NDArray[np.uint8]) -> None:
        """Take the vocabulary's categories [len(LANGUAGES), V], as `category_tables` gives them."""
        self._categories = torch.from_numpy(categories).to(self.device)

    def categories(self, tokens: Tensor, language: Tensor) -> Tensor | None:
        """Category of each token, int64 shaped as `tokens`; None before `load_categories`. Tokens must be in the
        vocabulary."""
        return None if self._categories is None else self._categories[language, tokens].long()

    def taus(
        self, slot: Tensor | int, category: Tensor | None, offset: Tensor | None, language: Tensor | None
    ) -> Tensor:
        """Threshold of each token, float32: `Policy.taus` of the slot's policy, to the last bit.

        Args:
            slot: policy slots, or the one slot of all tokens; this and the others are integers that broadcast together.
            category: token categories; None when they are not loaded, or not needed by these facts.
            offset: output offsets; None likewise.
            language: language ids; None likewise.
        """
        facts = self.facts(slot)
        if facts.position and offset is not None:
            taus = self._scheduled(slot, offset)
        else:
            taus = self._constants[slot] if isinstance(slot, int) else self._constant[slot]
        if facts.category and category is not None:
            taus = taus + self._category[slot, category]
        if facts.language and language is not None:
            taus = taus + self._language[slot, language]
        if facts.bounds:
            taus = taus.clamp(self._bounds[slot, 0], self._bounds[slot, 1])
        return taus

    def _scheduled(self, slot: Tensor | int, offset: Tensor) -> Tensor:
        """The position schedule as in `numpy.interp`; a constant is a schedule of one point."""
        points = self._points[slot]
        offset = torch.maximum(offset.double(), points[..., 0, 0])
        segment = (points[..., 0, 1:] <= offset[..., None]).sum(-1, keepdim=True)
        at, tau, slope = (
            points.expand(*offset.shape, 3, -1).take_along_dim(segment[..., None, :], -1)[..., 0].unbind(-1)
        )
        return (slope * (offset - at) + tau).float()


def _keeps_the_choice(policy: Policy) -> bool:
    """Whether it keeps the target's own choice under greedy decoding, however probable it is.

    Entropy H is the mean of -log p, so it is at least that of the most probable token: its p >= exp(-H). 'typical'
    compares p with at most delta exp(-H); where both are equal, which takes delta = 1 and ties, rounding decides.
    """
    return policy.rule in _KEEP_THE_CHOICE or (policy.rule == "typical" and policy.params["delta"] <= _TYPICAL_DELTA)


_EMPTY = Policy("empty slot")


def _points(policy: Policy) -> NDArray[np.float64]:
    """Offsets, thresholds and slopes [3, MAX_POINTS] of a position schedule; flat after its last point."""
    position = policy.position or ((0, policy.tau or 0.0),)
    if len(position) > MAX_POINTS:
        raise ConfigError(
            f"policy '{policy.name}': position: at most {MAX_POINTS} points fit into a running server "
            f"but got {len(position)}; leave out points that lie on a line"
        )
    points = np.zeros((3, MAX_POINTS))
    points[0] = np.inf
    points[:2, : len(position)] = np.transpose(position)
    points[2, : len(position) - 1] = [(tau - t) / (at - a) for (a, t), (at, tau) in pairwise(position)]
    return points


def _write(row: Tensor, values: NDArray[np.generic]) -> None:
    row.copy_(torch.from_numpy(values))
