"""Decoding under a grammar: which tokens may come next, by llguidance.

The target's law under a grammar is its own law with the tokens that the grammar refuses masked out, renormalised. Every
drafted position is masked before the acceptance test, so a lossless rule keeps exactly that law, and a lossy one cannot
commit a token that the grammar refuses.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftgate.errors import ConfigError, WorkloadError, require
from draftgate.workload.prompt import Prompt

__all__ = ["Grammar", "Grammars", "schema_of"]

# JSON as models write it: a small model given unlimited whitespace may never stop writing it.
_SPACING = {"whitespace_flexible": True, "whitespace_pattern": r"[ \n]{0,16}"}
_ANY_JSON = {"anyOf": [{"type": "object"}, {"type": "array"}]}


def schema_of(prompt: Prompt) -> Mapping[str, Any] | None:
    """JSON Schema that a prompt's output must follow; None when the prompt asks for no JSON.

    A tool call is an object of "name" and "arguments", as the prompt's `tools` describe them.
    """
    if prompt.tools:
        return {"anyOf": [_call(tool["function"]) for tool in prompt.tools]}
    if prompt.schema is not None:
        return prompt.schema
    return _ANY_JSON if prompt.language == "json" else None


def _call(function: Mapping[str, Any]) -> Mapping[str, Any]:
    arguments = function.get("parameters") or {"type": "object"}
    return {
        "type": "object",
        "properties": {"name": {"const": function["name"]}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


class Grammars:
    """Makes grammars for one vocabulary; compiling it takes about a second, once."""

    def __init__(
        self,
        pieces: Sequence[bytes],
        control: Mapping[int, bytes],
        end_tokens: frozenset[int],
        tokenize: Callable[[str], list[int]],
    ) -> None:
        """Wrap a vocabulary.

        Args:
            pieces: decoded bytes of each token, [V]; empty for control tokens.
            control: spelling of each control token.
            tokenize: token ids of a text.
        """
        self._pieces, self._control, self._tokenize = pieces, control, tokenize
        self._end_tokens = sorted(end_tokens)
        self._compiled: Any = None

    def of(self, prompt: Prompt) -> "Grammar | None":
        """The grammar of a prompt's output from its beginning; None when the prompt asks for no JSON.

        Raises:
            WorkloadError: the schema cannot be turned into a grammar.
            ConfigError: the extra `quality` is not installed.
        """
        schema = schema_of(prompt)
        if schema is None:
            return None
        matcher = require("llguidance", "quality").LLMatcher
        try:
            source = matcher.grammar_from_json_schema(json.dumps(schema), overrides=_SPACING)
        except ValueError as error:
            raise WorkloadError(f"prompt '{prompt.id}': its schema cannot be read: {error}") from error
        made = matcher(self._tokenizer(), source, log_level=0)
        if made.is_error():
            raise WorkloadError(
                f"prompt '{prompt.id}': its schema cannot constrain decoding: {made.get_error().splitlines()[0]}"
            )
        return Grammar(made, len(self._pieces), frozenset(self._end_tokens))

    def _tokenizer(self) -> Any:
        if self._compiled is None:
            llguidance = require("llguidance", "quality")
            wrapped = llguidance.TokenizerWrapper(self)
            self._compiled = llguidance.LLTokenizer(wrapped, len(self._pieces), self._end_tokens)
        return self._compiled

    # What llguidance asks of a tokenizer.

    def __call__(self, text: bytes | str) -> list[int]:
        """Token ids of a text."""
        return self._tokenize(text.decode("utf-8", "replace") if isinstance(text, bytes) else text)

    @property
    def tokens(self) -> list[bytes]:
        """Bytes of each token; a control token's begin with 0xff, which no text contains."""
        return [b"\xff" + self._control[i] if i in self._control else piece for i, piece in enumerate(self._pieces)]

    @property
    def eos_token_id(self) -> int:
        """One of the end tokens."""
        return self._end_tokens[0]

    @property
    def bos_token_id(self) -> None:
        """Never written by a grammar."""
        return None


class Grammar:
    """How far one output has come in its grammar."""

    def __init__(self, matcher: Any, n_vocab: int, end_tokens: frozenset[int]) -> None:
        self._matcher, self._n_vocab, self._end_tokens = matcher, n_vocab, end_tokens

    def fresh(self) -> "Grammar":
        """The same grammar at the beginning of another output."""
        matcher = self._matcher.deep_copy()
        matcher.reset()
        return Grammar(matcher, self._n_vocab, self._end_tokens)

    def legal(self, tokens: Sequence[int]) -> int:
        """How many leading tokens of a draft the grammar lets through."""
        if self._matcher.is_stopped():  # nothing may follow but the end, which a stopped matcher does not take
            return int(bool(tokens) and tokens[0] in self._end_tokens)
        n: int = self._matcher.validate_tokens(list(tokens))
        return n

    def advance(self, tokens: Sequence[int]) -> None:
        """Note committed tokens.

        Raises:
            ConfigError: the grammar refuses one, or is too complex to follow.
        """
        if not self._matcher.consume_tokens([t for t in tokens if t not in self._end_tokens]):
            raise ConfigError(f"the grammar cannot be followed: {self._matcher.get_error().splitlines()[0]}")

    def masked(self, logits: NDArray[np.float32], drafted: Sequence[int]) -> NDArray[np.float32]:
        """Logits [k + 1, V] of a draft [k] with refused tokens at -inf.

        Row i is masked by what may follow the first i drafted tokens. Rows behind a refused or an end token stay as
        they are: the test never gets there.
        """
        text = [t for t in drafted[: self.legal(drafted)] if t not in self._end_tokens]
        out = logits.copy()
        for i, row in enumerate(out[: len(text) + 1]):
            row[~self._allowed()] = -np.inf
            self.advance(text[i : i + 1])
        self._matcher.rollback(len(text))
        return out

    def _allowed(self) -> NDArray[np.bool_]:
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        return np.unpackbits(bits, count=self._n_vocab, bitorder="little").view(np.bool_)
