"""On answers of a real server: tests/data/vllm."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftgate.engines.vllm.metrics import Acceptance, of_request, read_counters
from draftgate.errors import EngineError

DATA = Path(__file__).parents[1] / "data" / "vllm"
START, LATER, RESTARTED = ((DATA / f"metrics-{name}.txt").read_text() for name in ("start", "later", "restarted"))
EVENTS = json.loads((DATA / "stream.json").read_text())
RESPONSE = json.loads((DATA / "response.json").read_text())


def test_the_counters_of_a_scrape():
    later = read_counters(LATER)
    assert (later.drafts, later.drafted_tok, later.accepted_tok) == (17, 85, 24)
    assert (later.generated_tok, later.first_tok) == (128, 3)
    assert later.per_position == (8, 5, 5, 3, 3)
    assert later.started == pytest.approx(1796059766.02)


def test_ratios_between_two_scrapes():
    counted = read_counters(LATER).since(read_counters(START))
    found = counted.acceptance()
    assert found.rate == 24 / 85  # bonus tokens are no accepted tokens
    assert found.length == 1 + 24 / 17  # and are committed ones
    assert found.survival == tuple(n / 17 for n in (8, 5, 5, 3, 3))
    assert found.conditional == pytest.approx((8 / 17, 5 / 8, 1, 3 / 5, 1))
    assert found.steps == 128 - 3 - 24
    assert found.coverage == 17 / found.steps


def test_the_counters_agree_with_the_metrics_of_the_requests():
    """Three requests ran between the scrapes: the stream twice, with other tokens the second time, and the response."""
    counted = read_counters(LATER).since(read_counters(START))
    parts = [EVENTS[-1]["metrics"]["speculative_decoding"], RESPONSE["metrics"]["speculative_decoding"]]
    assert counted.drafts == 6 + sum(part["num_spec_steps"] for part in parts)
    assert counted.drafted_tok == 30 + sum(part["num_draft_tokens"] for part in parts)


def test_a_restart_is_not_a_difference():
    later, restarted = read_counters(LATER), read_counters(RESTARTED)
    assert restarted.since(later) is None
    assert replace(restarted, started=later.started).since(later) is None  # counters fell, whatever the clock says
    assert replace(later, started=restarted.started).since(restarted).drafts == later.drafts


def test_what_a_server_does_not_report_is_none():
    plain = read_counters((DATA / "metrics-no-speculation.txt").read_text())
    assert plain.drafts is plain.per_position is plain.acceptance() is None
    assert plain.generated_tok == 0
    assert read_counters("").acceptance() is None
    start = read_counters(START)
    assert start.since(plain) is None or start.since(plain).drafts is None


def test_nothing_drafted_has_no_rate():
    found = read_counters(START).acceptance()
    assert (found.drafts, found.rate, found.length, found.survival, found.coverage) == (0, None, None, None, None)


def test_only_the_asked_model_is_counted():
    other = LATER.replace('model_name="smollm2"', 'model_name="other"')
    both = read_counters(START + other)
    assert (both.drafts, read_counters(START + other, "smollm2").drafts) == (17, 0)
    assert read_counters(LATER, "smollm").drafts is None


def test_engines_of_one_server_are_added_up():
    twice = read_counters(LATER + LATER.replace('engine="0"', 'engine="1"'))
    assert (twice.drafts, twice.per_position) == (34, (16, 10, 10, 6, 6))


def test_what_is_no_scrape_is_refused():
    with pytest.raises(EngineError, match="Prometheus"):
        read_counters("<html>502 Bad Gateway</html>")


@pytest.mark.parametrize(("answer", "output_tok"), [(EVENTS[-1], 48), (RESPONSE, 32)])
def test_the_metrics_of_a_response(answer, output_tok):
    spec = answer["metrics"]["speculative_decoding"]
    found = of_request(spec, output_tok)
    assert found.rate == pytest.approx(spec["draft_acceptance_rate"])
    assert found.length == pytest.approx(spec["mean_acceptance_length"])
    kept = spec["per_step_accepted"]
    assert found.survival == tuple(sum(n > i for n in kept) / len(kept) for i in range(5))
    assert found.steps == output_tok - 1 - sum(kept)


def test_metrics_of_another_version_are_refused():
    with pytest.raises(EngineError, match=r"0\.32"):
        of_request({"mean_acceptance_length": 2.0}, 5)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30))
def test_survival_and_its_conditionals_say_the_same(kept: list[int]):
    """Whatever was kept, survival falls and is the product of the conditionals."""
    per_position = [sum(n > i for n in kept) for i in range(4)]
    found = Acceptance.of(len(kept), 4 * len(kept), sum(kept), per_position, None)
    product = 1.0
    for survival, conditional in zip(found.survival, found.conditional, strict=True):
        product = product * conditional if conditional is not None else 0.0
        assert survival == pytest.approx(product)
    assert found.length == pytest.approx(1 + sum(found.survival))
