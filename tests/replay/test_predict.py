import json
from dataclasses import replace

import numpy as np
import pytest

from draftgate.cost.steps import Curve, StepCost
from draftgate.errors import ConfigError, TraceError
from draftgate.policy.category import Category
from draftgate.policy.length import Calibration, Cut, Fixed, Goodput
from draftgate.policy.policy import NONE, Policy
from draftgate.replay.accept import Replayable
from draftgate.replay.predict import expected_error, pieces, predict

COST = StepCost({1: Curve(1, tuple(1.0 + 0.05 * m for m in range(1, 9)), (0.0,) * 8, 9)}, draft_s=0.1, overhead_s=0.02)


def exact(k):
    return Policy(f"exact-k{k}", length=Fixed(k))


def threshold(tau, k):
    return Policy("threshold", "threshold", tau, length=Fixed(k))


def or_lossless(tau, k):
    return Policy("or", "threshold-or-lossless", tau, length=Fixed(k))


def without_bonus(columns):
    """Steps whose text ended with their last kept token."""
    return (columns.accepted > 0) & (columns.committed == columns.accepted)


def test_the_recorded_policy_gives_back_the_recorded_counts(real):
    columns = real.columns
    found = pieces(Replayable.of(columns), exact(7))
    np.testing.assert_array_equal(found.accepted, np.bincount(columns.request, columns.accepted))
    np.testing.assert_array_equal(found.by_length[:, 7], np.bincount(columns.request))
    assert not found.by_length[:, :7].any()
    p = predict(Replayable.of(columns), exact(7), COST)
    assert p.estimator == "step"
    assert p.acceptance_length == pytest.approx((1 + columns.accepted - without_bonus(columns)).mean())
    assert p.acceptance_rate == pytest.approx(columns.accepted.sum() / columns.drafted_n.sum())
    # The recording commits a little less, since some outputs were cut at their limit in the middle of a draft.
    assert columns.committed.mean() < p.acceptance_length < columns.committed.mean() * 1.02


@pytest.mark.parametrize("tau", [0.02, 0.1, 0.3])
def test_lossy_share_and_nats_on_the_real_trace(real, tau):
    """At the recorded draft length nothing is censored, so a loop over steps is the whole truth."""
    columns = real.columns
    p, right = np.exp(columns.logp), columns.rank == 0
    committed, lossy, nats = 0, 0, 0.0
    for s in range(columns.shape[1]):
        for j in range(7):
            if not (right[j, s] or p[j, s] >= np.float32(tau)):
                break
            committed += 1
            lossy += not right[j, s]
            nats += 0.0 if right[j, s] else columns.top1_margin[j, s]
        else:
            committed -= without_bonus(columns)[s]
        committed += 1
    found = predict(Replayable.of(columns), or_lossless(tau, 7))
    assert lossy > 0
    assert found.acceptance_length == pytest.approx(committed / columns.shape[1])
    assert found.lossy_share == pytest.approx(lossy / committed)
    assert found.given_up_nats == pytest.approx(nats / committed)


@pytest.mark.parametrize(("k", "least"), [(1, 1.005), (3, 1.02)])
def test_renewal_is_above_naive_truncation(real, k, least):
    naive = 1 + np.minimum(real.columns.accepted, k).mean()
    p = predict(Replayable.of(real.columns), exact(k))
    assert p.estimator == "renewal"
    assert least * naive < p.acceptance_length < 1.2 * naive


def test_the_article_threshold_accepts_less_than_exact(real):
    replayable = Replayable.of(real.columns)
    article, lossless = predict(replayable, threshold(0.65, 7)), predict(replayable, exact(7))
    assert article.acceptance_length < 0.9 * lossless.acceptance_length
    assert article.lossy_share == 0
    assert predict(replayable, or_lossless(0.65, 7)).acceptance_length == lossless.acceptance_length


# Share that is the target's first choice / share with p >= .65, and how many, at reached positions; from the README of
# the recording. It classed pieces by their text alone, so all but white space differs by a token or two.
SHARES = {
    "code": ((0.970, 0.928), (0.962, 0.933, 105), (0.930, 0.867)),
    "edit": ((0.977, 0.953), (1.000, 1.000, 42), (0.890, 0.835)),
    "structured": ((0.973, 0.973), (1.000, 0.932, 44), (0.909, 0.886)),
}


@pytest.mark.parametrize("workload", SHARES)
def test_shares_by_category_of_the_real_trace(real, workload):
    columns, (structural, space, word) = real.columns, SHARES[workload]
    right, likely = columns.rank == 0, np.exp(columns.logp) >= 0.65
    reached = np.vstack([np.ones((1, columns.shape[1]), bool), np.logical_and.accumulate(right)[:-1]])
    reached &= (np.array(real.workloads) == workload)[columns.request]
    is_space, is_structural = columns.category == Category.SPACE, columns.category == Category.STRUCTURAL

    def shares(cells):
        return right[cells & reached].mean(), likely[cells & reached].mean()

    assert shares(is_space) == pytest.approx(space[:2], abs=5e-4)
    assert (is_space & reached).sum() == space[2]
    assert shares(is_structural) == pytest.approx(structural, abs=0.02)
    assert shares(~is_space & ~is_structural) == pytest.approx(word, abs=0.02)


def test_without_a_cost_model_nothing_is_said_about_time(real):
    p = predict(Replayable.of(real.columns), exact(3))
    assert (p.step_s, p.tokens_per_s, p.speedup, p.speedup_interval) == (None, None, None, None)
    assert p.coverage == 1.0
    assert p.requests == 19
    assert p.expected_error == expected_error("renewal", True) == 0.03
    json.dumps(p.to_mapping(), allow_nan=False)


def test_time_follows_from_length_and_cost(real):
    p = predict(Replayable.of(real.columns), exact(3), COST, resamples=0)
    step_s = 1.0 + 0.05 * 4 + 0.1 * 3 + 0.02
    assert p.step_s == pytest.approx(step_s)
    assert p.tokens_per_s == pytest.approx(p.acceptance_length / step_s)
    assert p.speedup == pytest.approx(p.acceptance_length / step_s * 1.07)
    assert p.acceptance_rate == pytest.approx((p.acceptance_length - 1) / 3)  # without the bonus token
    assert p.speedup_interval is None


@pytest.mark.parametrize("policy", [exact(1), exact(7), threshold(0.3, 3), Policy("cut", length=Cut(7, 0.5))])
def test_the_interval_holds_the_estimate(real, policy):
    p = predict(Replayable.of(real.columns), policy, COST, resamples=300)
    interval = p.speedup_interval
    assert interval.estimate == pytest.approx(p.speedup)
    assert interval.low < p.speedup < interval.high
    assert (interval.n, interval.null) == (19, 1.0)
    assert interval.high - interval.low < 0.6 * p.speedup
    json.dumps(p.to_mapping(), allow_nan=False)


def test_the_interval_narrows_with_requests(random_columns):
    """Copies of one trace as further requests: four times the requests, half the width."""
    small = random_columns(np.random.default_rng(0), steps=400, most=4)
    small = replace(small, request=np.repeat(np.arange(40), 10).astype(np.int32), languages=(None,) * 40)
    names = [n for n in small.__dataclass_fields__ if n not in ("request", "languages", "greedy")]
    large = replace(
        small,
        request=np.concatenate([small.request + 40 * i for i in range(4)]).astype(np.int32),
        languages=(None,) * 160,
        **{n: np.concatenate([getattr(small, n)] * 4, axis=-1) for n in names},
    )
    widths = []
    for columns in (small, large):
        p = predict(Replayable.of(columns), exact(4), COST, resamples=2000)
        widths.append(p.speedup_interval.high - p.speedup_interval.low)
    assert widths[1] == pytest.approx(widths[0] / 2, rel=0.15)


def test_requests_left_out_do_not_count(real):
    some = np.arange(19) >= 14
    p = predict(Replayable.of(real.columns.of(some)), exact(7), COST, resamples=200)
    assert p.requests == p.speedup_interval.n == 5
    assert p.speedup_interval.low < p.speedup < p.speedup_interval.high
    alone = predict(Replayable.of(real.columns.of(np.arange(19) == 2)), exact(7), COST)
    assert alone.requests == 1
    assert alone.speedup_interval is None


def test_no_speculation_is_exactly_itself(real):
    p = predict(Replayable.of(real.columns), NONE, COST)
    assert (p.acceptance_length, p.acceptance_rate, p.coverage) == (1.0, None, 0.0)
    assert p.speedup == pytest.approx(1.0)
    assert (p.speedup_interval.low, p.speedup_interval.high) == pytest.approx((1.0, 1.0))


def test_coverage_is_the_share_of_steps_that_draft(real):
    least = 0.9
    p = predict(Replayable.of(real.columns), Policy("cut", length=Cut(7, least)))
    by_length = pieces(Replayable.of(real.columns), Policy("cut", length=Cut(7, least))).by_length.sum(axis=0)
    assert p.coverage == pytest.approx(1 - by_length[0] / by_length.sum())
    assert 0.5 < p.coverage < 1
    assert p.acceptance_rate > predict(Replayable.of(real.columns), exact(7)).acceptance_rate
    assert p.estimator == "renewal"


@pytest.mark.parametrize(("k", "least"), [(7, 0.9), (3, 0.6), (5, 0.99)])
def test_evidence_chooses_the_length_of_every_piece(real, k, least):
    columns = real.columns
    by_length = np.zeros(k + 1)
    likely = (columns.evidence >= least).T
    for right, strong, ended in zip(columns.rank.T == 0, likely, without_bonus(columns), strict=True):
        start = 0
        while True:
            seen = min(start, 6)  # at the very end, what the position before it would want
            wanted = int(np.logical_and.accumulate(strong[seen : seen + k]).sum())
            wanted = k if start and wanted == 7 - seen else wanted  # it may have wanted more than was recorded
            kept = int(np.logical_and.accumulate(right[start : start + wanted]).sum())
            at_end = start + kept == 7
            if not (at_end and ended):
                by_length[wanted] += (kept + 1) / (wanted + 1) if at_end else 1
            elif kept:
                by_length[kept] += 1
            if at_end or kept < wanted or not right[start + kept]:
                break
            start += kept + 1
    found = pieces(Replayable.of(columns), Policy("cut", length=Cut(k, least)))
    np.testing.assert_allclose(found.by_length.sum(axis=0), by_length)


def test_a_goodput_length_that_trusts_everything_is_the_longest_draft(real):
    sure = Calibration({"*": ((0.0,), (0.999,))})
    verify_s = tuple(COST.curve(1).at(np.arange(1, 9)).tolist())
    length = Goodput(7, sure, {1: verify_s}, {1: 1 / verify_s[0]}, 0.1)
    replayable = Replayable.of(real.columns)
    p, fixed = predict(replayable, Policy("goodput", length=length), COST), predict(replayable, exact(7), COST)
    assert pieces(replayable, Policy("goodput", length=length)).by_length[:, 7].sum() >= real.columns.shape[1] - 1
    assert p.acceptance_length == pytest.approx(fixed.acceptance_length, rel=0.05)


def test_more_than_was_recorded_is_refused(real):
    with pytest.raises(TraceError, match=r"'exact-k8' drafts up to 8 tokens but the trace holds drafts of 7.*k >= 8"):
        predict(Replayable.of(real.columns), exact(8))


def test_a_trace_without_steps_is_refused(real):
    with pytest.raises(TraceError, match="no steps"):
        predict(Replayable.of(real.columns.of(np.zeros(19, bool))), NONE)


def test_an_unmeasured_batch_size_is_refused(real):
    with pytest.raises(ConfigError, match=r"batch size 1; measure it, or use \[4\]"):
        predict(Replayable.of(real.columns), exact(7), StepCost({4: COST.curves[1]}))


def test_steps_without_drafts_are_steps(random_columns):
    """A drafter that finds nothing commits one token, under any policy."""
    columns = random_columns(np.random.default_rng(2), steps=300, most=1)
    empty = (columns.drafted_n == 0).mean()
    p = predict(Replayable.of(columns), exact(1), COST)
    assert p.coverage == pytest.approx(1 - empty)
    kept = (columns.rank[0] == 0) & (columns.drafted_n > 0)
    assert p.acceptance_length == pytest.approx(1 + kept.mean())
    assert p.acceptance_rate == pytest.approx(kept.sum() / (columns.drafted_n > 0).sum())


def test_a_trace_of_no_speculation_replays_as_itself(random_columns):
    columns = random_columns(np.random.default_rng(2), steps=30, most=0)
    p = predict(Replayable.of(columns), NONE, COST)
    assert (p.acceptance_length, p.estimator, p.speedup) == (1.0, "step", 1.0)
    with pytest.raises(TraceError, match="record with k >= 1"):
        predict(Replayable.of(columns), exact(1))
