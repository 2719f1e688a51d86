import importlib.util

import pytest

from draftgate.engines.vllm.config import METHODS, checked, for_draft, require_same_vocabulary
from draftgate.errors import ConfigError, MissingExtraError

NGRAM = {"method": "ngram", "num_speculative_tokens": 5}
MODEL = {"method": "draft_model", "model": "small", "num_speculative_tokens": 5}


def test_words_become_configurations(tmp_path):
    assert for_draft("ngram", 7, 8) == {
        **NGRAM,
        "num_speculative_tokens": 7,
        "prompt_lookup_max": 4,
        "prompt_lookup_min": 2,
    }
    schedule = {"num_speculative_tokens": 3, "num_speculative_tokens_per_batch_size": [[1, 8, 3]]}
    assert for_draft(str(tmp_path), 3, 8) == {"method": "draft_model", "model": str(tmp_path), **schedule}
    assert for_draft("eagle3:org/head", 3, 8) == {"method": "eagle3", "model": "org/head", **schedule}
    assert for_draft("mtp", 3, 8) == {"method": "mtp", **schedule}


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("ngrams", "did you mean 'ngram'"),
        ("ngram:folder", "'model' does nothing under method 'ngram'"),
        ("eagle", "method 'eagle' needs 'model'"),
        ("draft_model", "method 'draft_model' needs 'model'"),
    ],
)
def test_words_that_make_no_configuration(word, says):
    with pytest.raises(ConfigError, match=says):
        for_draft(word, 3, 8)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({}, "unknown method 'None'; valid: draft_model, eagle"),
        ({"method": "sufix"}, "did you mean 'suffix'"),
        ({"method": "ngram"}, "needs 'num_speculative_tokens'"),
        (
            NGRAM | {"num_speculative_tokens": 0},
            "num_speculative_tokens: must be a whole number of at least 1 but got 0",
        ),
        (NGRAM | {"num_speculative_tokens": True}, "but got True"),
        (NGRAM | {"num_spec_tokens": 3}, "unknown field 'num_spec_tokens'; did you mean 'num_speculative_tokens'"),
        (NGRAM | {"draft_sample_method": "greedy"}, "does nothing under method 'ngram'"),
        (MODEL | {"prompt_lookup_max": 3}, "does nothing under method 'draft_model'"),
        (NGRAM | {"prompt_lookup_max": 0}, "prompt_lookup_max: must be a whole number of at least 1"),
        (NGRAM | {"prompt_lookup_max": 2, "prompt_lookup_min": 3}, "prompt_lookup_min 3 is greater"),
        (MODEL | {"draft_sample_method": "gredy"}, "did you mean 'greedy'"),
        (NGRAM | {"rejection_sample_method": "typical"}, "valid: block, standard, synthetic"),
        (NGRAM | {"num_speculative_tokens_per_batch_size": []}, "must be a list"),
        (NGRAM | {"num_speculative_tokens_per_batch_size": [[1, 4]]}, r"must be a list of \[first, last, k\] rows"),
        (NGRAM | {"num_speculative_tokens_per_batch_size": [[2, 4, 1]]}, "must start at 1"),
        (NGRAM | {"num_speculative_tokens_per_batch_size": [[1, 4, 1], [4, 8, 0]]}, "rise without overlap"),
        (NGRAM | {"num_speculative_tokens_per_batch_size": [[1, 4, 6]]}, "greater than num_speculative_tokens 5"),
    ],
)
def test_what_is_refused(config, says):
    with pytest.raises(ConfigError, match=says):
        checked(config)


def test_what_is_kept():
    assert checked(NGRAM | {"prompt_lookup_min": 3})["prompt_lookup_max"] == 3  # one of the two stands for both
    schedule = [[1, 4, 5], [5, 8, 0]]
    assert checked(MODEL | {"num_speculative_tokens_per_batch_size": schedule})["model"] == "small"


def test_suffix_needs_its_package(monkeypatch):
    config = {"method": "suffix", "num_speculative_tokens": 24}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="arctic-inference"):
        checked(config)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    assert checked(config) == config


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.shares_tokenizer])
def test_a_draft_without_a_tokenizer_of_its_own_is_not_compared(name):
    require_same_vocabulary("nowhere", {"method": name, "model": "nowhere"})


def test_vocabularies_may_differ_where_vllm_was_told_so():
    require_same_vocabulary("nowhere", MODEL | {"use_heterogeneous_vocab": True})
