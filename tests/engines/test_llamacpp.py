import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from draftgate.engines.base import Engine, Sampling
from draftgate.engines.llamacpp import engine as module
from draftgate.engines.llamacpp import models
from draftgate.engines.llamacpp.engine import LlamaCpp
from draftgate.errors import ConfigError, EngineError, ModelError
from draftgate.policy.length import Cut, Fixed
from draftgate.policy.policy import NONE, Policy
from draftgate.testing.engine import EngineContract, assert_same_text, assert_tiled
from draftgate.workload.prompt import Message, Prompt

REPEAT = Prompt(id="repeat", prompt="a = 1\nb = 2\nc = 3\na = 1\nb = 2\nc = 3\na = 1\nb =", language="python")
EXACT = Policy("exact", length=Fixed(7))


class TestLookup(EngineContract):
    @pytest.fixture
    def engine(self, llama: LlamaCpp) -> Engine:
        return llama


@pytest.fixture(scope="module")
def drafted(smollm: Path) -> Iterator[LlamaCpp]:
    with closing(LlamaCpp(smollm, models.pull("smollm2-135m-draft24"), 256, 1, 2)) as engine:
        yield engine


class TestDraftModel(EngineContract):
    max_tokens = 10
    lengths = (1, 4)

    @pytest.fixture
    def engine(self, drafted: LlamaCpp) -> Engine:
        return drafted


def test_a_draft_of_half_the_target_is_right_about_half_the_time(drafted: LlamaCpp) -> None:
    request = drafted.encode(REPEAT, "w", 16, Sampling())
    steps = drafted.generate([request], Policy("exact", length=Fixed(3)))[0].steps
    assert all(step.drafted_n == 3 for step in steps[:-2])
    assert sum(step.accepted for step in steps) >= 4
    assert all(step.draft_s > 0 for step in steps[:-2])


def test_drawn_drafts_of_a_cut_policy_run_losslessly_to_the_end(drafted: LlamaCpp) -> None:
    policy = Policy("p", "lossless", length=Cut(4, 0.3), draft_temperature=0.5, draft_top_p=0.9)
    request = drafted.encode(REPEAT, "w", 12, Sampling(0.8, seed=1))
    first, again = (drafted.generate([request], policy, True)[0] for _ in range(2))
    assert first.tokens == again.tokens
    assert_tiled(first, 4)
    assert any(step.drafted is not None and (step.drafted.logq < 0).any() for step in first.steps)


def test_a_diverged_draft_changes_no_text(smollm: Path, llama: LlamaCpp) -> None:
    with closing(LlamaCpp(smollm, models.pull("smollm2-135m-draft8"), 256, 1)) as engine:
        request = engine.encode(REPEAT, "w", 10, Sampling())
        done = engine.generate([request], Policy("exact", length=Fixed(3)))[0]
    assert_tiled(done, 3)
    assert_same_text(llama, llama.generate([request], NONE)[0], done)
    assert sum(step.accepted for step in done.steps) <= 3


def test_lookup_on_repeating_text_is_accepted_and_categorised(llama: LlamaCpp) -> None:
    done = llama.generate([llama.encode(REPEAT, "w", 12, Sampling())], EXACT, True)[0]
    assert done.text.startswith(" 2\nc = 3\n")
    assert done.steps[0].accepted == 7
    assert done.steps[0].drafted is not None
    assert len(set(done.steps[0].drafted.category.tolist())) > 2


def test_an_answer_that_ends_is_counted_to_its_end(llama: LlamaCpp) -> None:
    """The end token comes inside a draft: the first answer stands in the prompt, end token and all."""
    turns = (Message("user", "Say yes."), Message("assistant", "Yes."), Message("user", "Say yes."))
    request = llama.encode(Prompt(id="end", messages=turns), "w", 24, Sampling())
    none, done = (llama.generate([request], policy)[0] for policy in (NONE, EXACT))
    assert none.finish == done.finish == "stop"
    assert done.tokens[-1] in llama.end_tokens
    assert_tiled(done, 7)
    assert_same_text(llama, none, done)
    assert done.steps[-1].committed == done.steps[-1].accepted >= 1


def test_two_prompts_verified_in_one_decode_have_the_logits_of_two_decodes(llama: LlamaCpp) -> None:
    context = llama._context
    rows = [llama._target.tokenize(text) for text in ("The capital of France is", "def add(a, b):\n    return")]
    alone = []
    for tokens in rows:
        context.prefill(0, tokens[:3])
        alone.append(context.decode([(0, 3, tokens[3:])]).copy())
    for sequence, tokens in enumerate(rows):
        context.prefill(sequence, tokens[:3])
    together = context.decode([(s, 3, tokens[3:]) for s, tokens in enumerate(rows)]).copy()
    llama._speculator.forget()
    apart = np.abs(together - np.concatenate(alone)).max()
    assert apart < 2  # kernels for other row counts quantise activations differently: up to 1 was seen
    assert np.abs(alone[0][-1] - alone[1][-1]).max() > 5  # other rows would not pass


def test_the_prompts_of_a_batch_are_reused_by_the_next_arm(llama: LlamaCpp) -> None:
    requests = [llama.encode(p, "w", 4, Sampling()) for p in EngineContract.prompts]
    first = llama.generate(requests, NONE)
    again = llama.generate(requests, Policy("exact", length=Fixed(2)))
    assert [d.prefill_s for d in first] == [d.prefill_s for d in again]
    swapped = llama.generate(requests[::-1], NONE)
    assert {d.prefill_s for d in first}.isdisjoint(d.prefill_s for d in swapped)


def test_encode_follows_the_prompt(llama: LlamaCpp) -> None:
    raw = llama.encode(replace(REPEAT, max_tokens=5), "w", 12, Sampling())
    assert (raw.max_tokens, raw.language, raw.lexed, raw.workload) == (5, "python", REPEAT.prompt, "w")
    chat = llama.encode(Prompt(id="c", messages=(Message("user", "Hi"),), language="klingon"), "w", 12, Sampling())
    assert (chat.max_tokens, chat.language, chat.lexed) == (12, None, "")
    assert chat.tokens[-3:] == tuple(llama._target.tokenize("<|im_start|>assistant\n"))[-3:]


def test_setup_names_what_figures_depend_on(llama: LlamaCpp, drafted: LlamaCpp) -> None:
    assert llama.setup.engine == "llamacpp"
    assert "xllamacpp" in llama.setup.version
    assert llama.setup.target.startswith("smollm2-135m.gguf (llama")
    assert (llama.setup.draft, llama.setup.threads) == ("lookup", 1)
    assert drafted.setup.draft.startswith("smollm2-135m-draft24.gguf (llama")
    assert llama.setup.target_sha == drafted.setup.target_sha
    assert llama.setup.key() != drafted.setup.key()


@pytest.mark.parametrize("batch", [0, 3])
def test_a_batch_must_fit(llama: LlamaCpp, batch: int) -> None:
    request = llama.encode(REPEAT, "w", 4, Sampling())
    with pytest.raises(ConfigError, match=f"batch must be 1 to 2 requests but got {batch}"):
        llama.generate([request] * batch, NONE)


def tiny(path: Path, tokens: list[str]) -> Path:
    """A llama of one layer and a vocabulary of its own, with weights of zero."""
    writer, width = gguf.GGUFWriter(path, "llama"), 32
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(width)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * len(tokens))
    writer.add_token_merges(["a b"])
    block = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]
    shapes = {f"blk.0.{name}.weight": (width, width) for name in block}
    shapes |= {"token_embd.weight": (len(tokens), width)}
    norms = dict.fromkeys(("output_norm.weight", "blk.0.attn_norm.weight", "blk.0.ffn_norm.weight"), (width,))
    for name, shape in (shapes | norms).items():
        writer.add_tensor(name, np.zeros(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_costs_cover_every_batch_size_and_the_draft(tmp_path: Path) -> None:
    path = tiny(tmp_path / "tiny.gguf", ["a", "b", "ab", "c"])
    with closing(LlamaCpp(path, path, 64, 1, 2)) as engine:
        cost = engine.measure_cost([1, 2], 8, 0.05)
    assert {b: len(curve.seconds) for b, curve in cost.curves.items()} == {1: 8, 2: 4}
    assert all(curve.n >= 5 and min(curve.seconds) > 0 for curve in cost.curves.values())
    assert cost.draft_s > 0
    with closing(LlamaCpp(path, n_ctx=64, threads=1)) as engine:
        assert engine.measure_cost([1], 1, 0.01).draft_s == 0.0


def test_another_vocabulary_is_refused_and_what_was_opened_is_closed(
    smollm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []

    class Noted(module.Model):
        def close(self) -> None:
            closed.append(self.path.name)
            super().close()

    monkeypatch.setattr(module, "Model", Noted)
    draft = tiny(tmp_path / "draft.gguf", ["a", "b", "ab", "c"])
    with pytest.raises(
        ModelError, match=r"smollm2-135m.gguf and draft draft.gguf .* \(49152 tokens against 4\); .*--draft lookup"
    ):
        LlamaCpp(smollm, draft, 64, 1)
    assert sorted(closed) == ["draft.gguf", "smollm2-135m.gguf"]


def test_a_vocabulary_of_the_same_size_is_compared_token_by_token(tmp_path: Path) -> None:
    a, b = tiny(tmp_path / "a.gguf", ["a", "b", "ab", "c"]), tiny(tmp_path / "b.gguf", ["a", "b", "ab", "d"])
    with pytest.raises(ModelError, match=r"\(token 3 is b'c' against b'd'\)"):
        LlamaCpp(a, b, 64, 1)
    with closing(LlamaCpp(a, a, 64)) as engine:  # the thread count is chosen here too
        assert engine.setup.threads in (1, len(os.sched_getaffinity(0)))
        assert engine.measure_cost([1], 2, 0.01).draft_s > 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_ctx": 65}, "context of 65 exceeds the 64 that tiny.gguf was trained for; lower --context"),
        ({"n_ctx": 0}, "context must be at least 1 but got 0"),
        ({"n_ctx": 8, "threads": 0}, "threads must be at least 1 but got 0"),
        ({"n_ctx": 8, "max_batch": 0}, "batch must be at least 1 but got 0"),
    ],
)
def test_settings_out_of_range_are_refused(tmp_path: Path, settings: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LlamaCpp(tiny(tmp_path / "tiny.gguf", ["a", "b", "ab", "c"]), **settings)


def test_a_closed_engine_says_so_instead_of_ending_the_process(tmp_path: Path) -> None:
    engine = LlamaCpp(tiny(tmp_path / "tiny.gguf", ["a", "b", "ab", "c"]), n_ctx=64, threads=1)
    request = engine.encode(Prompt(id="x", prompt="ab"), "w", 4, Sampling())
    engine.generate([request], NONE)
    engine.close()
    engine.close()
    with pytest.raises(EngineError, match="was closed"):
        engine.generate([request], NONE)
