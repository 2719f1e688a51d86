"""A llama.cpp model and its contexts, over the C functions that `abi` declares."""

import ctypes as c
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from draftgate.engines.llamacpp.abi import Batch, failure, forget_failure, library, library_version
from draftgate.errors import EngineError, ModelError

__all__ = ["Context", "Model"]


class _Closed:
    """Stands in for the library once a handle is freed: using that would end the process."""

    def __getattr__(self, name: str) -> NoReturn:
        raise EngineError("this engine was closed; make a new one")


class Model:
    """A loaded GGUF file and its vocabulary."""

    def __init__(self, path: Path) -> None:
        """Load `path` on the CPU.

        Raises:
            ModelError: missing, truncated or not a model that this build reads.
        """
        self._lib: Any = library()
        if not path.is_file():
            raise ModelError(f"{path}: no such file; pass a GGUF file or a name from 'draftgate models list'")
        params = self._lib.model_default_params()
        params.n_gpu_layers = 0
        forget_failure()
        self.path = path
        self._handle = self._lib.model_load_from_file(str(path).encode(), params)
        if not self._handle:
            raise ModelError(f"{path}: cannot be loaded: {failure()}; is the file whole? pull it again")
        self._vocab = self._lib.model_get_vocab(self._handle)
        self.n_vocab = int(self._lib.vocab_n_tokens(self._vocab))
        self.n_ctx_train = int(self._lib.model_n_ctx_train(self._handle))

    def close(self) -> None:
        """Free the model; its contexts must be closed before."""
        if self._handle:
            self._lib.model_free(self._handle)
            self._handle, self._lib = None, _Closed()

    @cached_property
    def description(self) -> str:
        """Architecture, size and quantisation in words."""
        buffer = c.create_string_buffer(256)
        self._lib.model_desc(self._handle, buffer, 256)
        return buffer.value.decode("utf-8", "replace")

    @cached_property
    def pieces(self) -> tuple[bytes, ...]:
        """Decoded bytes of every token, [n_vocab]; control tokens decode to nothing."""
        buffer = c.create_string_buffer(256)
        out = []
        for token in range(self.n_vocab):
            n = self._lib.token_to_piece(self._vocab, token, buffer, 256, 0, False)
            if n < 0:
                buffer = c.create_string_buffer(-n)
                n = self._lib.token_to_piece(self._vocab, token, buffer, -n, 0, False)
            out.append(buffer.raw[:n])
        return tuple(out)

    @cached_property
    def raw_pieces(self) -> tuple[bytes, ...]:
        """The vocabulary's own spelling of every token, [n_vocab]: what makes two vocabularies equal."""
        return tuple(self._lib.vocab_get_text(self._vocab, token) or b"" for token in range(self.n_vocab))

    @cached_property
    def control(self) -> dict[int, bytes]:
        """Spelling of the tokens that decode to nothing: they steer, and are no text."""
        return {i: self.raw_pieces[i] for i, piece in enumerate(self.pieces) if not piece}

    @cached_property
    def end_tokens(self) -> frozenset[int]:
        """Tokens that end generation."""
        return frozenset(t for t in range(self.n_vocab) if self._lib.vocab_is_eog(self._vocab, t))

    def tokenize(self, text: str, special: bool = True) -> list[int]:
        """Token ids of `text`; control tokens written in it are parsed when `special`."""
        raw = text.encode()
        room = len(raw) + 16
        out = (c.c_int32 * room)()
        n = self._lib.tokenize(self._vocab, raw, len(raw), out, room, True, special)
        if n < 0:
            raise EngineError(f"tokenizer needs {-n} tokens of room for {len(raw)} bytes")
        return out[:n]

    def chat(self, messages: Sequence[tuple[str, str]]) -> str:
        """A conversation of (role, content) in the model's own chat template, ready for the answer.

        Raises:
            ModelError: the model has no template, or llama.cpp does not know it.
        """
        template = self._lib.model_chat_template(self._handle, None)
        if template is None:
            raise ModelError(f"{self.path}: has no chat template; give 'prompt' instead of 'messages'")
        rows = (c.c_char_p * (2 * len(messages)))(*(part.encode() for message in messages for part in message))
        n, buffer = 0, c.create_string_buffer(4096)
        for _ in range(2):  # the first call may only tell how much room it takes
            n = self._lib.chat_apply_template(
                template, c.cast(rows, c.c_void_p), len(messages), True, buffer, len(buffer)
            )
            if 0 <= n <= len(buffer):
                return buffer.raw[:n].decode()
            buffer = c.create_string_buffer(max(n, 1))
        raise ModelError(
            f"{self.path}: llama.cpp does not know this chat template; give 'prompt' instead of 'messages'"
        )


class _Rows:
    """The batch that one decode takes, in memory of ours, so that a sequence's tokens are written in one go."""

    def __init__(self, size: int) -> None:
        self._token, self._pos, self._count, self._seq = np.zeros((4, size), np.int32)
        self._wanted = np.zeros(size, np.int8)
        self._count[:] = 1  # each token belongs to one sequence; the library reads its id through a pointer
        self._seq_at = self._seq.ctypes.data + self._seq.itemsize * np.arange(size, dtype=np.uintp)

        def at(array: NDArray[Any], kind: Any = c.c_int32) -> Any:
            return c.cast(array.ctypes.data, c.POINTER(kind))

        self.batch = Batch(
            token=at(self._token),
            pos=at(self._pos),
            n_seq_id=at(self._count),
            seq_id=at(self._seq_at, c.POINTER(c.c_int32)),
            logits=at(self._wanted, c.c_int8),
        )

    def fill(self, rows: Sequence[tuple[int, int, Sequence[int]]], last_only: bool) -> int:
        """Write (sequence, position, tokens) of each sequence; returns the number of tokens."""
        n = 0
        for sequence, start, tokens in rows:
            here = slice(n, n + len(tokens))
            self._token[here] = tokens
            self._pos[here] = np.arange(start, start + len(tokens))
            self._seq[here] = sequence
            self._wanted[here] = not last_only
            n = here.stop
            self._wanted[n - 1] = 1
        self.batch.n_tokens = n
        return n


class Context:
    """Key-value memory for some sequences, and decodes into it."""

    def __init__(self, model: Model, n_ctx: int, threads: int, n_seq: int = 1, n_batch: int = 512) -> None:
        """Make a context.

        Args:
            n_ctx: tokens of memory for each sequence.
            threads: CPU threads.
            n_seq: sequences.
            n_batch: most tokens in one decode.

        Raises:
            EngineError: the library refused, or reports other settings than asked for (its layout moved).
        """
        self._lib: Any = library()
        self._model = model  # keeps the weights alive
        n_batch = min(n_batch, n_ctx * n_seq)  # llama.cpp lowers it to this by itself
        params = self._lib.context_default_params()
        params.n_ctx, params.n_seq_max, params.n_batch, params.n_ubatch = n_ctx * n_seq, n_seq, n_batch, n_batch
        params.n_threads = params.n_threads_batch = threads
        forget_failure()
        self._handle = self._lib.init_from_model(model._handle, params)
        if not self._handle:
            raise EngineError(f"llama.cpp cannot make a context of {n_ctx} x {n_seq} tokens: {failure()}")
        self._self_test(n_ctx, n_batch, n_seq, threads)
        self.n_batch, self.n_vocab, self.n_ctx = n_batch, model.n_vocab, n_ctx
        self._memory = self._lib.get_memory(self._handle)
        self._rows = _Rows(n_batch)

    def _self_test(self, n_ctx: int, n_batch: int, n_seq: int, threads: int) -> None:
        want = (n_batch, n_batch, n_seq, threads, threads)
        names = ("n_batch", "n_ubatch", "n_seq_max", "n_threads", "n_threads_batch")
        seen = tuple(int(getattr(self._lib, name)(self._handle)) for name in names)
        if seen != want or self._lib.n_ctx_seq(self._handle) < n_ctx:
            self.close()
            raise EngineError(
                f"{library_version()}: context reports {dict(zip(names, seen, strict=True))} for {want}; "
                "its parameter struct is not laid out as expected: install the version that draftgate pins"
            )

    def set_threads(self, threads: int) -> None:
        """Change the CPU threads of the next decodes."""
        self._lib.set_n_threads(self._handle, threads, threads)

    def close(self) -> None:
        """Free the memory."""
        if self._handle:
            self._lib.free(self._handle)
            self._handle, self._lib = None, _Closed()

    def decode(self, rows: Sequence[tuple[int, int, Sequence[int]]], last_only: bool = False) -> NDArray[np.float32]:
        """Run the model on new tokens of some sequences.

        Args:
            rows: (sequence, position of its first new token, new tokens) for each sequence.
            last_only: give logits of each sequence's last token only.

        Returns:
            Logits [tokens or sequences, vocabulary] in the order of `rows`; a view that the next decode overwrites.

        Raises:
            EngineError: the library failed, for instance because the memory is full.
        """
        n = self._rows.fill(rows, last_only)
        forget_failure()
        if code := self._lib.decode(self._handle, self._rows.batch):
            raise EngineError(f"llama_decode returned {code} ({'memory full' if code == 1 else failure()})")
        shape = (len(rows) if last_only else n, self.n_vocab)
        return np.ctypeslib.as_array(self._lib.get_logits(self._handle), shape)

    def prefill(self, sequence: int, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Clear a sequence and decode a prompt in pieces of n_batch; logits [vocabulary] after its last token."""
        self.rollback(sequence, 0)
        *starts, last = range(0, len(tokens), self.n_batch)
        for start in starts:
            self.decode([(sequence, start, tokens[start : start + self.n_batch])], last_only=True)
        logits: NDArray[np.float32] = self.decode([(sequence, last, tokens[last:])], last_only=True)[0]
        return logits

    def rollback(self, sequence: int, position: int) -> None:
        """Forget what a sequence holds from `position` on."""
        if not self._lib.memory_seq_rm(self._memory, sequence, position, -1):
            raise EngineError(
                "this model's memory cannot be rolled back (recurrent or windowed); it cannot speculate here"
            )

    def copy(self, source: int, target: int) -> None:
        """Make sequence `target` hold what `source` holds."""
        self.rollback(target, 0)
        self._lib.memory_seq_cp(self._memory, source, target, -1, -1)
