"""What `config.py` knows of vLLM, against vLLM itself; what needs no vLLM is in tests/engines/test_vllm_config.py."""

import json
import shutil
from dataclasses import fields

import pytest

pytest.importorskip("vllm")

from vllm.config.speculative import SpeculativeConfig

from draftgate.engines.vllm.config import _EVERY, METHODS, for_draft, require_same_vocabulary
from draftgate.errors import ModelError

KNOWN = {field.name for field in fields(SpeculativeConfig)}


def test_every_field_is_one_of_vllms():
    for method in METHODS.values():
        assert {*_EVERY, *method.keys} <= KNOWN, method.name


@pytest.mark.parametrize("values", [{"prompt_lookup_max": 4, "prompt_lookup_min": 2}, {"prompt_lookup_max": 3}])
def test_vllm_takes_the_lookup_range_as_we_complete_it(values):
    from draftgate.engines.vllm.config import checked

    config = checked({"method": "ngram", "num_speculative_tokens": 3} | values)
    theirs = SpeculativeConfig(method="ngram", num_speculative_tokens=3, **values)
    assert (theirs.prompt_lookup_max, theirs.prompt_lookup_min) == (
        config["prompt_lookup_max"],
        config["prompt_lookup_min"],
    )


def test_a_draft_of_the_same_family_fits(tiny_dir, tiny_draft_dir):
    require_same_vocabulary(str(tiny_dir), for_draft(str(tiny_draft_dir), 3, 8))


def test_a_draft_with_another_vocabulary_is_refused_before_anything_is_loaded(tiny_dir, tmp_path):
    other = shutil.copytree(tiny_dir, tmp_path / "other")
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(
        ModelError, match=r"different vocabularies \(49152 tokens against 49152; token \d+ is 'a' against 'b'"
    ):
        require_same_vocabulary(str(tiny_dir), for_draft(str(other), 3, 8))


def test_a_draft_whose_tokenizer_cannot_be_read_is_refused(tiny_dir, toy_dir):
    with pytest.raises(ModelError, match="its tokenizer cannot be read"):
        require_same_vocabulary(str(tiny_dir), for_draft(str(toy_dir), 3, 8))
