import pytest

from draftgate.errors import ConfigError
from draftgate.policy.category import Category
from draftgate.policy.syntax import State, canonical, language_names, syntax


@pytest.mark.parametrize("language", language_names())
def test_regions_open_only_regions_of_the_same_language(language: str) -> None:
    table = syntax(language)
    assert {inner for region in table.values() for inner in region.inside} <= table.keys()


def test_a_state_is_stored_as_a_category() -> None:
    assert (int(State.STRING), int(State.COMMENT)) == (Category.STRING, Category.COMMENT)


@pytest.mark.parametrize(
    ("spelling", "name"),
    [("PY", "python"), (" c++ ", "cpp"), ("tsx", "typescript"), ("bash", "shell"), (None, "prose")],
)
def test_canonical_names(spelling: str | None, name: str) -> None:
    assert canonical(spelling) == name


def test_every_name_is_its_own_canonical_name() -> None:
    assert [canonical(name) for name in language_names()] == sorted(language_names())


def test_an_unknown_language_is_refused_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match=r"unknown language 'pyhton'; did you mean 'python'\?"):
        canonical("pyhton")
