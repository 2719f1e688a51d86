"""The acceptance rules of `policy.rules` in torch, for batches whose tokens follow different policies.

Each function says what its namesake there says, in the same operations, so the two agree to the last bit on the same
numbers (except through `exp`, whose last bit is the library's). What they mean and where they come from is said there.
Nothing here waits for the device: which rules run at all is known on the host, and tables select the rest.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from draftgate.engines.vllm.tables import PARAMS, RULE_IDS, PolicyTables

__all__ = ["Scores", "accept_probability"]


@dataclass(frozen=True, slots=True)
class Scores:
    """What one verification says about drafted tokens: `policy.rules.Scores` as tensors of one shape and type.

    Fields that no rule in use reads (`Facts.needs`) may be empty. `q` is None for a deterministic draft, where it is 1.
    """

    p: Tensor
    law: Tensor
    q: Tensor | None
    top: Tensor
    rank: Tensor
    entropy: Tensor


Params = Mapping[str, Tensor]  # float64, as Python's numbers are in the numpy rules
Accept = Callable[[Scores, Tensor, Params], Tensor]


def accept_probability(tables: PolicyTables, slot: Tensor | int, taus: Tensor, scores: Scores) -> Tensor:
    """Probability that each drafted token is kept, in [0, 1], shaped and typed as the scores.

    Args:
        tables: the policies.
        slot: policy slot of each token, which broadcasts to the scores, or the one slot of all.
        taus: threshold of each token, from `PolicyTables.taus`.
        scores: of each token, float32 or float64.
    """
    facts = tables.facts(slot)
    params = dict(zip(PARAMS, tables.params[slot].unbind(-1), strict=True)) if facts.params else {}
    accept, *others = (_ACCEPT[name](scores, taus, params) for name in facts.rules)
    for name, own in zip(facts.rules[1:], others, strict=True):
        accept = torch.where(tables.rule[slot] == RULE_IDS[name], own, accept)
    return accept


def _or(hit: Tensor, otherwise: Tensor) -> Tensor:
    return torch.maximum(hit.to(otherwise.dtype), otherwise)


def _exact(s: Scores, tau: Tensor, params: Params) -> Tensor:
    return s.law


def _lossless(s: Scores, tau: Tensor, params: Params) -> Tensor:
    if s.q is None:
        return s.law
    return s.law / torch.maximum(s.law, s.q).clamp(min=_TINY)


def _threshold(s: Scores, tau: Tensor, params: Params) -> Tensor:
    return (s.p >= tau).to(s.law.dtype)


def _threshold_or_lossless(s: Scores, tau: Tensor, params: Params) -> Tensor:
    return _or(s.p >= tau, _lossless(s, tau, params))


def _sglang(s: Scores, tau: Tensor, params: Params) -> Tensor:
    return _or(s.p >= tau, (s.law / params["acc"].to(s.law.dtype)).clamp(0.0, 1.0))


def _typical(s: Scores, tau: Tensor, params: Params) -> Tensor:
    bound = torch.minimum(tau, params["delta"].to(s.law.dtype) * torch.exp(-s.entropy))
    return (s.p >= bound).to(s.law.dtype)


def _topk_margin(s: Scores, tau: Tensor, params: Params) -> Tensor:
    near = s.p >= s.top - params["delta"].to(s.law.dtype)
    return ((s.rank < params["top_k"]) & near).to(s.law.dtype)


def _cascade(s: Scores, tau: Tensor, params: Params) -> Tensor:
    return _or(s.p >= (1.0 - params["alpha"]).to(s.law.dtype) * s.top, s.law)


_TINY = 1e-37

_ACCEPT: Mapping[str, Accept] = {
    "exact": _exact,
    "lossless": _lossless,
    "threshold": _threshold,
    "threshold-or-lossless": _threshold_or_lossless,
    "sglang": _sglang,
    "typical": _typical,
    "topk-margin": _topk_margin,
    "cascade": _cascade,
}
