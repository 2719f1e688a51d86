"""Small models as Hugging Face directories, for engines that read those: SmolLM2 from its GGUF, and tiny random ones.

Made once, without a network. A directory is written under another name and renamed, so an interrupted run leaves none.
Needs torch, transformers and gguf, all in the environment that tools/vllm_env.py builds.
"""

import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from draftgate.errors import require

__all__ = ["smollm2_hf", "tiny_hf", "toy_hf"]

_EXTRA = "vllm"


def smollm2_hf(gguf: Path, out: Path) -> Path:
    """SmolLM2 from a GGUF file: its weights in single precision, its tokenizer and its chat template.

    Args:
        gguf: a file of the SmolLM2 family.
        out: the directory, which is returned; nothing is done when it exists.
    """

    def make(folder: Path) -> None:
        torch, transformers = require("torch", _EXTRA), require("transformers", _EXTRA)
        read = transformers.LlamaForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
        del read.config.quantization_config  # a model that has one cannot be saved, nor one that was read from a GGUF
        model = transformers.LlamaForCausalLM(read.config)
        model.load_state_dict(read.state_dict())
        model.save_pretrained(folder)
        _tokenizer(gguf).save_pretrained(folder)

    return _once(out, make)


def tiny_hf(gguf: Path, out: Path, seed: int = 0, noise: float = 0.0) -> Path:
    """A random two-layer Llama with SmolLM2's tokenizer that behaves a little like a trained one; 26 MB.

    It writes the tokens of a piece of Python. A few of them share the probability at each place, so thresholds have
    something to decide, and greedy text repeats itself, so n-gram drafts have something to find.

    Args:
        gguf: a file of the SmolLM2 family, for its tokenizer.
        out: the directory, which is returned; nothing is done when it exists.
        seed: models of one seed are equal up to `noise`.
        noise: deviation of what is added to every weight, relative to that of the weights: .1 makes a draft model that
            agrees with the one without noise on some three tokens of four.
    """

    def make(folder: Path) -> None:
        torch, tokenizer = require("torch", _EXTRA), _tokenizer(gguf)
        model = _random_llama(len(tokenizer), 6.5, seed, noise)
        loud = torch.zeros(len(tokenizer), 1).index_fill_(0, torch.tensor(tokenizer.encode(_CODE)), 1.0)
        with torch.no_grad():
            model.lm_head.weight.mul_(loud.clamp(min=0.02))
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    return _once(out, make)


def toy_hf(out: Path, seed: int = 0, noise: float = 0.0, vocabulary: int = 32) -> Path:
    """A random two-layer Llama over a few tokens, for counting what comes out; no tokenizer: prompts are token ids.

    Args:
        out: the directory, which is returned; nothing is done when it exists.
        seed: as in `tiny_hf`.
        noise: as in `tiny_hf`.
        vocabulary: tokens.
    """
    return _once(out, lambda folder: _random_llama(vocabulary, 1.5, seed, noise).save_pretrained(folder))


_CODE = '''
def total(items: list[int], start: int = 0) -> int:
    """Sum of all items, from `start`."""
    for item in items:
        if item is None or item < 0:
            raise ValueError("items must not be negative")  # says why
        start += item * 2
    return {"total": start, "count": len(items)}["total"]
'''


def _random_llama(vocabulary: int, spread: float, seed: int, noise: float) -> Any:
    """`spread` is the deviation of the logits: enough over many tokens and a few dominate, as in trained models."""
    torch, transformers = require("torch", _EXTRA), require("transformers", _EXTRA)
    config = transformers.LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,  # of 32 numbers each: vLLM's CPU attention has no kernel for 16
        num_key_value_heads=1,
        max_position_embeddings=2048,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = transformers.LlamaForCausalLM(config)
    weights = [(name, weight) for name, weight in model.named_parameters() if weight.ndim == 2]
    random, more = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for name, weight in weights:
            scale = _SCALES.get(name.split(".")[-2], 1.0) / math.sqrt(weight.shape[1])
            scale *= spread if name.startswith("lm_head") else 1.0
            weight.normal_(0.0, scale, generator=random)
            weight.add_(torch.randn(weight.shape, generator=more), alpha=noise * scale)
    return model


_SCALES = {
    "embed_tokens": 8.0,  # 1 for each number: what the last token says outweighs
    "o_proj": 0.5,  # what earlier ones say, so that text comes back to where it was
}


def _tokenizer(gguf: Path) -> Any:
    """SmolLM2's tokenizer. transformers drops from a GGUF that numbers are split into digits before anything else."""
    transformers, tokenizers = require("transformers", _EXTRA), require("tokenizers", _EXTRA)
    tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    split = tokenizers.pre_tokenizers
    tokenizer.backend_tokenizer.pre_tokenizer = split.Sequence(
        [split.Digits(individual_digits=True), split.ByteLevel(add_prefix_space=False)]
    )
    return tokenizer


def _once(out: Path, make: Callable[[Path], None]) -> Path:
    """Make a directory, whole or not at all, unless it is there."""
    if out.exists():
        return out
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as folder:
        made = Path(folder) / out.name
        made.mkdir()
        make(made)
        try:
            made.rename(out)
        except OSError:
            if not out.exists():  # else another process was faster
                raise
    return out
