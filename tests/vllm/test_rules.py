from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftgate.engines.vllm.rules import Scores, accept_probability
from draftgate.engines.vllm.tables import PolicyTables
from draftgate.policy import rules as reference
from draftgate.policy.policy import Policy
from draftgate.policy.rules import RULES

PROBABILITIES = st.one_of(st.sampled_from([0.0, 1.0, 0.5, 0.1, 0.3, 1e-40]), st.floats(0, 1, width=32))


@st.composite
def a_policy(draw: st.DrawFn) -> Policy:
    """Any rule, with any threshold and parameters."""
    rule = RULES[draw(st.sampled_from(sorted(RULES)))]
    settings = {k.name: draw(st.one_of(st.sampled_from([k.low, k.high]), st.floats(k.low, k.high))) for k in rule.knobs}
    return Policy("any", rule.name, settings.pop("tau", None), params=settings)


@st.composite
def scores(draw: st.DrawFn, n: int, dtype: Any) -> dict[str, Any]:
    """Scores of n tokens; thresholds hit exactly, zeros and ones among them."""

    def column(values: st.SearchStrategy[Any]) -> Any:
        return np.array(draw(st.lists(values, min_size=n, max_size=n)), dtype)

    p, law, q, top = (column(PROBABILITIES) for _ in range(4))
    return {
        "p": p,
        "law": law,
        "q": q,
        "top": np.maximum(p, top),
        "rank": column(st.integers(0, 30)).astype(np.int64),
        "entropy": column(st.floats(0, 11, width=32)),
    }


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@given(data=st.data(), chosen=st.lists(a_policy(), min_size=1, max_size=8), n=st.integers(1, 12))
def test_each_token_is_accepted_as_its_own_policy_says(data: Any, dtype: Any, chosen: list[Policy], n: int) -> None:
    tables = PolicyTables("cpu")
    for i, policy in enumerate(chosen):
        tables.set(i, policy)
    slot = torch.tensor(data.draw(st.lists(st.integers(0, len(chosen) - 1), min_size=n, max_size=n)))
    fields = data.draw(scores(n, dtype))
    taus = tables.taus(slot, None, slot * 0, slot * 0)
    own = accept_probability(tables, slot, taus, Scores(**{k: torch.from_numpy(v) for k, v in fields.items()}))
    assert own.numpy().dtype == dtype
    for i in range(n):
        policy, one = chosen[slot[i]], {k: v[i : i + 1] for k, v in fields.items()}
        tau = policy.taus(np.zeros(1, np.uint8), np.zeros(1), None)
        if policy.rule == "typical" and near(one["p"], policy.params["delta"] * np.exp(-one["entropy"])):
            continue
        assert own[i].item() == RULES[policy.rule].accept(reference.Scores(**one), tau, policy.params).item()


def near(p: Any, bound: Any) -> bool:
    """Whether the last bits of `exp`, which libraries differ in, decide."""
    return bool(np.abs(p - bound) <= 8 * np.spacing(np.maximum(p, bound)))


def test_all_rules_are_there() -> None:
    """One that is missing raises here, not in a server."""
    one = torch.ones(1)
    for i, rule in enumerate(RULES.values()):
        tables = PolicyTables("cpu")
        tables.set(i, Policy(rule.name, rule.name, 0.5 if rule.uses_tau else None))
        slot = torch.tensor([i])
        assert 0 <= accept_probability(tables, slot, one * 0.5, Scores(one, one, one, one, one * 0, one)).item() <= 1


def test_fields_that_no_rule_needs_may_be_empty() -> None:
    tables = PolicyTables("cpu")
    tables.set(0, Policy("p", "threshold-or-lossless", 0.25))
    zero, none = torch.zeros(3, dtype=torch.int64), torch.empty(0)
    p, law = torch.tensor([0.2, 0.25, 0.9]), torch.tensor([0.0, 0.0, 0.5])
    taus = tables.taus(zero, None, zero, zero)
    assert accept_probability(tables, zero, taus, Scores(p, law, torch.ones(3), none, none, none)).tolist() == [0, 1, 1]
