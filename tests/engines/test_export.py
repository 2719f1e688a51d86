import json
import shlex
import subprocess
import sys

import pytest
import xllamacpp

from draftgate.cost.steps import Curve, StepCost
from draftgate.engines.export import EXPORTERS, Exported, Measured
from draftgate.errors import ConfigError
from draftgate.policy.length import Calibration, Cut, Fixed, Goodput
from draftgate.policy.policy import NONE, Policy
from draftgate.policy.rules import RULES

GOODPUT = Goodput(4, Calibration({"*": ((0.0,), (0.5,))}), {1: (1.0,) * 5}, {1: 1.0})
CASES = [
    (NONE, "lookup", "--spec-type none"),
    (
        Policy("p", length=Fixed(5)),
        "lookup",
        "--spec-type ngram-simple --spec-ngram-simple-size-n 2 --spec-ngram-simple-size-m 5",
    ),
    (
        Policy("p", length=Cut(5, 2.5)),
        "lookup",
        "--spec-type ngram-simple --spec-ngram-simple-size-n 3 --spec-ngram-simple-size-m 5",
    ),
    (
        Policy("p", length=Cut(7, 0.0)),
        "lookup",
        "--spec-type ngram-simple --spec-ngram-simple-size-n 1 --spec-ngram-simple-size-m 7",
    ),
    (
        Policy("p", "lossless", length=Fixed(3)),
        "my draft.gguf",
        "--spec-type draft-simple --spec-draft-model 'my draft.gguf' --spec-draft-n-max 3",
    ),
    (
        Policy("p", length=Cut(8, 0.75)),
        "d.gguf",
        "--spec-type draft-simple --spec-draft-model d.gguf --spec-draft-n-max 8 --spec-draft-p-min 0.75",
    ),
    (
        Policy("p", "lossless", length=Fixed(3), draft_temperature=0.5),
        "d.gguf",
        "--spec-type draft-simple --spec-draft-model d.gguf --spec-draft-n-max 3 --spec-draft-sampling probabilistic",
    ),
    (Policy("p", length=GOODPUT), "d.gguf", "--spec-type draft-simple --spec-draft-model d.gguf --spec-draft-n-max 4"),
]

# llama.cpp's own parser ends the process on a flag that it does not know, so it runs in another one. The map that it
# fills is libstdc++'s: a comparison object, then the header node that an empty map points back to.
PARSE = """
import ctypes, sys
import xllamacpp.xllamacpp as shared
parse = ctypes.CDLL(shared.__file__)[sys.argv[1]]
parse.restype = ctypes.c_bool
parse.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_char_p), ctypes.c_int, ctypes.c_void_p]
words = [b"llama-server", *(word.encode() for word in sys.argv[3:])]
found = (ctypes.c_uint64 * 6)()
found[3] = found[4] = ctypes.addressof(found) + 8
assert parse(len(words), (ctypes.c_char_p * (len(words) + 1))(*words, None), int(sys.argv[2]), ctypes.addressof(found))
print(found[5])
"""
MAP_FUNCTION = "_Z20common_params_to_mapiPPc13llama_exampleRSt3mapI10common_argSsSt4lessIS3_ESaISt4pairIKS3_SsEEE"
SERVER = 12  # LLAMA_EXAMPLE_SERVER: '--slots', a flag of the server only, is known there


def parsed(*words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", PARSE, MAP_FUNCTION, str(SERVER), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def exported(policy: Policy, draft: str) -> Exported:
    return EXPORTERS["llamacpp"](policy, draft, None)


@pytest.mark.parametrize(("policy", "draft", "text"), CASES)
def test_flags(policy: Policy, draft: str, text: str) -> None:
    assert exported(policy, draft).text == text


def test_the_pinned_build_knows_every_flag() -> None:
    """All cases in one call of its parser: it counts the distinct flags it was given."""
    words = [shlex.split(text) for _, _, text in CASES]
    distinct = {word for case in words for word in case if word.startswith("--")}
    done = parsed(*(word for case in words for word in case))
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == len(distinct)


def test_the_parser_used_here_refuses_other_flags() -> None:
    done = parsed("--spec-typo", "none")
    assert done.returncode != 0
    assert "invalid argument: --spec-typo" in done.stderr
    assert parsed("--slots").returncode == 0


def test_the_pinned_build_knows_every_kind_of_draft_and_sampling() -> None:
    kinds = {name.removeprefix("COMMON_SPECULATIVE_TYPE_").lower() for name in dir(xllamacpp.common_speculative_type)}
    for _, _, text in CASES:
        assert shlex.split(text)[1].replace("-", "_") in kinds
    assert hasattr(xllamacpp.CommonParamsSpeculativeDraft, "probabilistic")


@pytest.mark.parametrize("rule", [rule.name for rule in RULES.values() if not rule.lossless])
def test_a_lossy_policy_cannot_be_kept(rule: str) -> None:
    policy = Policy("mine", rule, 0.5 if RULES[rule].uses_tau else None)
    with pytest.raises(ConfigError, match=f"policy 'mine': .* rule '{rule}' cannot be exported"):
        exported(policy, "lookup")


def test_notes_say_what_differs() -> None:
    assert exported(NONE, "lookup").notes == ()
    assert exported(Policy("p", length=Fixed(3)), "d.gguf").notes == ()
    assert "shortest match" in exported(Policy("p", length=Fixed(3)), "lookup").notes[0]
    assert "number of ways" in exported(Policy("p", length=Cut(3, 2.0)), "lookup").notes[0]
    assert "up to 4 tokens" in exported(Policy("p", length=GOODPUT), "d.gguf").notes[0]
    drawn = Policy("p", "lossless", length=Fixed(3), draft_temperature=0.5)
    assert "temperature and top-p cannot be set" in exported(drawn, "d.gguf").notes[0]


def to_vllm(policy: Policy, draft: str = "lookup", measured: Measured | None = None) -> tuple[dict[str, object], str]:
    exported = EXPORTERS["vllm"](policy, draft, measured)
    return json.loads(exported.text or "{}"), " ".join(exported.notes)


def test_vllm_gets_lookup_as_ngram_and_a_path_as_a_draft_model() -> None:
    config, notes = to_vllm(Policy("p", length=Fixed(5)))
    assert (config["method"], config["num_speculative_tokens"]) == ("ngram", 5)
    assert "no schedule" in notes
    config, _ = to_vllm(Policy("p", length=Fixed(2)), "models/draft")
    assert config == {"method": "draft_model", "model": "models/draft", "num_speculative_tokens": 2}


def test_vllm_gets_a_schedule_from_what_was_measured() -> None:
    curves = {b: Curve(b, tuple(1 + 0.1 * b * m for m in range(1, 5)), (0.0,) * 4, 9) for b in (1, 16)}
    measured = Measured(StepCost(curves), [0.5, 0.4, 0.3], 1.0)
    config, notes = to_vllm(Policy("p", length=Fixed(3)), measured=measured)
    assert config["num_speculative_tokens_per_batch_size"] == [[1, 15, 3], [16, 16, 0]]
    assert "measured up to batch 16" in notes
    config, notes = to_vllm(Policy("p", length=Fixed(3)), measured=Measured(StepCost(curves), [0.01], 0.1))
    assert config == {}
    assert "no draft length pays" in notes


def test_vllm_is_told_what_it_cannot_do_by_itself() -> None:
    assert "needs draftgate's plugin" in to_vllm(Policy("p", "threshold", 0.2, length=Fixed(3)))[1]
    config, notes = to_vllm(Policy("p", length=Cut(7, 3.5)))
    assert config["prompt_lookup_min"] == 4
    assert "no evidence" in notes
    assert to_vllm(NONE) == ({}, "no speculation: start vLLM without --speculative-config")
