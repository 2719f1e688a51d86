from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from draftgate.testing import hf

PROMPT = "def total(items: list[int], start: int = 0) -> int:\n    for"

TEXTS = {  # as llama.cpp reads the same file
    "def f(x):\n    return x[1:20]\n": [1604, 275, 24, 104, 727, 472, 1003, 1792, 75, 33, 42, 34, 32, 77, 198],
    "1)\n    50.5": [33, 25, 2367, 37, 32, 30, 37],
    " naïve café 日本": [15486, 46494, 37366, 17097, 241, 115, 40993],
    "<|im_start|>user\nhi<|im_end|>": [1, 4093, 198, 6004, 2],
}


def logits_of(folder: Path, tokens: list[int]) -> Any:
    """Logits [len(tokens), V]."""
    with torch.no_grad():
        return AutoModelForCausalLM.from_pretrained(folder)(torch.tensor([tokens])).logits[0]


def continued(folder: Path, tokens: list[int], n: int) -> list[int]:
    """Greedy continuation."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    out = model.generate(torch.tensor([tokens]), max_new_tokens=n, do_sample=False, pad_token_id=0, eos_token_id=None)
    return out[0, len(tokens) :].tolist()


def test_smollm2_continues_code_as_the_gguf_does(smollm2_dir: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(smollm2_dir)
    prompt = tokenizer.encode("def add(a, b):\n    return a +")
    assert tokenizer.decode(continued(smollm2_dir, prompt, 4)).startswith(" b\n")


@pytest.mark.parametrize("name", ["smollm2_dir", "tiny_dir"])
def test_tokenizer_reads_text_as_llama_cpp_does(name: str, request: pytest.FixtureRequest) -> None:
    tokenizer = AutoTokenizer.from_pretrained(request.getfixturevalue(name))
    for text, tokens in TEXTS.items():
        assert tokenizer.encode(text) == tokens
        assert tokenizer.decode(tokens) == text


def test_chat_template_is_the_models_own(smollm2_dir: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(smollm2_dir)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert text.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")


def test_tiny_spreads_probability_over_a_few_tokens(tiny_dir: Path) -> None:
    prompt = AutoTokenizer.from_pretrained(tiny_dir).encode(PROMPT)
    text = continued(tiny_dir, prompt, 60)
    probs = logits_of(tiny_dir, prompt + text)[len(prompt) :].softmax(-1)
    top = probs.sort(-1, descending=True).values.mean(0)
    assert 0.3 < top[0] < 0.8
    assert top[1] > 0.08
    assert top[:20].sum() > 0.8
    pairs = list(pairwise(text))
    assert len(set(pairs)) < 0.7 * len(pairs)  # it repeats itself


def test_noise_makes_a_draft_that_agrees_often(tiny_dir: Path, tiny_draft_dir: Path) -> None:
    prompt = AutoTokenizer.from_pretrained(tiny_dir).encode(PROMPT)
    text = prompt + continued(tiny_dir, prompt, 100)
    ours, theirs = (logits_of(folder, text)[len(prompt) :].argmax(-1) for folder in (tiny_dir, tiny_draft_dir))
    assert 0.5 < (ours == theirs).float().mean() < 0.95


def test_toy_is_deterministic_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    one, two = hf.toy_hf(tmp_path / "a"), hf.toy_hf(tmp_path / "b")
    assert (one / "model.safetensors").read_bytes() == (two / "model.safetensors").read_bytes()
    other = hf.toy_hf(tmp_path / "c", seed=1)
    assert (one / "model.safetensors").read_bytes() != (other / "model.safetensors").read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b", "c"}


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        hf.tiny_hf(tmp_path / "nowhere.gguf", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
