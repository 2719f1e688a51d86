"""Whether two greedy texts part at a near-tie, asked of a server: a gap of two logits, and how far logits move.

A server cannot be told how many tokens to read at once. So the output is read in two ways that differ as speculation
does: in one go, as part of a prompt, and token by token, by having it generated again without drafts. How far the
log-probabilities of likely tokens lie apart is the noise.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any

__all__ = ["gap"]

Ask = Callable[[Mapping[str, Any]], Mapping[str, Any]]
Laws = list[dict[int, float]]  # log-probabilities of the likeliest tokens, by token

_LIKELY = 20  # what a server gives by default


def gap(ask: Ask, prompt: Sequence[int], output: Sequence[int], first: int, second: int) -> tuple[float, float]:
    """Logit of `first` minus logit of `second` after prompt and output, and the noise.

    A token that is not among the likeliest counts as the last of them, so the gap of such a pair is a lower bound.

    Args:
        ask: completes a request body and returns its choice.
    """
    read = _read(ask, prompt, [*output, first])
    text, generated = _generated(ask, prompt, len(output) + 1)
    same = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(text, output, strict=False))))
    moved = [
        abs(a[token] - b[token])
        for a, b in zip(read, generated[: same + 1], strict=False)
        for token in a.keys() & b.keys()
    ]
    law = generated[same] if same == len(output) and same < len(generated) else read[-1]
    least = min(law.values())
    return law.get(first, least) - law.get(second, least), max(moved)


def _read(ask: Ask, prompt: Sequence[int], output: Sequence[int]) -> Laws:
    """Laws at each position of the output, read in one go."""
    choice = ask({"prompt": [*prompt, *output], "max_tokens": 1, "prompt_logprobs": _LIKELY})
    rows = choice["prompt_logprobs"][len(prompt) :]
    return [{int(token): value["logprob"] for token, value in row.items()} for row in rows]


def _generated(ask: Ask, prompt: Sequence[int], most: int) -> tuple[list[int], Laws]:
    """Greedy tokens after a prompt, and the laws they were chosen from."""
    choice = ask(
        {
            "prompt": list(prompt),
            "max_tokens": most,
            "logprobs": _LIKELY,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
        }
    )
    rows = choice["logprobs"]["top_logprobs"]
    laws = [{int(name.removeprefix("token_id:")): value for name, value in row.items()} for row in rows]
    return choice["token_ids"], laws
