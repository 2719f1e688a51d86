"""The bytes of a tokenizer's tokens, which token classes are read from."""

from typing import Any

import xgrammar

__all__ = ["token_pieces"]


def token_pieces(tokenizer: Any, size: int) -> list[bytes]:
    """Decoded bytes of every token [size], b"" for control tokens and those beyond the tokenizer's own.

    xgrammar, which vLLM depends on, knows the byte-level, byte-fallback and plain kinds of vocabulary.

    Args:
        tokenizer: a Hugging Face tokenizer.
        size: tokens of the model, which may pad its vocabulary.
    """
    pieces = list(xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=size).decoded_vocab)
    added = getattr(tokenizer, "added_tokens_decoder", {})
    for token in {*tokenizer.all_special_ids, *(i for i, t in added.items() if t.special)}:
        if token < size:
            pieces[token] = b""
    return pieces
