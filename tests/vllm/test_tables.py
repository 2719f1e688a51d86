from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftgate.engines.vllm.tables import LANGUAGES, MAX_POINTS, PolicyTables, category_tables, language_id
from draftgate.errors import ConfigError
from draftgate.policy.category import Category, category_table
from draftgate.policy.policy import Policy
from draftgate.policy.rules import RULES, Scores

PIECES = [b"x", b" if", b"(", b"12", b"  ", b"#", b"+", b""]


@st.composite
def policies(draw: st.DrawFn, rule: str | None = None) -> Policy:
    """Any policy that a server can hold."""
    found = RULES[rule or draw(st.sampled_from(sorted(RULES)))]
    params = {k.name: draw(st.floats(k.low, k.high)) for k in found.knobs if k.name != "tau"}
    if not found.uses_tau:
        return Policy("any", found.name, params=params)
    probability, offset = st.floats(0, 1), st.floats(-1, 1)
    points = draw(st.dictionaries(st.integers(0, 3000), probability, max_size=MAX_POINTS))
    names = st.sampled_from([c.name.lower() for c in Category] + ["safe", "structural"])
    return Policy(
        "any",
        found.name,
        tau=None if points else draw(probability),
        params=params,
        category=draw(st.dictionaries(names, offset, max_size=3)),
        language=draw(st.dictionaries(st.sampled_from(LANGUAGES[1:]), offset, max_size=3)),
        position=tuple(sorted(points.items())),
        bounds=tuple(sorted((draw(probability), draw(probability)))),  # type: ignore[arg-type]
    )


def loaded(*given: Policy) -> PolicyTables:
    """Tables that hold these policies, with the categories of `PIECES`."""
    tables = PolicyTables("cpu")
    tables.load_categories(category_tables(PIECES))
    for slot, policy in enumerate(given):
        tables.set(slot, policy)
    return tables


def column(draw: st.DrawFn, n: int, low: int, high: int) -> torch.Tensor:
    """n integers in [low, high]."""
    return torch.tensor(draw(st.lists(st.integers(low, high), min_size=n, max_size=n)))


@given(data=st.data(), chosen=st.lists(policies(), min_size=1, max_size=4), n=st.integers(1, 20))
def test_taus_are_those_of_the_policies_to_the_last_bit(data: Any, chosen: list[Policy], n: int) -> None:
    tables = loaded(*chosen)
    slot, offset = column(data.draw, n, 0, len(chosen) - 1), column(data.draw, n, 0, 4000)
    category, language = column(data.draw, n, 0, len(Category) - 1), column(data.draw, n, 0, len(LANGUAGES) - 1)
    taus = tables.taus(slot, category, offset, language).numpy()
    for i in range(n):
        policy = chosen[slot[i]]
        own = policy.taus(category[i : i + 1].numpy(), offset[i : i + 1].numpy(), LANGUAGES[language[i]])
        assert taus[i] == own[0]
        assert taus.dtype == own.dtype


def test_taus_broadcast_rows_against_positions() -> None:
    tables = loaded(Policy("rising", "threshold", position=((0, 0.0), (10, 1.0))), Policy("flat", "threshold", 0.5))
    slot = torch.tensor([[0], [1]])
    taus = tables.taus(slot, None, torch.tensor([[0, 1, 2], [0, 1, 2]]), slot * 0)
    assert taus.tolist() == [[0.0, pytest.approx(0.1), pytest.approx(0.2)], [0.5, 0.5, 0.5]]


def test_a_policy_is_changed_in_place() -> None:
    tables = loaded(Policy("a", "threshold", 0.3))
    before = tables.rule, tables.params, tables.residual
    tables.set(0, Policy("b", "sglang", 0.7, params={"acc": 0.5}))
    assert all(old is new for old, new in zip(before, (tables.rule, tables.params, tables.residual), strict=True))
    zero = torch.tensor([0])
    assert tables.taus(zero, None, zero, zero).item() == pytest.approx(0.7)
    assert tables[0].name == "b"


def test_only_what_some_policy_needs_is_asked_for() -> None:
    tables, slots = loaded(), torch.zeros(1, dtype=torch.int64)
    facts = tables.facts(slots)
    assert (facts.rules, facts.needs, facts.params) == ((), set(), False)
    tables.set(0, Policy("a", "lossless"))
    assert (tables.facts(slots).rules, tables.facts(slots).needs) == (("lossless",), set())
    tables.set(3, Policy("b", "typical", 0.3, category={"word": 0.1}))
    facts = tables.facts(slots)
    assert (facts.rules, facts.needs, facts.params) == (("lossless", "typical"), {"p", "entropy"}, True)
    assert facts.category
    assert (tables.facts(0).rules, tables.facts(0).category) == (("lossless",), False)
    tables.set(3, Policy("c", "threshold", 0.3))
    facts = tables.facts(slots)
    assert (facts.needs, facts.params, facts.category) == ({"p"}, False, False)
    tables.clear(1)
    assert tables.facts(slots).rules == ("lossless",)


@pytest.mark.parametrize("rule", RULES)
@given(data=st.data())
def test_which_rules_keep_the_targets_choice_however_probable_it_is(rule: str, data: Any) -> None:
    """As the rules themselves say of any law, ties among it, and over all settings; of the others some refuse it."""
    policy = data.draw(policies(rule))
    weight = st.one_of(st.sampled_from([0.0, 1e-6, 1.0]), st.floats(0, 1, width=32))
    weights = np.array([1.0, *data.draw(st.lists(weight, max_size=200))], np.float32)
    law = weights / weights.sum()
    entropy = -np.sum(law * np.log(law, out=np.zeros_like(law), where=law > 0), keepdims=True)
    one, p = np.ones(1, np.float32), law[:1]
    scores = Scores(p=p, law=one, q=one, top=p, rank=np.array([0]), entropy=entropy)
    tau = policy.taus(np.zeros(1, np.uint8), np.zeros(1), None)
    if loaded(policy).facts(0).keep_choice:
        assert RULES[rule].accept(scores, tau, policy.params) == [1]
    else:
        assert rule == "threshold" or (rule == "typical" and policy.params["delta"] > 0.9)


def test_rounding_may_refuse_one_of_several_equal_tokens() -> None:
    """'typical' with delta = 1 compares p = 1/n with exp(-log n) then, so such a policy's choices are read."""
    p = 1 / np.arange(2, 50, dtype=np.float32)
    one, zero = np.ones_like(p), np.zeros(len(p), np.int64)
    scores = Scores(p=p, law=one, q=one, top=p, rank=zero, entropy=-np.log(p))
    assert not RULES["typical"].accept(scores, one, {"delta": 1.0}).all()
    assert not loaded(Policy("edge", "typical", 1.0, params={"delta": 1.0})).facts(0).keep_choice


def test_categories_are_those_of_the_tokens_in_the_requests_language() -> None:
    tables = loaded()
    tokens, language = torch.tensor([1, 2, 5]), torch.tensor([language_id("python"), 0, language_id("py")])
    found = tables.categories(tokens, language)
    assert found is not None
    python, prose = category_table(PIECES, "python"), category_table(PIECES, None)
    assert found.tolist() == [python[1], prose[2], python[5]]
    assert PolicyTables("cpu").categories(tokens, language) is None


def test_language_ids() -> None:
    assert language_id(None) == 0
    assert LANGUAGES[language_id("C++")] == "cpp"
    assert len(set(LANGUAGES)) == len(LANGUAGES)
    with pytest.raises(ConfigError, match="did you mean 'python'"):
        language_id("pyhton")


@pytest.mark.parametrize(
    ("slot", "policy", "words"),
    [
        (16, Policy("p", "lossless"), r"slot must be in \[0, 16\) but got 16"),
        (-1, Policy("p", "lossless"), "but got -1"),
        (
            0,
            Policy("p", "threshold", position=tuple((i, 0.5) for i in range(MAX_POINTS + 1))),
            "at most 16 points fit into a running server but got 17",
        ),
        (0, Policy("p", "typical", 0.3, truncate=True), "truncate"),
    ],
)
def test_what_a_server_cannot_hold_is_refused_and_changes_nothing(slot: int, policy: Policy, words: str) -> None:
    tables = loaded(Policy("old", "threshold", 0.3))
    with pytest.raises(ConfigError, match=words):
        tables.set(slot, policy)
    zero = torch.tensor([0])
    assert tables[0].name == "old"
    assert tables.taus(zero, None, zero, zero).item() == pytest.approx(0.3)


def test_category_offsets_need_the_tokenizers_categories() -> None:
    with pytest.raises(ConfigError, match="categories are not loaded"):
        PolicyTables("cpu").set(0, Policy("p", "threshold", 0.3, category={"word": 0.1}))


def test_category_tables_cover_every_language() -> None:
    tables = category_tables(PIECES)
    assert tables.shape == (len(LANGUAGES), len(PIECES))
    assert (tables[0] == category_table(PIECES, None)).all()
    assert (tables[language_id("yaml")] == category_table(PIECES, "yaml")).all()
    assert tables.dtype == np.uint8
