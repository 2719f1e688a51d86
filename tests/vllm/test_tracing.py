import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftgate.engines.vllm.hooks import Faults
from draftgate.engines.vllm.recording import Recording, columns, folders
from draftgate.engines.vllm.ring import Ring, mark
from draftgate.engines.vllm.rules import Scores
from draftgate.engines.vllm.tracing import Part, Recorder, Row
from draftgate.engines.vllm.transcript import Begun, Ending, Taken, Transcript
from draftgate.engines.vllm.verify import Record
from draftgate.errors import InputError
from draftgate.policy.policy import Policy
from draftgate.policy.policyset import PolicySet
from draftgate.trace.columns import Columns
from draftgate.trace.records import DRAFTED_TYPES, RequestRecord, StepRecord
from draftgate.trace.setup import Setup
from draftgate.trace.store import TraceStore

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what vLLM imports

CPU = torch.device("cpu")
LOG = logging.getLogger("test.draftgate")
LONG_S = 60.0
SETUP = Setup("vllm", "0", "t", "0", "d", "h", 1)
EXACT = PolicySet((Policy("exact"),), "exact")


class TestRing:
    @given(st.lists(st.integers(1, 40), max_size=60), st.integers(0, 2**32 - 1))
    def test_live_claims_never_share_a_word(self, sizes: list[int], seed: int) -> None:
        ring, live = Ring(64, pinned=False), []
        random = np.random.default_rng(seed)
        for size in sizes:
            claim = ring.claim(size)
            if claim is None:
                assert live  # an empty ring has room
            else:
                start, end = claim
                assert start >= 0
                assert start + size <= 64
                assert all(start + size <= s or s + n <= start for s, n, _ in live)
                live.append((start, size, end))
            while live and random.random() < 0.5:
                ring.free(live.pop(0)[2])

    def test_empty_ring_takes_anything_that_fits(self) -> None:
        ring = Ring(64, pinned=False)
        for size in (1, 63, 64, 40, 40, 64):
            claim = ring.claim(size)
            assert claim is not None
            ring.free(claim[1])
        assert ring.claim(65) is None

    def test_words_are_shared_with_numpy(self) -> None:
        ring = Ring(4, pinned=False)
        ring.memory[1:3] = torch.tensor([7, 8], dtype=torch.int32)
        assert ring.array[1:3].tolist() == [7, 8]


def begun(request: int = 1, most: int = 100, ends: Sequence[int] = (0,), kind: str = "greedy") -> Begun:
    prompt = np.array([5, 6], np.int32)
    sampling = {"temperature": 0.0, "max_tokens": most}
    return Begun(kind, request, f"p{request}", "w", None, "exact", prompt, sampling, Ending(frozenset(ends), most))


def drafted(tokens: Sequence[int]) -> dict[str, np.ndarray[Any, Any]]:
    return {
        name: np.array(tokens if name == "tokens" else range(len(tokens)), dtype)
        for name, dtype in DRAFTED_TYPES.items()
    }


def taken(sampled: Sequence[int], draft: Sequence[int] = (), at_s: float = 0.0) -> Taken:
    return Taken(np.array(sampled, np.int32), drafted(draft), 2, 0.01, 0.1, at_s)


class TestTranscript:
    def test_first_token_is_of_the_prefill_and_the_rest_of_steps(self) -> None:
        t = Transcript(begun())
        t.prefill(0.5)
        t.take(taken([9], at_s=1.0))
        t.take(taken([3, 4, 8], [3, 4, 5], at_s=3.0))
        record = t.record()
        assert record.output_tokens.tolist() == [9, 3, 4, 8]
        assert record.prefill_s == pytest.approx(0.6)
        assert record.decode_s == pytest.approx(2.0)
        (step,) = t.steps
        assert (step.offset, step.drafted_n, step.accepted, step.committed, step.batch) == (1, 3, 2, 3, 2)
        assert step.drafted is not None
        assert step.drafted.tokens.tolist() == [3, 4, 5]

    def test_end_token_inside_a_draft_cuts_text_and_draft(self) -> None:
        t = Transcript(begun())
        t.take(taken([9]))
        t.take(taken([3, 0, 5, 6], [3, 0, 5]))
        (step,) = t.steps
        assert t.finish == "stop"
        assert t.output == [9, 3, 0]
        # As in the embedded engine: the text ended with a kept token, so no bonus token followed.
        assert (step.drafted_n, step.accepted, step.committed) == (2, 2, 2)

    def test_end_token_after_a_rejection_leaves_the_draft_whole(self) -> None:
        t = Transcript(begun())
        t.take(taken([9]))
        t.take(taken([3, 0], [3, 4, 5]))
        (step,) = t.steps
        assert t.finish == "stop"
        assert (step.drafted_n, step.accepted, step.committed) == (3, 1, 2)

    def test_limit_ends_with_length(self) -> None:
        t = Transcript(begun(most=3))
        t.take(taken([9]))
        t.take(taken([3, 4, 5, 6], [3, 4, 5]))
        assert (t.finish, t.output) == ("length", [9, 3, 4])

    def test_steps_of_a_scheduler_that_ran_ahead_are_dropped(self) -> None:
        t = Transcript(begun())
        t.take(taken([0]))
        t.take(taken([3, 4], [3]))
        assert (t.output, t.steps, t.record().finish) == ([0], [], "stop")

    def test_neither_end_nor_limit_is_an_abort(self) -> None:
        t = Transcript(begun())
        t.take(taken([9]))
        assert t.record().finish == "abort"

    def test_padding_is_no_draft(self) -> None:
        t = Transcript(begun())
        t.take(taken([9]))
        t.take(taken([3], [-1, -1]))
        t.take(taken([3, 4], [3, -1]))
        assert [step.drafted_n for step in t.steps] == [0, 1]

    @given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4), min_size=1, max_size=12), st.integers(1, 20))
    def test_text_is_what_vllm_would_stop_at(self, steps: list[list[int]], most: int) -> None:
        t = Transcript(begun(most=most))
        for tokens in steps:
            t.take(taken(tokens, [1, 2, 3][: len(tokens)]))
        flat = [token for tokens in steps for token in tokens]
        end = next((i + 1 for i, token in enumerate(flat) if token == 0 or i + 1 == most), len(flat))
        if len(steps[0]) == 1:  # as a prefill gives
            assert t.output == flat[:end]
            assert 1 + sum(step.committed for step in t.steps) == len(t.output)
            assert all(step.accepted <= min(step.drafted_n, step.committed) for step in t.steps)


def part(rows: Sequence[Row], sampled: Sequence[Sequence[int]], tokens: Sequence[int] = ()) -> Part:
    n = len(tokens)
    vectors = [
        torch.tensor(tokens, dtype=torch.int32)
        if name == "tokens"
        else torch.arange(n, dtype=torch.float32 if dtype is np.float32 else torch.int32)
        for name, dtype in DRAFTED_TYPES.items()
    ]
    now = mark(CPU)
    return Part(rows, vectors if n else [], torch.tensor(sampled, dtype=torch.int32), len(sampled), None, (now, now))


class Written:
    """A sink that keeps what it gets."""

    def __init__(self) -> None:
        self.pairs: list[tuple[str, RequestRecord, Sequence[StepRecord]]] = []

    def __call__(self, kind: str, pairs: Sequence[tuple[RequestRecord, Sequence[StepRecord]]]) -> None:
        self.pairs += [(kind, *pair) for pair in pairs]


def run(recorder: Recorder, name: str, steps: int = 3) -> None:
    """One request of a first token, some steps of two drafted tokens, and its end token."""
    recorder.step(part([Row(name, 0, 0, 0, False)], [[9, -1, -1]]))
    for _ in range(steps):
        recorder.step(part([Row(name, 0, 0, 2, False)], [[3, 4, 5]], [3, 4]))
    recorder.step(part([Row(name, 0, 0, 2, False)], [[0, -1, -1]], [3, 4]))


class TestRecorder:
    def test_a_request_comes_out_whole(self) -> None:
        written = Written()
        recorder = Recorder(written, CPU, 4096, Faults(LOG))
        recorder.begin("a", begun(7))
        run(recorder, "a")
        assert recorder.flush(LONG_S)
        ((kind, record, steps),) = written.pairs
        assert (kind, record.request, record.finish) == ("greedy", 7, "stop")
        assert record.output_tokens.tolist() == [9, *[3, 4, 5] * 3, 0]
        assert [s.offset for s in steps] == [1, 4, 7, 10]
        assert steps[0].drafted is not None
        assert steps[0].drafted.logp.tolist() == [0.0, 1.0]
        assert steps[0].drafted.logp.dtype == np.float32
        assert recorder.counts == {"written": 1}
        recorder.close(LONG_S)

    def test_rows_are_told_apart(self) -> None:
        written = Written()
        recorder = Recorder(written, CPU, 4096, Faults(LOG))
        recorder.begin("a", begun(1))
        recorder.begin("c", begun(2))
        recorder.step(part([Row("a", 0, 0, 0, False), Row("c", 2, 0, 0, False)], [[9], [8], [7]]))
        rows = [Row("a", 0, 0, 1, False), Row("c", 2, 3, 2, False)]
        recorder.step(part(rows, [[11, 0, -1], [1, 1, 1], [13, 14, 0]], [11, 12, 12, 13, 14]))
        recorder.flush(LONG_S)
        outputs = {record.request: (record.output_tokens.tolist(), steps) for _, record, steps in written.pairs}
        assert outputs[1][0] == [9, 11, 0]
        assert outputs[2][0] == [7, 13, 14, 0]
        assert outputs[2][1][0].drafted.tokens.tolist() == [13, 14]  # type: ignore[union-attr]
        assert outputs[2][1][0].drafted.entropy.tolist() == [3.0, 4.0]  # type: ignore[union-attr]
        recorder.close(LONG_S)

    def test_prompt_chunks_sample_nothing(self) -> None:
        written = Written()
        recorder = Recorder(written, CPU, 4096, Faults(LOG))
        recorder.begin("a", begun())
        recorder.step(part([Row("a", 0, 0, 0, True)], [[55]]))
        recorder.step(part([Row("a", 0, 0, 0, False)], [[-1]]))
        run(recorder, "a", steps=0)
        recorder.flush(LONG_S)
        assert written.pairs[0][1].output_tokens.tolist() == [9, 0]
        recorder.close(LONG_S)

    def test_a_lagging_writer_costs_whole_requests_that_are_counted(self) -> None:
        release, written = threading.Event(), Written()

        def slow(kind: str, pairs: Any) -> None:
            release.wait(LONG_S)
            written(kind, pairs)

        recorder = Recorder(slow, CPU, 256, Faults(LOG))
        recorder.begin("first", begun(1))
        run(recorder, "first")
        flushed = threading.Thread(target=recorder.flush, args=(LONG_S,))
        flushed.start()  # keeps the writer busy until it is released
        while recorder._ended or recorder._inbox:
            release.wait(0.001)
        recorder.begin("second", begun(2))
        run(recorder, "second", steps=40)
        recorder.begin("third", begun(3))
        release.set()
        flushed.join()
        recorder.flush(LONG_S)
        run(recorder, "third")
        recorder.flush(LONG_S)
        assert [record.request for _, record, _ in written.pairs] == [1, 3]
        assert recorder.counts == {"written": 2, "lagged": 1}
        recorder.close(LONG_S)

    @pytest.mark.parametrize("error", [InputError("no space"), OSError(28, "No space left on device")])
    def test_a_full_disk_costs_requests_that_are_counted_and_nothing_else(self, error: Exception) -> None:
        written, faults, full = Written(), Faults(LOG), True

        def sink(kind: str, pairs: Any) -> None:
            if full:
                raise error
            written(kind, pairs)

        recorder = Recorder(sink, CPU, 4096, faults)
        for number, name in enumerate("abc"):
            recorder.begin(name, begun(number))
            run(recorder, name)
            recorder.flush(LONG_S)
        full = False
        recorder.begin("d", begun(4))
        run(recorder, "d")
        recorder.flush(LONG_S)
        assert [record.request for _, record, _ in written.pairs] == [4]
        assert recorder.counts == {"disk": 3, "written": 1}
        assert faults.counts["trace"] == 3
        assert "o space" in faults.first["trace"]
        recorder.close(LONG_S)

    def test_aborted_requests_are_written_as_far_as_they_came(self) -> None:
        written = Written()
        recorder = Recorder(written, CPU, 4096, Faults(LOG))
        for name in ("early", "late"):
            recorder.begin(name, begun(len(name)))
        recorder.step(part([Row("late", 0, 0, 0, False)], [[9]]))
        recorder.end(["early", "late", "unheard of"])
        recorder.flush(LONG_S)
        assert [(record.request, record.finish) for _, record, _ in written.pairs] == [(4, "abort")]
        assert recorder.counts == {"written": 1, "aborted early": 1}
        recorder.close(LONG_S)

    def test_kinds_go_to_traces_of_their_own_that_replay(self, tmp_path: Path) -> None:
        recorder = Recorder(folders(tmp_path, SETUP), CPU, 4096, Faults(LOG))
        for number, kind in enumerate(("greedy", "sampled", "greedy", "sampled-lossy")):
            recorder.begin(str(number), begun(number, kind=kind))
            run(recorder, str(number))
        recorder.close(LONG_S)
        assert recorder.counts["written"] == 4
        assert [r.request for r in TraceStore(tmp_path / "greedy").requests()] == [0, 2]
        assert [r.request for r in TraceStore(tmp_path / "sampled-lossy").requests()] == [3]
        found = Columns.load(TraceStore(tmp_path / "greedy"))
        assert found.shape == (2, 8)


def scheduled(new: Sequence[Any] = (), finished: Sequence[str] = ()) -> Any:
    return SimpleNamespace(scheduled_new_reqs=list(new), finished_req_ids=set(finished))


def new(name: str, extra: dict[str, Any] | None = None, **sampling: Any) -> Any:
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=50, extra_args=extra, **sampling)
    return SimpleNamespace(req_id=name, prompt_token_ids=[1, 2, 3], sampling_params=params)


class TestRecording:
    def test_share_is_of_requests_and_the_same_everywhere(self) -> None:
        names = [f"request-{i}" for i in range(2000)]
        chosen = []
        for _ in range(2):
            recording = Recording(None, 0.25, 100)
            recording.follow(scheduled([new(name) for name in names]), EXACT)
            chosen.append([name for name in names if recording.wants([name])])
        assert chosen[0] == chosen[1]
        assert len(chosen[0]) == pytest.approx(500, abs=80)

    def test_nothing_is_recorded_before_there_is_a_policy(self) -> None:
        recording = Recording(None, 1.0, 100)
        recording.follow(scheduled([new("a")]), None)
        assert not recording.wants(["a"])

    def test_a_finished_request_is_forgotten_and_its_id_can_come_again(self) -> None:
        written = Written()
        recorder = Recorder(written, CPU, 4096, Faults(LOG))
        recording = Recording(recorder, 1.0, 100)
        recording.follow(scheduled([new("a")]), EXACT)
        recorder.step(part([Row("a", 0, 0, 0, False)], [[9]]))
        recording.follow(scheduled([new("a")], finished=["a"]), EXACT)
        assert recording.wants(["a", "b"])
        recorder.step(part([Row("a", 0, 0, 0, False)], [[8]]))
        recording.follow(scheduled(finished=["a"]), EXACT)
        assert not recording.wants(["a"])
        recorder.close(LONG_S)
        assert [record.output_tokens.tolist() for _, record, _ in written.pairs] == [[9], [8]]
        assert written.pairs[0][1].request < written.pairs[1][1].request

    @pytest.mark.parametrize(
        ("rule", "temperature", "kind"),
        [
            ("exact", 0.0, "greedy"),
            ("lossless", 0.7, "sampled"),
            ("loose", 0.0, "greedy-lossy"),
            ("loose", 0.7, "sampled-lossy"),
        ],
    )
    def test_what_is_known_of_a_request(self, rule: str, temperature: float, kind: str) -> None:
        written = Written()
        recorder = Recorder(written, CPU, 4096, Faults(LOG))
        policies = PolicySet((), "exact", {"chat": rule})
        asks = {"draftgate_workload": "chat", "draftgate_language": "js", "draftgate_prompt": "p9", "of_others": 1}
        recording = Recording(recorder, 1.0, 100)
        recording.follow(scheduled([new("a", asks, temperature=temperature, stop_token_ids=[4])]), policies)
        recorder.step(part([Row("a", 0, 0, 0, False)], [[4]]))
        recorder.close(LONG_S)
        ((found, record, _),) = written.pairs
        assert found == kind
        assert (record.prompt_id, record.workload, record.language, record.policy) == ("p9", "chat", "js", rule)
        assert record.prompt_tokens.tolist() == [1, 2, 3]
        assert record.finish == "stop"
        assert record.sampling["temperature"] == temperature
        assert record.sampling["max_tokens"] == 50


@pytest.mark.parametrize("drawn", [True, False])
def test_columns_are_those_of_the_trace(drawn: bool) -> None:
    p, q = torch.tensor([0.5, 0.0]), torch.tensor([0.25, 1.0])
    scores = Scores(p, p, q, torch.tensor([0.5, 0.75]), torch.tensor([0, 4]), torch.tensor([1.0, 2.0]))
    record = Record(torch.tensor([3, 0]), None, scores, torch.tensor([0.0, 1.0], dtype=torch.float64))
    found = dict(zip(DRAFTED_TYPES, columns(record, torch.tensor([3, -1]), drawn), strict=True))
    assert all(vector.element_size() == 4 for vector in found.values())
    assert found["tokens"].tolist() == [3, -1]
    assert found["evidence"].isnan().tolist() == [not drawn] * 2
    np.testing.assert_allclose(found["logp"], [np.log(0.5), -np.inf])
    np.testing.assert_allclose(found["top1_margin"], [0.0, np.inf])
    np.testing.assert_allclose(found["logq"], np.log([0.25, 1.0]))
    assert found["category"].tolist() == [8, 8]
    assert found["rank"].tolist() == [0, 4]
    assert ((found["uniform"] > 0) & (found["uniform"] < 1)).all()
