"""vLLM's own acceptance figures, in draftgate's words: its Prometheus counters, and the metrics of one response.

Both as vLLM 0.32 writes them (`v1/spec_decode/metrics.py`, `v1/metrics/stats.py`). What was not reported is None. vLLM
counts an accepted token even where the output ended before it, so its figures lie slightly above draftgate's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from draftgate.errors import EngineError, require

__all__ = ["Acceptance", "Counters", "of_request", "read_counters"]

_NAMES: Mapping[str, str] = {
    "vllm:spec_decode_num_drafts_total": "drafts",
    "vllm:spec_decode_num_draft_tokens_total": "drafted_tok",
    "vllm:spec_decode_num_accepted_tokens_total": "accepted_tok",
    "vllm:generation_tokens_total": "generated_tok",
    "vllm:time_to_first_token_seconds_count": "first_tok",
}
_PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
_STARTED = "process_start_time_seconds"


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Acceptance over some steps.

    Attributes:
        steps: decode steps, over sequences, those that drafted nothing included; None when not known.
        drafts: steps that drafted.
        rate: accepted over drafted tokens, without bonus tokens; None when nothing was drafted.
        length: committed tokens per step that drafted, bonus token included; None without such steps.
        survival: share of drafting steps that kept position i; None when positions were not reported.
        conditional: survival[i] / survival[i - 1], survival[0] for the first; None where nothing survived. A draft that
            was shorter counts as one that did not keep the position.
        coverage: drafts over steps.
    """

    steps: int | None
    drafts: int
    rate: float | None
    length: float | None
    survival: tuple[float, ...] | None
    conditional: tuple[float | None, ...] | None
    coverage: float | None

    @classmethod
    def of(
        cls, drafts: int, drafted: int, accepted: int, per_position: Sequence[int] | None, steps: int | None
    ) -> "Acceptance":
        """Ratios of counts; `per_position` counts the drafting steps that kept each position."""
        survival = None if per_position is None or not drafts else tuple(n / drafts for n in per_position)
        return cls(
            steps=steps,
            drafts=drafts,
            rate=accepted / drafted if drafted else None,
            length=1 + accepted / drafts if drafts else None,
            survival=survival,
            conditional=None if survival is None else _conditional(survival),
            coverage=drafts / steps if steps else None,
        )


def _conditional(survival: Sequence[float]) -> tuple[float | None, ...]:
    before = (1.0, *survival[:-1])
    return tuple(now / b if b else None for now, b in zip(survival, before, strict=True))


@dataclass(frozen=True, slots=True)
class Counters:
    """Totals since the server started, summed over its engines; None for a counter it does not have.

    Attributes:
        drafts: steps that drafted, over sequences.
        drafted_tok: drafted tokens; accepted_tok: those kept.
        generated_tok: output tokens of all requests.
        first_tok: requests that got their first token, which the prefill chose.
        per_position: drafting steps that kept each position.
        started: when the server process started, seconds since 1970; changes with a restart.
    """

    drafts: int | None
    drafted_tok: int | None
    accepted_tok: int | None
    generated_tok: int | None
    first_tok: int | None
    per_position: tuple[int, ...] | None
    started: float | None

    def since(self, before: "Counters") -> "Counters | None":
        """What was counted between two scrapes; None when the server restarted and part of it is lost.

        >>> Counters(9, 40, 20, 31, 2, (9, 8), 5.0).since(Counters(4, 20, 10, 11, 1, (4, 3), 5.0)).per_position
        (5, 5)
        >>> Counters(1, 4, 2, 3, 1, (1, 1), 9.0).since(Counters(4, 20, 10, 11, 1, (4, 3), 5.0)) is None
        True
        """
        names = list(_NAMES.values())
        counts = [_minus(getattr(self, name), getattr(before, name)) for name in names]
        positions = None
        if self.per_position is not None and before.per_position is not None:
            positions = tuple(now - then for now, then in zip(self.per_position, before.per_position, strict=True))
        fell = any(n is not None and n < 0 for n in (*counts, *(positions or ())))
        if fell or self.started != before.started:
            return None
        return Counters(**dict(zip(names, counts, strict=True)), per_position=positions, started=self.started)

    def acceptance(self) -> Acceptance | None:
        """Ratios; None when the server does not speculate and so has no such counters.

        A step commits one token more than it accepts and a prefill commits one: that gives the number of steps.
        """
        if self.drafts is None or self.drafted_tok is None or self.accepted_tok is None:
            return None
        steps = None
        if self.generated_tok is not None and self.first_tok is not None:
            # An output that ends inside a step has fewer tokens than were accepted: never fewer steps than drafts.
            steps = max(self.generated_tok - self.first_tok - self.accepted_tok, self.drafts)
        return Acceptance.of(self.drafts, self.drafted_tok, self.accepted_tok, self.per_position, steps)


def _minus(now: int | None, before: int | None) -> int | None:
    return None if now is None or before is None else now - before


def read_counters(text: str, model: str | None = None) -> Counters:
    """Parse a scrape of `/metrics`.

    Args:
        text: in Prometheus' text format.
        model: count this served model alone; None counts all.

    Raises:
        EngineError: it is not in that format.
        MissingExtraError: prometheus-client is not installed.
    """
    parser = require("prometheus_client.parser", "vllm")
    totals: dict[str, int] = {}
    positions: dict[int, int] = {}
    started = None
    try:
        for sample in (s for family in parser.text_string_to_metric_families(text) for s in family.samples):
            if sample.name == _STARTED:
                started = sample.value
            elif model is not None and sample.labels.get("model_name") != model:
                continue
            elif sample.name in _NAMES:
                totals[_NAMES[sample.name]] = totals.get(_NAMES[sample.name], 0) + int(sample.value)
            elif sample.name == _PER_POSITION:
                at = int(sample.labels["position"])
                positions[at] = positions.get(at, 0) + int(sample.value)
    except (ValueError, KeyError) as error:
        raise EngineError(f"the server's metrics are not in Prometheus' text format: {error}") from error
    return Counters(
        **{name: totals.get(name) for name in _NAMES.values()},
        per_position=tuple(positions[i] for i in sorted(positions)) if positions else None,
        started=started,
    )


def of_request(metrics: Mapping[str, Any], output_tok: int) -> Acceptance:
    """Acceptance of one response, from its `metrics.speculative_decoding` (or `RequestSpecDecodeMetrics.to_dict()`).

    Args:
        metrics: as the server gave it.
        output_tok: tokens of the output.

    Raises:
        EngineError: a field is missing; another version of vLLM wrote it.
    """
    try:
        histogram: Sequence[int] = metrics["acceptance_histogram"]
        drafts, drafted = int(metrics["num_spec_steps"]), int(metrics["num_draft_tokens"])
        accepted = int(metrics["num_accepted_draft_tokens"])
    except (KeyError, TypeError, ValueError) as error:
        raise EngineError(f"the response's acceptance metrics are not those of vLLM 0.32: {error!r}") from error
    kept = [sum(histogram[i + 1 :]) for i in range(len(histogram) - 1)]
    return Acceptance.of(drafts, drafted, accepted, kept, max(output_tok - 1 - accepted, drafts))
