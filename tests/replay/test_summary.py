import json

import numpy as np
import pytest

from draftgate.policy.policy import Policy
from draftgate.replay.accept import Replayable
from draftgate.replay.summary import rejected_by, summarise


@pytest.fixture(params=["real", "random"])
def columns(request, real, random_columns):
    return real.columns if request.param == "real" else random_columns(np.random.default_rng(9), steps=80, most=5)


def reached_of(columns):
    """(position, category, offset, kept) of every token whose predecessors in the draft were all kept."""
    for s in range(columns.shape[1]):
        for j in range(columns.drafted_n[s]):
            kept = bool(columns.rank[j, s] == 0)
            yield j, int(columns.category[j, s]), int(columns.offset[s]) + j, kept
            if not kept:
                break


def test_shares_are_counts_over_reached_tokens(columns):
    found, reached = summarise(Replayable.of(columns)), list(reached_of(columns))
    drafts = int((columns.drafted_n > 0).sum())
    for row in found["positions"]:
        kept = [k for j, _, _, k in reached if j == row["position"]]
        assert (row["conditional"]["n"], row["survival"]["n"]) == (len(kept), drafts)
        assert row["conditional"]["rate"] == pytest.approx(np.mean(kept))
        assert row["survival"]["rate"] == pytest.approx(sum(kept) / drafts)
        assert row["survival"]["low"] <= row["survival"]["rate"] <= row["survival"]["high"]
    assert sum(row["n"] for row in found["categories"]) == len(reached)
    assert sum(row["n"] for row in found["offsets"]) == len(reached)
    for row in found["offsets"]:
        kept = [k for _, _, offset, k in reached if row["from"] <= offset < row["to"]]
        assert row["rate"] == (pytest.approx(np.mean(kept)) if kept else None)
    json.dumps(found, allow_nan=False)


def test_totals_of_the_real_trace(real):
    found = summarise(Replayable.of(real.columns))
    assert (found["requests"], found["steps"], found["drafted"]) == (19, 281, 1967)
    assert found["coverage"] == 1.0
    assert found["acceptance_rate"] == pytest.approx(real.columns.accepted.sum() / 1967)
    assert found["acceptance_length"] == pytest.approx(real.columns.committed.mean())
    per_request = [real.columns.accepted[real.columns.request == r].mean() / 7 for r in range(19)]
    assert found["per_request"]["mean"] == pytest.approx(np.mean(per_request))
    assert found["per_request"]["sd"] == pytest.approx(np.std(per_request, ddof=1))


def test_what_is_unknown_is_none(random_columns):
    columns = random_columns(np.random.default_rng(9), steps=0, most=3)
    found = summarise(Replayable.of(columns))
    assert (found["acceptance_rate"], found["acceptance_length"], found["coverage"]) == (None, None, None)
    assert found["positions"][0]["survival"] == {"n": 0, "rate": None, "low": None, "high": None}
    assert (found["categories"], found["offsets"]) == ([], [])
    assert found["per_request"] == {"n": 0, "mean": None, "sd": None}


def test_rejected_by_counts_what_the_lossless_test_keeps(real):
    replayable = Replayable.of(real.columns)
    kept = int(real.columns.accepted.sum())
    assert rejected_by(replayable, Policy("all", "threshold", 0.0)) == {"n": kept, "share": 0.0}
    assert rejected_by(replayable, Policy("or", "threshold-or-lossless", 0.65))["share"] == 0.0
    strict = rejected_by(replayable, Policy("code", "threshold", 0.65))
    p = np.exp(real.columns.logp)
    by_hand = sum((p[:n, s] < 0.65).sum() for s, n in enumerate(real.columns.accepted))
    assert strict["share"] == pytest.approx(by_hand / kept)
