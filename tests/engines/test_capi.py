import gc
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftgate.engines.llamacpp import capi
from draftgate.engines.llamacpp.abi import library
from draftgate.engines.llamacpp.capi import Context, Model
from draftgate.errors import EngineError, ModelError

TEXT = "def add(a, b):\n    return a + b\n"


@pytest.fixture(scope="module")
def model(smollm: Path) -> Iterator[Model]:
    with closing(Model(smollm)) as opened:
        yield opened


@pytest.fixture(scope="module")
def context(model: Model) -> Iterator[Context]:
    with closing(Context(model, 128, 1, n_seq=3, n_batch=16)) as opened:
        yield opened


class Other(SimpleNamespace):
    """The library with some functions replaced."""

    def __getattr__(self, name: str) -> Any:
        return getattr(library(), name)


@pytest.mark.parametrize(
    ("name", "value"), [("n_ubatch", 1), ("n_seq_max", 9), ("n_threads_batch", 3), ("n_ctx_seq", 10)]
)
def test_a_context_that_reports_other_settings_is_refused_and_freed(
    model: Model, monkeypatch: pytest.MonkeyPatch, name: str, value: int
) -> None:
    freed: list[object] = []
    other = Other(**{name: lambda handle: value}, free=lambda handle: freed.append(handle) or library().free(handle))
    monkeypatch.setattr(capi, "library", lambda real=library: other)
    with pytest.raises(EngineError, match="its parameter struct is not laid out as expected"):
        Context(model, 64, 1)
    assert len(freed) == 1


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"none\.gguf: no such file; .*draftgate models list"):
        Model(tmp_path / "none.gguf")


@pytest.mark.parametrize("size", [0, 3, 2000, 2_000_000])
def test_a_truncated_file(smollm: Path, tmp_path: Path, size: int) -> None:
    path = tmp_path / "part.gguf"
    with smollm.open("rb") as file:
        path.write_bytes(file.read(size))
    with pytest.raises(ModelError, match=r"part\.gguf: cannot be loaded: .+; is the file whole") as error:
        Model(path)
    assert "no reason" not in str(error.value)


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    path.write_bytes(b"PK\3\4" + bytes(1000))
    with pytest.raises(ModelError, match="cannot be loaded"):
        Model(path)


@settings(max_examples=60, deadline=None)
@given(text=st.text(st.characters(max_codepoint=0xFFFF, codec="utf-8"), max_size=40))
def test_text_survives_tokens(model: Model, text: str) -> None:
    """Of characters whose bytes the vocabulary has; this one lacks some, and llama.cpp drops those without a word."""
    known = bytes(sorted(p[0] for p in model.pieces if len(p) == 1))
    text = "".join(c for c in text if all(b in known for b in c.encode()))
    tokens = model.tokenize(text, special=False)
    assert b"".join(model.pieces[t] for t in tokens).decode() == text


def test_control_tokens_are_parsed_on_demand_and_decode_to_nothing(model: Model) -> None:
    (start,) = model.tokenize("<|im_start|>")
    assert model.pieces[start] == b""
    assert model.raw_pieces[start] == b"<|im_start|>"
    assert len(model.tokenize("<|im_start|>", special=False)) > 1
    assert model.tokenize("<|im_end|>")[0] in model.end_tokens
    assert model.tokenize("") == []


def test_vocabulary(model: Model) -> None:
    assert model.n_vocab == len(model.pieces) == len(model.raw_pieces) == 49152
    assert model.n_ctx_train >= 2048
    assert model.description.startswith("llama")
    assert 0 < len(model.end_tokens) < 10


def test_chat_follows_the_template_at_any_length(model: Model) -> None:
    turns = [("user" if i % 2 == 0 else "assistant", f"turn {i} é") for i in range(401)]
    for messages in (turns[:1], turns):
        text = model.chat(messages)
        assert text == "".join(f"<|im_start|>{r}\n{t}<|im_end|>\n" for r, t in messages) + "<|im_start|>assistant\n"


def test_a_model_without_a_template_or_with_an_unknown_one(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    for template, message in ((None, "has no chat template"), (b"{{ nonsense }}", "does not know this chat template")):
        monkeypatch.setattr(model, "_lib", Other(model_chat_template=lambda *_, t=template: t))
        with pytest.raises(ModelError, match=f"{message}; give 'prompt' instead of 'messages'"):
            model.chat([("user", "Hi")])


def test_logits_of_each_token_and_of_the_last(model: Model, context: Context) -> None:
    tokens = model.tokenize(TEXT)[:8]
    context.rollback(0, 0)
    every = context.decode([(0, 0, tokens)]).copy()
    context.rollback(0, 0)
    last = context.decode([(0, 0, tokens)], last_only=True).copy()
    assert every.shape == (8, model.n_vocab)
    assert last.shape == (1, model.n_vocab)
    np.testing.assert_allclose(last[0], every[-1], atol=1e-3)
    assert np.abs(every[0] - every[-1]).max() > 5


def test_a_prompt_longer_than_a_batch_is_decoded_in_pieces(model: Model, context: Context) -> None:
    tokens = model.tokenize(TEXT * 4)
    assert len(tokens) > 2 * context.n_batch
    logits = context.prefill(0, tokens).copy()
    context.prefill(1, tokens[:-1])
    np.testing.assert_allclose(logits, context.decode([(1, len(tokens) - 1, tokens[-1:])])[0], atol=0.5)
    assert logits.argmax() == context.prefill(0, tokens).argmax()


def test_rollback_forgets_what_came_after(model: Model, context: Context) -> None:
    tokens, other = model.tokenize(TEXT)[:8], model.tokenize("once upon a time")[:4]
    context.prefill(0, tokens[:4])
    want = context.decode([(0, 4, tokens[4:])]).copy()
    context.rollback(0, 4)
    context.decode([(0, 4, other)])
    context.rollback(0, 4)
    np.testing.assert_array_equal(context.decode([(0, 4, tokens[4:])]), want)


def test_sequences_are_separate_and_rows_keep_their_order(model: Model, context: Context) -> None:
    a, b = model.tokenize("The capital of France is")[:5], model.tokenize("x = [1, 2, 3]")[:5]
    alone = [context.prefill(0, tokens).copy() for tokens in (a, b)]
    for sequence in range(3):
        context.rollback(sequence, 0)
    for order in ([(2, a), (1, b)], [(1, b), (2, a)]):
        context.rollback(1, 0)
        context.rollback(2, 0)
        together = context.decode([(s, 0, tokens) for s, tokens in order], last_only=True)
        for row, (_, tokens) in zip(together, order, strict=True):
            np.testing.assert_allclose(row, alone[0 if tokens is a else 1], atol=1.0)
    assert np.abs(alone[0] - alone[1]).max() > 5


def test_a_copied_sequence_goes_on_like_the_first(model: Model, context: Context) -> None:
    tokens = model.tokenize(TEXT)[:8]
    context.prefill(0, tokens[:6])
    context.copy(0, 2)
    want = context.decode([(0, 6, tokens[6:])]).copy()
    context.rollback(0, 2)
    np.testing.assert_allclose(context.decode([(2, 6, tokens[6:])]), want, atol=1e-3)


def test_a_position_that_does_not_follow_is_an_engine_error(model: Model, context: Context) -> None:
    context.prefill(0, [1, 2, 3])
    with pytest.raises(EngineError, match=r"llama_decode returned -1 \(.*position"):
        context.decode([(0, 7, [1])])
    assert np.isfinite(context.decode([(0, 3, [1])])).all()


def test_a_full_memory_is_an_engine_error(model: Model) -> None:
    with closing(Context(model, 256, 1)) as small:
        small.prefill(0, [5] * 256)
        with pytest.raises(EngineError, match="memory full"):
            small.decode([(0, 256, [5])])
        small.rollback(0, 10)
        assert np.isfinite(small.decode([(0, 10, [5])])).all()


def test_threads_can_change(context: Context, model: Model) -> None:
    context.set_threads(1)
    assert library().n_threads(context._handle) == 1
    with pytest.raises(EngineError, match="cannot be rolled back"):
        Context.rollback(SimpleNamespace(_lib=Other(memory_seq_rm=lambda *_: False), _memory=None), 0, 0)  # type: ignore[arg-type]


def allocated_kib() -> int:
    """Resident memory without the pages of mapped files, which the kernel brings in and drops as it likes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1])
    raise AssertionError("no RssAnon")


def test_closing_gives_the_memory_back(model: Model) -> None:
    """A context of 1024 tokens holds about 23 MiB of keys and values: twenty that leak would hold 460.

    The heap may keep some of it for later, so less than half of that counts as given back.
    """

    def once() -> None:
        with closing(Context(model, 1024, 1)) as opened:
            opened.prefill(0, [1] * 64)

    for _ in range(3):
        once()
    gc.collect()
    before = allocated_kib()
    for _ in range(20):
        once()
    assert allocated_kib() - before < 200 * 1024


def test_a_closed_context_or_model_says_so(smollm: Path) -> None:
    model = Model(smollm)
    context = Context(model, 64, 1)
    for opened in (context, model):
        opened.close()
        opened.close()
    for use in (lambda: context.decode([(0, 0, [1])]), lambda: context.rollback(0, 0), lambda: model.tokenize("a")):
        with pytest.raises(EngineError, match="was closed; make a new one"):
            use()
