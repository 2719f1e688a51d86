from collections.abc import Sequence
from dataclasses import asdict, replace

import pytest

from draftgate.engines.base import Completion, Request
from draftgate.errors import MissingExtraError
from draftgate.experiment import judging
from draftgate.experiment.arms import BASELINE, Arm
from draftgate.experiment.compare import decide
from draftgate.experiment.judging import GateSettings, gated, make_judge, quality_figures, task_of, workload_kind
from draftgate.experiment.live import Block
from draftgate.policy.length import Fixed
from draftgate.policy.policy import Policy
from draftgate.quality.gate import Gate, Quality
from draftgate.workload.packs import load
from draftgate.workload.prompt import Message, Prompt, Workload

LOSSY = Arm(Policy("lossy", "threshold", 0.0, length=Fixed(3)), "given")
EXACT = Arm(Policy("exact", length=Fixed(3)), "lossless")
GATE = Gate(None)


def blocks(make_run, pairs: Sequence[tuple[str | None, str | None]], arm: str = "lossy") -> list[Block]:
    """Blocks of (status of none, status of the arm), in which the arm is three times as fast."""
    return [
        Block(f"p{i}", 0, 1.0, (make_run("none", 1.0 + i % 3 / 50, status=a), make_run(arm, 0.3, status=b)))
        for i, (a, b) in enumerate(pairs)
    ]


def completion(text: str, finish: str = "stop", prompt: str = "p") -> Completion:
    return Completion(Request(prompt, (1,), 9), (1, 2), text, finish, 0.1, 0.1, ())


@pytest.mark.parametrize(
    ("pack", "kind"),
    [("chat", "chat"), ("code-edit", "code"), ("json-records", "structured"), ("tool-calls", "structured")],
)
def test_the_kind_of_a_workload_sets_its_floor(pack: str, kind: str) -> None:
    workload = load(pack)
    assert workload_kind(workload) == kind
    floor = {"chat": None, "code": 0.95, "structured": 0.98}[kind]
    assert GateSettings().gate(workload, 0.05, 3) == Gate(floor, 0.05, 0.05, 3)
    assert GateSettings(floor=0.5).gate(workload, 0.05, 3).floor == 0.5


def test_raw_text_is_continued_and_a_conversation_answered() -> None:
    assert task_of(Prompt("p", prompt="def f():", language="python")).prefix == "def f():"
    assert task_of(Prompt("p", messages=(Message("user", "hi"),))).prefix == ""


def test_outputs_are_judged_by_what_the_prompt_asks() -> None:
    workload = Workload(
        "w",
        (
            Prompt("code", prompt="def f(x):\n", language="python"),
            Prompt("json", messages=(Message("user", "?"),), language="json"),
            Prompt("chat", messages=(Message("user", "?"),)),
        ),
    )
    judge = make_judge(workload, GateSettings(), print)
    assert judge(completion("    return x\n", prompt="code")) == "valid"
    assert judge(completion("    return x +* 2\n", prompt="code")) == "invalid"
    assert judge(completion('{"a": [1, 2', "length", "json")) == "truncated"
    assert judge(completion('{"a": [1, 2', "stop", "json")) == "invalid"
    assert judge(completion("hello", prompt="chat")) is None


def test_without_the_extra_nothing_is_judged_and_the_user_hears_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise MissingExtraError("install 'draftgate[quality]'")

    monkeypatch.setattr(judging, "judge", missing)
    said: list[str] = []
    judge = make_judge(Workload("w", (Prompt("p", prompt="x", language="python"),)), GateSettings(), said.append)
    assert judge(completion("x")) is None
    assert said == ["w: outputs are not judged: install 'draftgate[quality]'"]


def test_tests_are_run_in_the_sandbox_when_asked_for() -> None:
    prompt = Prompt("p", prompt="def f(x):\n", language="python", tests="assert f(1) == 2\n")
    workload = Workload("w", (prompt,))
    right, wrong = completion("    return x + 1\n"), completion("    return x\n")
    judge = make_judge(workload, GateSettings(run_tests=True), print)
    assert (judge(right), judge(wrong)) == ("valid", "invalid")
    judge = make_judge(workload, GateSettings(), print)
    assert (judge(right), judge(wrong)) == ("valid", "valid")


@pytest.mark.parametrize(
    ("none", "arm", "difference"),
    [
        ("valid", "valid", 0),
        ("valid", "invalid", -1),
        ("valid", "truncated", -1),  # it ran on where the other finished in the same room
        ("truncated", "truncated", 0),
        ("truncated", "invalid", -1),
        ("invalid", "truncated", 1),
        ("truncated", "valid", 1),
        ("invalid", "invalid", 0),
    ],
)
def test_what_a_pair_says(make_run, none: str, arm: str, difference: float) -> None:
    result = gated(LOSSY, blocks(make_run, [(none, arm)] * 5), GATE)
    assert result is not None
    assert result.difference.estimate == difference


def test_pairs_that_were_not_judged_say_nothing(make_run) -> None:
    assert gated(LOSSY, blocks(make_run, [(None, "valid"), ("valid", None)]), GATE) is None
    assert gated(BASELINE, blocks(make_run, [("valid", "valid")]), GATE) is None


def test_figures_count_only_tokens_of_outputs_that_are_not_broken(make_run) -> None:
    figures = quality_figures(
        LOSSY, blocks(make_run, [("valid", "valid"), ("valid", "truncated"), ("valid", "invalid")]), GATE
    )
    assert figures["valid"]["estimate"] == pytest.approx(2 / 3)
    assert figures["valid"]["low"] < 2 / 3 < figures["valid"]["high"]
    assert figures["truncated"] == 1
    assert figures["goodput_tok_s"] == pytest.approx(2 * 2 / 0.9)
    assert figures["quality"]["verdict"] == "inconclusive"


def test_figures_of_what_was_not_judged_are_missing(make_run) -> None:
    figures = quality_figures(LOSSY, blocks(make_run, [(None, None)]), GATE)
    assert figures == {"valid": None, "truncated": 0, "goodput_tok_s": None, "quality": None}


def decided(rows: list[Block], arm: Arm, allow_lossy: bool = False) -> str:
    return decide([BASELINE, arm], rows, 0.05, allow_lossy, GATE).arm.name


def test_an_arm_that_breaks_outputs_is_never_recommended_however_fast(make_run) -> None:
    broken = blocks(make_run, [("valid", "invalid")] * 40)
    assert decided(broken, LOSSY) == "none"
    assert decided(broken, LOSSY, allow_lossy=True) == "none"
    assert decided(blocks(make_run, [("valid", "invalid")] * 40, "exact"), EXACT) == "none"


def test_a_lossy_arm_is_recommended_once_its_quality_is_proven(make_run) -> None:
    assert decided(blocks(make_run, [("valid", "valid")] * 200), LOSSY) == "lossy"
    few = blocks(make_run, [("valid", "valid")] * 30)
    assert gated(LOSSY, few, GATE).verdict is Quality.INCONCLUSIVE  # type: ignore[union-attr]
    assert decided(few, LOSSY) == "none"
    assert decided(few, LOSSY, allow_lossy=True) == "lossy"


def test_a_lossless_arm_needs_no_proof(make_run) -> None:
    assert decided(blocks(make_run, [("valid", "valid")] * 20, "exact"), EXACT) == "exact"
    assert decided(blocks(make_run, [(None, None)] * 20, "exact"), EXACT) == "exact"


def test_a_run_keeps_its_status(make_run) -> None:
    (block,) = blocks(make_run, [("valid", "truncated")])
    assert Block.from_mapping(asdict(block)) == block
    assert replace(block.runs[1], status=None) != block.runs[1]
