"""One verification of a whole batch in torch: which drafted tokens are kept, and what follows them.

The layout is that of vLLM's V1 sampler (`vllm/v1/sample/rejection_sampler.py`, 0.32): the N drafted tokens of R
requests lie one after the other, and row i of the logits [N, V] scores drafted token i. Only the first rejected token
of a request needs a replacement, so laws are read for R rows, not N.

Nothing waits for the device: no value is read back, and no shape depends on one.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from draftgate.engines.vllm.rules import Scores, accept_probability
from draftgate.engines.vllm.tables import PolicyTables
from draftgate.engines.vllm.target import Target, recovered

__all__ = ["Draft", "Draws", "Outcome", "Record", "Rows", "verify_batch"]

_EVERYTHING = frozenset({"p", "top", "rank", "entropy"})


@dataclass(frozen=True, slots=True)
class Rows:
    """Which policy each request of the batch follows; int64 on the device, [R].

    Attributes:
        slot: policy slot.
        language: language id (`tables.language_id`).
        offset: output offset of the request's first drafted token; None where no threshold depends on it.
        only: the slot of all requests, where the host knows that they share one.
    """

    slot: Tensor
    language: Tensor
    offset: Tensor | None
    only: int | None = None


@dataclass(frozen=True, slots=True)
class Draft:
    """The drafted tokens of a batch.

    Attributes:
        tokens: token ids [N]; one outside the vocabulary, such as vLLM's -1, is rejected.
        ends: how many tokens the requests up to and with this one drafted [R].
        most: the longest draft, K.
        probs: laws that the tokens were drawn from [N, V]; None for a deterministic draft.
    """

    tokens: Tensor
    ends: Tensor
    most: int
    probs: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Draws:
    """Random numbers of one verification, on the device.

    Attributes:
        uniform: in [0, 1], one a drafted token [N].
        inverse: 1 / e for standard exponential e [R, V].
    """

    uniform: Tensor
    inverse: Tensor


@dataclass(frozen=True, slots=True)
class Record:
    """What a trace keeps of every drafted token, kept or not; [N] each.

    Attributes:
        tokens: token ids; those outside the vocabulary moved into it.
        category: token categories; None when they are not loaded.
        scores: all of them.
        uniform: the number that the acceptance probability was compared with.
    """

    tokens: Tensor
    category: Tensor | None
    scores: Scores
    uniform: Tensor


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the step gives.

    Attributes:
        tokens: int32 [R, K + 1]: the kept tokens, one more, then -1.
        accepted: how many drafted tokens were kept [R].
        record: None unless asked for, and when nothing was drafted.
    """

    tokens: Tensor
    accepted: Tensor
    record: Record | None


def verify_batch(
    tables: PolicyTables,
    rows: Rows,
    draft: Draft,
    logits: Tensor,
    bonus: Tensor,
    draws: Draws | None,
    greedy: Tensor | None = None,
    record: bool = False,
) -> Outcome:
    """Apply each request's policy to its draft.

    Rule 'lossless' gives the tokens of vLLM's own sampler for the same random numbers, and so does 'exact' where drafts
    are deterministic or decoding is greedy.

    Args:
        tables: the policies.
        rows: which policy each request follows.
        draft: the drafted tokens.
        logits: target logits after temperature (1 where decoding is greedy), top-k and top-p [N, V], float32.
        bonus: token that follows a draft that is kept whole [R].
        draws: random numbers; None when all requests decode greedily.
        greedy: which requests of a mixed batch decode greedily [R]; None when all are alike.
        record: also return what a trace keeps; the tokens are the same without.
    """
    if draft.tokens.shape[0] == 0:
        return Outcome(bonus[:, None].int(), torch.zeros_like(rows.slot), None)
    flat = _Flat.of(draft, logits.shape[1])
    keep_laws = draws is not None and (flat.single or logits.shape[0] <= Target.at_once(logits))
    target = Target.of(logits, draws is None or greedy is not None, keep_laws)
    q = None if draft.probs is None else draft.probs.gather(1, flat.tokens[:, None])[:, 0]
    accept, recorded = _judged(tables, rows, flat, target, q, draws, greedy, record)
    keep = accept.bool() & flat.known
    instead = target.choice
    if draws is not None:  # else laws are 0 or 1, and so is all that rules make of them
        # "At least", as in vLLM: a number that rounding took to 1 still keeps what is certain.
        keep &= accept >= draws.uniform
        if q is not None:  # also as in vLLM: what could not be drafted is not kept
            keep &= q > 0 if greedy is None else (q > 0) | flat.each(greedy)
    accepted = flat.leading(keep)
    if draws is not None:
        instead = flat.each(_drawn(tables, rows, target, draft, flat, accepted[:, 0], draws, greedy))
    text = flat.after(torch.where(keep, draft.tokens.int(), instead.int()), bonus.int())
    output = torch.where(_numbers(draft.most + 1, accepted) <= accepted, text, -1)
    return Outcome(output, accepted[:, 0], recorded)


def _judged(
    tables: PolicyTables,
    rows: Rows,
    flat: "_Flat",
    target: Target,
    q: Tensor | None,
    draws: Draws | None,
    greedy: Tensor | None,
    record: bool,
) -> tuple[Tensor, Record | None]:
    """Probability of each token to be kept [N], and what a trace keeps if it is asked for.

    What no policy of these rows reads is not made.
    """
    slot = flat.each(rows.slot) if rows.only is None else rows.only
    facts = tables.facts(slot)
    keep_choice = facts.keep_choice and not record
    if keep_choice and draws is None and target.agrees(flat.tokens):
        return target.logits.new_ones(flat.tokens.shape[0]), None
    needs = _EVERYTHING if record else facts.needs if draws is None else facts.needs | {"p"}
    each_greedy = None if greedy is None else flat.each(greedy)
    scores = target.scores(flat.tokens, each_greedy, q, needs, keep_choice)
    language = flat.each(rows.language) if record or facts.category or facts.language else None
    category = None if language is None else tables.categories(flat.tokens, language)
    offset = flat.each(rows.offset) + flat.place() if facts.position and rows.offset is not None else None
    taus = tables.taus(slot, category, offset, language)
    accept = accept_probability(tables, slot, taus, scores)
    if not record:
        return accept, None
    uniform = torch.full_like(accept, 0.5) if draws is None else draws.uniform
    return accept, Record(flat.tokens, category, scores, uniform)


def _drawn(
    tables: PolicyTables,
    rows: Rows,
    target: Target,
    draft: Draft,
    flat: "_Flat",
    accepted: Tensor,
    draws: Draws,
    greedy: Tensor | None,
) -> Tensor:
    """What replaces each request's first rejected token [R]; means nothing where none was rejected."""
    at = slice(None) if flat.single else (flat.start + accepted).clamp(max=flat.tokens.shape[0] - 1)
    q = None if draft.probs is None else draft.probs[at]
    residual = tables.residual[rows.slot]
    drawn = recovered(target.laws(at), q, flat.tokens[at], flat.known[at], residual, draws.inverse)
    return drawn if greedy is None else torch.where(greedy, target.choice[at], drawn)


@dataclass(frozen=True, slots=True)
class _Flat:
    """Where the drafted tokens belong. Drafts of one length, as most are, make a grid [R, K] by themselves.

    Attributes:
        most: the longest draft, K.
        ends: how many tokens the requests up to and with this one drafted [R].
        count: drafted tokens of each request [R, 1], or of all.
        row: request of each token [N]; None when all drafts are K long.
        tokens: the tokens, moved into the vocabulary [N].
        known: whether the token was in the vocabulary as it came [N].
    """

    most: int
    ends: Tensor
    count: Tensor | int
    row: Tensor | None
    tokens: Tensor
    known: Tensor

    @classmethod
    def of(cls, draft: Draft, vocabulary: int) -> "_Flat":
        wide, ends, most = draft.tokens.long(), draft.ends, draft.most
        tokens = wide.clamp(0, vocabulary - 1)
        known = tokens == wide
        if wide.shape[0] == ends.shape[0] * most:  # none is longer than K, so none is shorter
            return cls(most, ends, most, None, tokens, known)
        count = torch.diff(ends, prepend=ends.new_zeros(1))
        row = torch.searchsorted(ends, _numbers(wide.shape[0], ends), right=True)
        return cls(most, ends, count[:, None], row, tokens, known)

    @property
    def start(self) -> Tensor:
        """First token of each request [R]."""
        return self.ends - (self.count[:, 0] if isinstance(self.count, Tensor) else self.count)

    @property
    def single(self) -> bool:
        """Whether every request has one drafted token: then what is of tokens is of requests."""
        return self.row is None and self.most == 1

    def each(self, values: Tensor) -> Tensor:
        """Values of the requests [R], for each of their tokens [N]."""
        return values[:, None].expand(-1, self.most).flatten() if self.row is None else values[self.row]

    def place(self) -> Tensor:
        """Position of each token in its draft [N]."""
        return _numbers(self.tokens.shape[0], self.ends) - self.each(self.start)

    def grid(self, values: Tensor) -> Tensor:
        """Values of the tokens [N] by request and position [R, K]; means nothing behind the end of a draft."""
        if self.row is None:
            return values.view(-1, self.most)
        index = self.start[:, None] + _numbers(self.most, self.ends)
        return values[index.clamp(max=values.shape[0] - 1)]

    def after(self, values: Tensor, last: Tensor) -> Tensor:
        """The same with one more at the end of each draft [R, K + 1], from `last` [R]."""
        grid = torch.cat((self.grid(values), last[:, None]), 1)
        if isinstance(self.count, Tensor):
            grid.scatter_(1, self.count.long(), last[:, None])
        return grid

    def leading(self, keep: Tensor) -> Tensor:
        """How many tokens each request keeps up to its first rejection [R, 1], from what is kept by itself [N]."""
        kept = self.grid(keep)
        if isinstance(self.count, Tensor):
            kept = kept & (_numbers(self.most, self.ends) < self.count)
        return kept.long() if self.most == 1 else kept.cumprod(1).sum(1, keepdim=True)


def _numbers(n: int, like: Tensor) -> Tensor:
    """0 to n - 1, where and as the other tensor is."""
    return torch.arange(n, dtype=like.dtype, device=like.device)
