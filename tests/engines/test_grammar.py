import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chisquare

from draftgate.engines.base import Request, Sampling
from draftgate.engines.drafters import LookupDrafter, ModelDrafter
from draftgate.engines.fake import FakeEngine
from draftgate.engines.grammar import Grammar, Grammars, schema_of
from draftgate.engines.loop import Speculator, Vocabulary
from draftgate.errors import ConfigError, WorkloadError
from draftgate.policy.category import category_table
from draftgate.policy.length import Fixed
from draftgate.policy.policy import NONE, Policy
from draftgate.workload.prompt import Prompt

END = 0
PIECES = tuple(b"" if i == END else bytes([i]) for i in range(128))
SCHEMA = {"enum": ["ab", "aab", "ba"]}
TOOL = {"type": "function", "function": {"name": "stop", "parameters": {"type": "object", "maxProperties": 0}}}


def grammars() -> Grammars:
    return Grammars(PIECES, {END: b"<end>"}, frozenset({END}), lambda text: list(text.encode()))


def grammar(schema: Mapping[str, Any]) -> Grammar:
    made = grammars().of(Prompt("p", prompt="x", schema=schema))
    assert made is not None
    return made


def ids(text: str) -> list[int]:
    return list(text.encode())


class TestSchema:
    def test_a_call_names_one_of_the_tools(self) -> None:
        call = schema_of(Prompt("p", prompt="x", tools=(TOOL,)))
        assert call is not None
        assert call["anyOf"][0]["properties"]["name"] == {"const": "stop"}

    def test_json_without_a_schema_is_any_object_or_array(self) -> None:
        made = grammars().of(Prompt("p", prompt="x", language="json"))
        assert made is not None
        assert made.legal(ids('{"a": [1]}')) == 10
        assert made.fresh().legal(ids("3")) == 0

    def test_prose_is_not_bound(self) -> None:
        assert grammars().of(Prompt("p", prompt="x", language="python")) is None

    def test_a_schema_that_no_grammar_can_follow(self) -> None:
        with pytest.raises(WorkloadError, match=r"prompt 'p': its schema cannot constrain decoding: .*nothing"):
            grammar({"type": "nothing"})


class TestGrammar:
    def test_legal_stops_at_the_first_refused_token(self) -> None:
        assert grammar(SCHEMA).legal(ids('"abb"')) == 3

    def test_rows_are_masked_by_what_the_draft_before_them_says(self) -> None:
        bound = grammar(SCHEMA)
        bound.advance(ids('"a'))
        masked = bound.masked(np.zeros((4, 128), np.float32), ids('b"x'))
        allowed = ["".join(chr(i) for i in np.flatnonzero(np.isfinite(row))) for row in masked[:3]]
        assert allowed == ["ab", '"', chr(END)]
        assert np.isfinite(masked[3]).all()  # behind a refused token nothing is tested
        assert bound.legal(ids('ab"')) == 3  # the draft was only looked at

    def test_fresh_begins_again(self) -> None:
        bound = grammar(SCHEMA)
        bound.advance(ids('"ba"'))
        assert bound.fresh().legal(ids('"ab"')) == 4
        assert bound.legal([END]) == 1

    def test_a_refused_token_cannot_be_committed(self) -> None:
        with pytest.raises(ConfigError, match="the grammar cannot be followed"):
            grammar(SCHEMA).advance(ids("x"))


class Table:
    """Logits depend on the last token only, through a table [V, V]."""

    def __init__(self, logits: NDArray[np.float32]) -> None:
        self.logits = logits

    def prefill(self, sequence: int, tokens: Any) -> NDArray[np.float32]:
        return self.logits[tokens[-1]]

    def decode(self, rows: Any, last_only: bool = False) -> NDArray[np.float32]:
        return np.array([self.logits[t] for _, _, new in rows for t in (new[-1:] if last_only else new)])

    def rollback(self, sequence: int, position: int) -> None:
        pass


def exact_law(logits: NDArray[np.float32], first: int) -> dict[str, float]:
    """Law of the masked chain over the outputs of SCHEMA, by walking it."""
    words = [f'"{word}"' for word in SCHEMA["enum"]]
    law = {}
    for word in words:
        p, before = 1.0, first
        for i, letter in enumerate(word):
            allowed = sorted({ord(w[i]) for w in words if w[:i] == word[:i]})
            weight = np.exp(logits[before, allowed].astype(float))
            p *= weight[allowed.index(ord(letter))] / weight.sum()
            before = ord(letter)
        law[word] = p
    return law


@pytest.mark.parametrize("drafter", ["lookup", "drawn"])
def test_lossless_speculation_keeps_the_masked_law(drafter: str) -> None:
    rng = np.random.default_rng(5)
    logits = rng.normal(0, 1, (128, 128)).astype(np.float32)
    logits[:, ids('"ab')] += 3
    draft = Table(logits + rng.normal(0, 1, (128, 128)).astype(np.float32))
    vocabulary = Vocabulary(PIECES, frozenset({END}), lambda language: category_table(PIECES, language))
    source = LookupDrafter(frozenset({END})) if drafter == "lookup" else ModelDrafter(draft, frozenset({END}))
    loop = Speculator(Table(logits), source, vocabulary, 64, 16)
    policy = Policy("spec", "lossless", length=Fixed(5), draft_temperature=0.0 if drafter == "lookup" else 1.0)
    prompt = ids('"ab" "ba" "aab" ')
    request = Request("p", tuple(prompt), 8, grammar=grammar(SCHEMA))
    seen: dict[str, int] = {}
    accepted = 0
    for seed in range(2000):
        (done,) = loop.run([replace(request, sampling=Sampling(1.0, seed=seed, constrained=True))], policy, False)
        seen[done.text] = seen.get(done.text, 0) + 1
        accepted += sum(step.accepted for step in done.steps)
    law = exact_law(logits, prompt[-1])
    assert set(seen) <= set(law)
    assert accepted > 100  # else nothing was speculated
    assert chisquare([seen.get(w, 0) for w in law], [2000 * p for p in law.values()]).pvalue > 0.01


@pytest.mark.parametrize("policy", [NONE, Policy("all", "threshold", 0.0, length=Fixed(7))], ids=["none", "lossy"])
def test_constrained_output_is_valid_whatever_the_rule(policy: Policy) -> None:
    engine = FakeEngine(seed=1)
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "maximum": 99, "minimum": 0}},
        "required": ["n"],
    }
    schema["additionalProperties"] = False
    prompt = Prompt("p", prompt='{"n": 1} {"n": 22} {"m": 3} ', schema=schema)
    for seed in range(20):
        request = engine.encode(prompt, "w", 200, Sampling(1.0, seed=seed, constrained=True))
        (done,) = engine.generate([request], policy)
        assert done.finish == "stop"
        assert set(json.loads(done.text)) == {"n"}
