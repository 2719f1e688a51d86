import numpy as np
import pytest

from draftgate.policy.category import GROUPS, Category
from draftgate.policy.policy import Policy
from draftgate.policy.rules import RULES
from draftgate.replay import accept
from draftgate.replay.accept import Replayable

PLAIN = [
    Policy(name, name, 0.3 if rule.uses_tau else None)
    for name, rule in RULES.items()
    if name not in ("exact", "lossless")
]
VARIED = [
    Policy("category", "threshold", 0.4, category={"structural": 0.2, "safe": -0.3, "keyword": 0.1}),
    Policy("position", "threshold", position=((20, 0.2), (120, 0.7)), bounds=(0.1, 0.6)),
    Policy("language", "threshold", 0.4, language={"python": 0.2, "go": -0.1}),
    Policy("all", "threshold", position=((0, 0.2), (99, 0.9)), category={"normal": -0.1}, language={"python": 0.3}),
    Policy("clipped", "threshold", 0.9, language={"go": 0.5}),
]


def tau_of(policy, category, offset, language):
    """The threshold of one token, from the docstring of `Policy`."""
    base = policy.tau if policy.tau is not None else np.interp(offset, *zip(*policy.position, strict=True))
    own = policy.category.get(category.name.lower(), policy.category.get(GROUPS[category], 0.0))
    return min(max(base + own + policy.language.get(language, 0.0), policy.bounds[0]), policy.bounds[1])


@pytest.mark.parametrize("policy", VARIED, ids=lambda p: p.name)
def test_thresholds_by_category_position_and_language(policy, random_columns):
    columns = random_columns(np.random.default_rng(3), steps=200, most=5)
    kept = Replayable.of(columns).kept(policy)
    p = np.exp(columns.logp)
    near = 0
    for j, s in np.argwhere(columns.valid):
        language = columns.languages[columns.request[s]]
        tau = tau_of(policy, Category(columns.category[j, s]), columns.offset[s] + j, language)
        if abs(p[j, s] - tau) < 1e-6:
            near += 1
            continue
        assert kept[j, s] == (p[j, s] >= tau), (j, s, tau)
    assert near < 5


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize("policy", [*PLAIN, *VARIED], ids=lambda p: p.name)
def test_blocks_leave_no_seam(policy, greedy, random_columns, monkeypatch):
    replayable = Replayable.of(random_columns(np.random.default_rng(1), steps=50, most=4, greedy=greedy))
    whole = replayable.kept(policy)
    monkeypatch.setattr(accept, "_BLOCK_STEPS", 7)
    np.testing.assert_array_equal(replayable.kept(policy), whole)


@pytest.mark.parametrize("policy", PLAIN, ids=lambda p: p.name)
def test_a_rule_decides_with_the_recorded_uniform_numbers(policy, random_columns):
    columns = random_columns(np.random.default_rng(5), steps=60, most=4, greedy=False)
    replayable = Replayable.of(columns)
    chance = RULES[policy.rule].accept(replayable.scores, np.array([0.3], np.float32), policy.params)
    np.testing.assert_array_equal(replayable.kept(policy), columns.uniform < chance)


@pytest.mark.parametrize("rule", ["exact", "lossless"])
def test_lossless_rules_of_a_greedy_trace_keep_the_first_choices(rule, random_columns):
    columns = random_columns(np.random.default_rng(6), steps=60, most=4)
    replayable = Replayable.of(columns)
    assert replayable.kept(Policy(rule, rule)) is replayable.exact
    np.testing.assert_array_equal(replayable.exact, columns.rank == 0)


def test_lossless_rules_of_a_sampled_trace_read_p_and_q(random_columns):
    columns = random_columns(np.random.default_rng(7), steps=60, most=4, greedy=False)
    replayable = Replayable.of(columns)
    p, q = np.exp(columns.logp), np.exp(columns.logq)
    np.testing.assert_array_equal(replayable.exact, columns.uniform < np.minimum(p / q, 1))
    np.testing.assert_array_equal(replayable.kept(Policy("exact")), columns.uniform < p)


def test_an_impossible_token_is_kept_by_a_threshold_of_zero_only(random_columns):
    columns = random_columns(np.random.default_rng(8), steps=400, most=3, greedy=False)
    replayable = Replayable.of(columns)
    impossible = np.isneginf(columns.logp)
    assert impossible.any()
    assert np.isfinite(replayable.scores.top).all()
    for policy in PLAIN:
        assert not replayable.kept(policy)[impossible].any()
    assert replayable.kept(Policy("all", "threshold", 0.0))[impossible].all()


def test_the_article_tau_rejects_first_choices_on_the_real_trace(real):
    replayable = Replayable.of(real.columns)
    kept = replayable.kept(Policy("article", "threshold", 0.65))
    assert not (kept & ~replayable.exact).any()  # no quality gained: at tau >= .5 only first choices pass
    assert (replayable.exact & ~kept).any()
