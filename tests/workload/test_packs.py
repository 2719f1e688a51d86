import re
from itertools import combinations
from pathlib import Path

import pytest

from draftgate.errors import WorkloadError
from draftgate.experiment.judging import task_of
from draftgate.quality.judge import judge
from draftgate.quality.judgement import Status
from draftgate.workload import load, pack_names
from draftgate.workload.prompt import Prompt

PACKS = pack_names()


def body(prompt: Prompt) -> str:
    return prompt.prompt or "\n".join(message.content for message in prompt.messages or ())


@pytest.mark.parametrize("name", PACKS)
def test_pack_is_complete(name: str) -> None:
    workload = load(name)
    assert workload.name == name
    assert len(workload.prompts) == 36
    for prompt in workload.prompts:
        assert prompt.check is not None
        assert (prompt.language is None) == (name == "chat")
        assert 64 <= (prompt.max_tokens or 0) <= 96


@pytest.mark.parametrize("name", PACKS)
def test_no_prompt_is_another_with_a_word_swapped(name: str) -> None:
    words = {prompt.id: set(re.findall(r"\w+", body(prompt))) for prompt in load(name).prompts}
    for (first, mine), (second, other) in combinations(words.items(), 2):
        assert len(mine & other) < 0.8 * len(mine | other), (first, second)


@pytest.mark.parametrize("name", PACKS)
def test_conversations_end_with_the_user(name: str) -> None:
    for prompt in load(name).prompts:
        assert prompt.messages is None or prompt.messages[-1].role == "user"


@pytest.mark.parametrize("name", ["json-records", "tool-calls"])
def test_shown_answers_pass_the_check(name: str) -> None:
    """The few-shot answers in a prompt are what the check asks of the output."""
    for prompt in load(name).prompts:
        answers = [message.content for message in prompt.messages or () if message.role == "assistant"]
        assert answers
        assert {judge(task_of(prompt), answer).status for answer in answers} == {Status.VALID}, prompt.id


def test_shown_python_is_a_sound_beginning() -> None:
    for prompt in (*load("code-completion").prompts, *load("code-edit").prompts):
        if prompt.language == "python":
            assert judge(task_of(prompt), "", "length").status is not Status.INVALID, prompt.id


def test_edits_leave_something_to_copy() -> None:
    for prompt in load("code-edit").prompts:
        original, edited = re.split(r"\n+(?:#|//|--|/\*|<!--) (?:Edited|After).*\n", body(prompt))
        assert len(original.splitlines()) > 10, prompt.id
        assert 0 < len(edited) < 0.75 * len(original), prompt.id


def test_file_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.txt"
    path.write_text('{"prompt": "x"}')
    assert load(path).prompts == (Prompt("line-1", prompt="x"),)
    monkeypatch.chdir(tmp_path)
    path.rename("chat")
    assert len(load("chat").prompts) == 36


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "code-completions",
            r"no workload 'code-completions': neither a pack nor a file; did you mean 'code-completion'\?",
        ),
        ("", "valid: chat, code-completion, code-edit, json-records, tool-calls"),
        ("absent.jsonl", "absent.jsonl: cannot read the workload: No such file"),
    ],
)
def test_unknown_name(name: str, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        load(name)
