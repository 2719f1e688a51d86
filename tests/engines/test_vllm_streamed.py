"""On a stream of a real server: tests/data/vllm."""

import copy
import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftgate.engines.base import Request
from draftgate.engines.vllm.streamed import Streamed, arranged
from draftgate.errors import EngineError
from draftgate.testing.engine import assert_tiled

EVENTS = json.loads((Path(__file__).parents[1] / "data" / "vllm" / "stream.json").read_text())
REQUEST = Request("loop", (1, 2, 3), 48)


def streamed(events) -> Streamed:
    """The events, a tenth of a second apart."""
    out = Streamed(REQUEST, 1, 100.0)
    for i, event in enumerate(events, 1):
        out.take(event, 100.0 + i / 10)
    return out


def test_a_stream_becomes_steps():
    done = streamed(EVENTS).completion()
    assert_tiled(done, 5)
    assert len(done.tokens) == 48
    assert (done.finish, done.text[:10]) == ("length", " range(3):")
    assert [s.accepted for s in done.steps if s.drafted_n] == [5, 0, 0, 0, 1, 3]
    assert done.steps[0].offset == 1
    assert done.steps[0].committed == 6


def test_seconds_are_the_servers_where_it_gives_them():
    spec = EVENTS[-1]["metrics"]
    done = streamed(EVENTS).completion()
    assert done.decode_s == pytest.approx(spec["generation_time_ms"] / 1e3)
    assert done.prefill_s == pytest.approx(spec["time_to_first_token_ms"] / 1e3)
    bare = copy.deepcopy(EVENTS)
    del bare[-1]["metrics"]["generation_time_ms"], bare[-1]["metrics"]["time_to_first_token_ms"]
    done = streamed(bare).completion()
    chunks = sum(bool(event["choices"]) for event in EVENTS)
    assert (done.prefill_s, done.decode_s) == pytest.approx((0.1, (chunks - 1) / 10))


def test_a_server_that_does_not_say_what_it_drafted_is_refused():
    silent = [event for event in EVENTS if "metrics" not in event]
    with pytest.raises(EngineError, match="--per-request-spec-decode-metrics"):
        streamed(silent).completion()
    summary = copy.deepcopy(EVENTS)
    del summary[-1]["metrics"]["speculative_decoding"]["per_step_accepted"]
    with pytest.raises(EngineError, match="detailed"):
        streamed(summary).completion()


def test_no_tokens_are_no_completion():
    with pytest.raises(EngineError, match="'loop'"):
        streamed([]).completion()


def test_more_drafts_than_text_are_refused():
    with pytest.raises(EngineError, match="2 more"):
        list(arranged([1], [0, 3, 0], [4, 4, 4]))


STEP = st.one_of(st.just((0, 0)), st.tuples(st.just(5), st.integers(0, 5)))  # (drafted, accepted)


@given(st.lists(STEP, min_size=1, max_size=20), st.data())
def test_arranging_finds_the_steps_again(steps, data):
    """Whatever the steps and wherever the text ends, sums are right; the order too where it can be known."""
    last = steps[-1]
    lost = data.draw(st.integers(0, last[1])) if last[0] else 0
    sizes = [accepted + 1 for _, accepted in steps]
    sizes[-1] -= lost
    drafting = [s for s in steps if s[0]]
    found = list(arranged(sizes, [a for _, a in drafting], [n for n, _ in drafting]))
    assert [committed for *_, committed in found] == sizes
    assert sum(n > 0 for _, n, _, _ in found) == len(drafting)
    assert sum(a for *_, a, _ in found) == sum(min(a, s) for (_, a), s in zip(steps, sizes, strict=True))
    assert all(a <= n and committed in (a, a + 1) for _, n, a, committed in found)
    if all(accepted for _, accepted in drafting) and not lost:  # then a step of one token drafted nothing
        assert [(n, a) for _, n, a, _ in found] == steps


@given(st.lists(STEP, min_size=1, max_size=20), st.data())
def test_merged_chunks_keep_the_sums(steps, data):
    sizes = [accepted + 1 for _, accepted in steps]
    cuts = sorted(data.draw(st.sets(st.integers(1, len(sizes) - 1))) if len(sizes) > 1 else ())
    chunks = [sum(sizes[a:b]) for a, b in pairwise([0, *cuts, len(sizes)])]
    drafting = [s for s in steps if s[0]]
    found = list(arranged(chunks, [a for _, a in drafting], [n for n, _ in drafting]))
    assert sum(committed for *_, committed in found) == sum(sizes)
    assert sum(a for *_, a, _ in found) == sum(a for _, a in drafting)
    assert len(found) == len(steps)
