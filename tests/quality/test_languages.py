import pytest

from draftgate.policy.syntax import language_names
from draftgate.quality.languages import EXACT, GRAMMARS, checkable, resolve


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("PY", "python"),
        (" c++ ", "cpp"),
        ("C#", "csharp"),
        ("bash", "shell"),
        ("tsx", "typescript"),
        ("ndjson", "jsonl"),
        ("rb", "ruby"),
        ("kt", "kotlin"),
        ("toml", "toml"),
        ("prose", None),
        ("klingon", None),
        ("", None),
        (None, None),
    ],
)
def test_names(spelling: str | None, name: str | None) -> None:
    assert resolve(spelling) == name


def test_every_checkable_language_is_its_own_name() -> None:
    assert [resolve(name) for name in checkable()] == list(checkable())
    assert len(checkable()) >= 20


def test_what_has_thresholds_of_its_own_can_be_checked_too() -> None:
    assert set(language_names()) - {"prose", "markdown"} <= EXACT | GRAMMARS.keys()
