from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from draftgate.errors import ConfigError
from draftgate.policy.rules import RULES, Knob, Residual, Rule, Scores, output_law, replacement, rule_named

Law = NDArray[np.float64]
LOSSLESS = sorted(name for name, rule in RULES.items() if rule.lossless)
ALL = sorted(RULES)


def one_hot(x: int, n: int) -> Law:
    out = np.zeros(n)
    out[x] = 1.0
    return out


def scores_of(p: Law, law: Law, q: Law) -> Scores:
    """Scores of every token of a vocabulary."""
    entropy = -sum(v * np.log(v) for v in p if v > 0)
    rank = np.array([(p > v).sum() for v in p])
    return Scores(p, law, q, np.full_like(p, p.max()), rank, np.full_like(p, entropy))


@st.composite
def laws(draw: st.DrawFn, n: int) -> Law:
    """A distribution [n]; ties, zeros and one-hot among them."""
    if draw(st.booleans()):
        return one_hot(draw(st.integers(0, n - 1)), n)
    weights = np.array(draw(st.lists(st.integers(0, 20), min_size=n, max_size=n)), float)
    assume(weights.sum() > 0)
    law: Law = weights / weights.sum()
    return law


@st.composite
def settings(draw: st.DrawFn, rule: Rule) -> tuple[float, dict[str, float]]:
    """A threshold and the other knobs of a rule."""
    values = {knob.name: draw(st.floats(knob.low, knob.high)) for knob in rule.knobs}
    return values.pop("tau", 0.0), values


@st.composite
def cases(draw: st.DrawFn, greedy: bool | None = None, draft: str = "any") -> tuple[Law, Law, Law]:
    """Target probabilities, target law and draft law over 2 to 6 tokens."""
    n = draw(st.integers(2, 6))
    p = draw(laws(n))
    greedy = draw(st.booleans()) if greedy is None else greedy
    law = one_hot(int(p.argmax()), n) if greedy else p
    q = one_hot(draw(st.integers(0, n - 1)), n) if draft == "one-hot" else draw(laws(n))
    return p, law, q


def law_of(name: str, case: tuple[Law, Law, Law], tau: float, **params: float) -> Law:
    p, law, q = case
    return output_law(RULES[name], scores_of(p, law, q), q, law, np.array(tau), params)


def mixed(q: Law, keep: Any, law: Law) -> Law:
    """What deterministic acceptance with replacement from the target's law comes to."""
    kept = q * keep
    out: Law = kept + (1 - kept.sum()) * law
    return out


# The output law of every rule, against a formula of its own


@pytest.mark.parametrize("name", LOSSLESS)
@given(case=cases())
def test_lossless_rules_give_the_target_law(name: str, case: tuple[Law, Law, Law]) -> None:
    assert law_of(name, case, 0.0) == pytest.approx(case[1], abs=1e-9)


@pytest.mark.parametrize("name", ALL)
@given(data=st.data(), case=cases())
def test_every_output_law_is_a_distribution(name: str, data: st.DataObject, case: tuple[Law, Law, Law]) -> None:
    tau, params = data.draw(settings(RULES[name]))
    out = law_of(name, case, tau, **params)
    assert (out >= 0).all()
    assert out.sum() == pytest.approx(1.0, abs=1e-9)


@given(case=cases(), tau=st.floats(0, 1))
def test_threshold_law(case: tuple[Law, Law, Law], tau: float) -> None:
    p, law, q = case
    assert law_of("threshold", case, tau) == pytest.approx(mixed(q, p >= tau, law), abs=1e-9)


@given(case=cases(), tau=st.floats(0, 1))
def test_threshold_or_lossless_law(case: tuple[Law, Law, Law], tau: float) -> None:
    p, law, q = case
    kept = np.where(p >= tau, q, np.minimum(q, law))  # q min(1, law / q)
    rest = np.maximum(law - q, 0)
    rest = rest / rest.sum() if rest.sum() > 1e-12 else law
    assert law_of("threshold-or-lossless", case, tau) == pytest.approx(kept + (1 - kept.sum()) * rest, abs=1e-9)


@given(case=cases(draft="one-hot"), tau=st.floats(0, 1))
def test_or_lossless_is_threshold_for_a_deterministic_draft_and_keeps_more(
    case: tuple[Law, Law, Law], tau: float
) -> None:
    assert law_of("threshold-or-lossless", case, tau) == pytest.approx(law_of("threshold", case, tau), abs=1e-9)
    scores = scores_of(*case)
    more, less = (RULES[name].accept(scores, np.array(tau), {}) for name in ("threshold-or-lossless", "threshold"))
    assert (more >= less).all()


@given(case=cases(), tau=st.floats(0, 1), acc=st.floats(1e-3, 1))
def test_sglang_law(case: tuple[Law, Law, Law], tau: float, acc: float) -> None:
    p, law, q = case
    n = len(p)
    keep = [1.0 if p[x] >= tau else min(1.0, law[x] / acc) for x in range(n)]
    expected = q * keep
    for x in range(n):
        if keep[x] < 1:
            others = [law[y] if y != x else 0.0 for y in range(n)]
            expected = expected + q[x] * (1 - keep[x]) * np.array(others) / sum(others)
    assert law_of("sglang", case, tau, acc=acc) == pytest.approx(expected, abs=1e-9)


@given(case=cases())
def test_sglang_is_lossless_with_both_thresholds_at_one(case: tuple[Law, Law, Law]) -> None:
    # p >= 1 still holds for a token of probability one, which the target always chooses.
    assert law_of("sglang", case, 1.0, acc=1.0) == pytest.approx(case[1], abs=1e-9)


@given(case=cases(), tau=st.floats(0, 1), delta=st.floats(0, 1))
def test_typical_law(case: tuple[Law, Law, Law], tau: float, delta: float) -> None:
    p, law, q = case
    perplexity = np.prod([v**v for v in p if v > 0])  # exp(-H), from probabilities alone
    assume((abs(p - delta * perplexity) > 1e-12).all())
    keep = (p >= tau) | (p >= delta * perplexity)
    assert law_of("typical", case, tau, delta=delta) == pytest.approx(mixed(q, keep, law), abs=1e-9)


@given(case=cases(), top_k=st.integers(1, 7), delta=st.floats(0, 1))
def test_topk_margin_law(case: tuple[Law, Law, Law], top_k: int, delta: float) -> None:
    p, law, q = case
    kth = sorted(p, reverse=True)[min(top_k, len(p)) - 1]
    keep = [v >= kth and v >= max(p) - delta for v in p]
    assert law_of("topk-margin", case, 0.0, top_k=top_k, delta=delta) == pytest.approx(mixed(q, keep, law), abs=1e-9)


@given(case=cases(), alpha=st.floats(0, 1))
def test_cascade_law(case: tuple[Law, Law, Law], alpha: float) -> None:
    p, law, q = case
    r = p >= (1 - alpha) * max(p)
    eta = (q * ~r).sum()
    assert law_of("cascade", case, 0.0, alpha=alpha) == pytest.approx(q * r + eta * law, abs=1e-9)


@pytest.mark.parametrize("name", sorted(set(ALL) - set(LOSSLESS)))
def test_rules_called_lossy_are(name: str) -> None:
    p = np.array([0.5, 0.3, 0.2])
    params = {knob.name: knob.low if knob.effect < 0 else knob.high for knob in RULES[name].knobs}
    out = law_of(name, (p, p, np.array([0.1, 0.2, 0.7])), params.pop("tau", 0.0), **params)
    assert abs(out - p).max() > 0.1


P, Q = np.array([0.45, 0.3, 0.15, 0.1]), np.array([0.2, 0.25, 0.15, 0.4])
MIDDLE = {"acc": 0.8, "delta": 0.6, "top_k": 2.0, "alpha": 0.2}
CHI_SQUARE = 30.7  # 3 degrees of freedom, exceeded once in a million


def first_hits(rng: np.random.Generator, law: Law, accept: Law) -> NDArray[np.intp]:
    """One draw from `law` per row of `accept` [N, V]: repeated until a coin of probability accept[row, draw] lands."""
    out = np.full(len(accept), -1)
    while (waiting := np.flatnonzero(out < 0)).size:
        y = rng.choice(len(law), len(waiting), p=law)
        hit = rng.random(len(waiting)) < accept[waiting, y]
        out[waiting[hit]] = y[hit]
    return out


@pytest.mark.parametrize("name", ALL)
def test_output_law_is_what_playing_the_game_gives(name: str) -> None:
    rule, rng, n = RULES[name], np.random.default_rng(7), 100_000
    params = {knob.name: MIDDLE[knob.name] for knob in rule.knobs if knob.name != "tau"}
    x = rng.choice(4, n, p=Q)
    kept = rng.random(n) < rule.accept(scores_of(P, P, Q), np.array(0.3), params)[x]
    lost = x[~kept]
    assert len(lost) > 1000
    coins = {  # rejection sampling from the law, which needs no normalisation to be right
        Residual.LAW: np.ones((len(lost), 4)),
        Residual.LAW_WITHOUT_X: np.arange(4) != lost[:, None],
        Residual.LAW_MINUS_Q: np.tile((1 - Q / P).clip(0), (len(lost), 1)),
    }
    x[~kept] = first_hits(rng, P, coins[rule.residual])
    expected = n * law_of(name, (P, P, Q), 0.3, **params)
    assert ((np.bincount(x, minlength=4) - expected) ** 2 / expected).sum() < CHI_SQUARE


# Acceptance


@pytest.mark.parametrize(("name", "knob"), [(rule.name, knob) for rule in RULES.values() for knob in rule.knobs])
@given(data=st.data(), case=cases())
def test_acceptance_follows_the_sign_of_each_knob(
    name: str, knob: Knob, data: st.DataObject, case: tuple[Law, Law, Law]
) -> None:
    rule, scores = RULES[name], scores_of(*case)
    tau, params = data.draw(settings(rule))
    ends = sorted(data.draw(st.tuples(*[st.floats(knob.low, knob.high)] * 2)))
    low, high = (
        rule.accept(scores, np.array(end if knob.name == "tau" else tau), params | {knob.name: end}) for end in ends
    )
    assert (knob.effect * (high - low) >= 0).all()


@pytest.mark.parametrize(("name", "knob"), [(rule.name, knob) for rule in RULES.values() for knob in rule.knobs])
def test_each_knob_does_something(name: str, knob: Knob) -> None:
    rule = RULES[name]
    others = {"tau": 0.9, "acc": 0.9, "delta": 0.4, "top_k": 2.0, "alpha": 0.2}

    def accepted(value: float) -> float:
        params = others | {knob.name: value}
        return float(rule.accept(scores_of(P, P, Q), np.array(params["tau"]), params).sum())

    assert knob.effect * (accepted(knob.high) - accepted(knob.low)) > 0


@pytest.mark.parametrize("name", ALL)
@given(
    data=st.data(),
    shape=st.lists(st.integers(0, 3), max_size=3).map(tuple),
    dtype=st.sampled_from([np.float32, np.float64]),
    seed=st.integers(0, 2**32 - 1),
)
def test_accept_is_a_probability_of_the_same_shape_and_type(
    name: str, data: st.DataObject, shape: tuple[int, ...], dtype: type, seed: int
) -> None:
    rule, rng = RULES[name], np.random.default_rng(seed)
    tau, params = data.draw(settings(rule))

    def some() -> NDArray[Any]:
        return np.asarray(rng.choice([0.0, 1e-38, 1e-3, 0.5, 1.0], shape) * rng.random(shape), dtype)

    p = some()
    scores = Scores(
        p, p, some(), np.maximum(p, some()), rng.integers(0, 9, shape), np.asarray(rng.exponential(), dtype)
    )
    keep = rule.accept(scores, np.asarray(tau, np.float32), params)
    assert keep.shape == shape
    assert keep.dtype == dtype
    assert ((keep >= 0) & (keep <= 1)).all()


def test_engine_scores_may_mix_precisions() -> None:
    # Greedy laws are float32 where draft probabilities are float64.
    law, q = np.array([1.0, 0.0], np.float32), np.array([0.25, 1e-30])
    assert RULES["lossless"].accept(Scores(law, law, q, law, law, law), np.zeros(1), {}).tolist() == [1.0, 0.0]


@pytest.mark.parametrize("name", ALL)
def test_rules_read_only_what_they_say(name: str) -> None:
    rule, scores = RULES[name], scores_of(P, P, Q)
    params = {knob.name: MIDDLE[knob.name] for knob in rule.knobs if knob.name != "tau"}
    unread = {"p", "top", "rank", "entropy"} - rule.needs
    poisoned = replace(scores, **dict.fromkeys(unread, None))  # type: ignore[arg-type]
    assert rule.accept(poisoned, np.array(0.3), params) == pytest.approx(rule.accept(scores, np.array(0.3), params))


@given(case=cases(greedy=True), tau=st.floats(0.5, 1))
def test_a_greedy_threshold_of_half_or_more_keeps_nothing_that_exact_does_not(
    case: tuple[Law, Law, Law], tau: float
) -> None:
    scores = scores_of(*case)
    assume((case[0] == case[0].max()).sum() == 1)  # two tokens at exactly 0.5 are the one exception
    threshold, exact = (RULES[name].accept(scores, np.array(tau), {}) for name in ("threshold", "exact"))
    assert (threshold <= exact).all()
    assert (scores.rank[threshold == 1] == 0).all()


def test_below_half_a_greedy_threshold_keeps_more_than_the_argmax() -> None:
    scores = scores_of(np.array([0.51, 0.49]), np.array([1.0, 0.0]), np.array([0.5, 0.5]))
    assert RULES["threshold"].accept(scores, np.array(0.49), {}).tolist() == [1.0, 1.0]


def test_thresholds_may_differ_from_token_to_token() -> None:
    p = np.array([[0.5, 0.5], [0.5, 0.5]])
    scores = Scores(p, p, p, p, p, p)
    keep = RULES["threshold"].accept(scores, np.array([[0.5, 0.6], [0.4, 0.51]]), {})
    assert keep.tolist() == [[1, 0], [1, 0]]


# The rest


def test_replacement_without_mass_is_the_law() -> None:
    law = np.array([1.0, 0.0])
    assert replacement(Residual.LAW_WITHOUT_X, law, law, 0).tolist() == [1.0, 0.0]
    assert replacement(Residual.LAW_MINUS_Q, law, law, 0).tolist() == [1.0, 0.0]


@pytest.mark.parametrize("kind", Residual)
def test_replacement_leaves_its_arguments_alone(kind: Residual) -> None:
    p, q = P.copy(), Q.copy()
    replacement(kind, p, q, 1)
    assert p.tolist() == P.tolist()
    assert q.tolist() == Q.tolist()


@pytest.mark.parametrize("name", ALL)
def test_knobs_have_a_default_in_their_range(name: str) -> None:
    for knob in RULES[name].knobs:
        assert knob.name == "tau" or (knob.default is not None and knob.low <= knob.default <= knob.high)
    assert RULES[name].uses_tau == ("tau" in [knob.name for knob in RULES[name].knobs])


def test_unknown_rule_gets_the_nearest_name() -> None:
    assert rule_named("cascade").name == "cascade"
    with pytest.raises(ConfigError, match="unknown rule 'treshold'; did you mean 'threshold'"):
        rule_named("treshold")
