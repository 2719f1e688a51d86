import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from draftgate.errors import ConfigError, InputError
from draftgate.policy.category import GROUPS, Category
from draftgate.policy.file import VERSION, dump, load, parse, resolve, save
from draftgate.policy.length import Calibration, Cut, Fixed, Goodput, Length
from draftgate.policy.policy import Policy
from draftgate.policy.presets import PRESETS, preset
from draftgate.policy.rules import RULES
from draftgate.policy.syntax import language_names

FINITE = st.floats(allow_nan=False, allow_infinity=False)
UNIT = st.floats(0, 1)
OFFSET = st.floats(-1, 1)
SECONDS = st.floats(1e-9, 1e6)
GROUP_NAMES = sorted(set(GROUPS.values()))
CATEGORY_NAMES = sorted({c.name.lower() for c in Category} | set(GROUP_NAMES))


@st.composite
def tables(draw: st.DrawFn) -> tuple[tuple[float, ...], tuple[float, ...]]:
    n = draw(st.integers(1, 4))
    edges, chance = (sorted(draw(st.lists(values, min_size=n, max_size=n))) for values in (FINITE, UNIT))
    return tuple(edges), tuple(chance)


@st.composite
def goodputs(draw: st.DrawFn) -> Goodput:
    k = draw(st.integers(0, 5))
    groups = draw(st.sets(st.sampled_from(GROUP_NAMES)))
    batches = draw(st.sets(st.integers(1, 256), min_size=1, max_size=3))
    return Goodput(
        k,
        Calibration({name: draw(tables()) for name in ["*", *sorted(groups)]}),
        {batch: tuple(draw(st.lists(SECONDS, min_size=k + 1, max_size=k + 1))) for batch in batches},
        {batch: draw(SECONDS) for batch in batches},
        draw(st.floats(0, 10)),
    )


LENGTHS: st.SearchStrategy[Length] = st.one_of(
    st.builds(Fixed, st.integers(0, 64)), st.builds(Cut, st.integers(0, 64), FINITE), goodputs()
)


@st.composite
def thresholds(draw: st.DrawFn) -> dict[str, Any]:
    at = sorted(draw(st.sets(st.integers(0, 10**6), max_size=4)))
    low, high = sorted(draw(st.tuples(UNIT, UNIT)))
    return {
        "tau": None if at else draw(UNIT),
        "position": tuple((x, draw(UNIT)) for x in at),
        "category": draw(st.dictionaries(st.sampled_from(CATEGORY_NAMES), OFFSET, max_size=3)),
        "language": draw(st.dictionaries(st.sampled_from(language_names()), OFFSET, max_size=3)),
        "bounds": (low, high),
    }


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    rule = draw(st.sampled_from(sorted(RULES.values(), key=lambda rule: rule.name)))
    knobs = {knob.name: st.floats(knob.low, knob.high) for knob in rule.knobs if knob.name != "tau"}
    return Policy(
        draw(st.text()),
        rule.name,
        params=draw(st.fixed_dictionaries({}, optional=knobs)),
        length=draw(LENGTHS),
        draft_temperature=draw(st.floats(0, 10)),
        draft_top_p=draw(st.floats(1e-6, 1)),
        **draw(thresholds()) if rule.uses_tau else {},
    )


@given(policy=policies())
def test_parse_undoes_dump(policy: Policy) -> None:
    assert parse(dump(policy)) == policy


@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(policy=policies())
def test_load_undoes_save(policy: Policy, tmp_path: Path) -> None:
    save(policy, tmp_path / "policy.yaml")
    assert load(tmp_path / "policy.yaml") == policy


@pytest.mark.parametrize("name", PRESETS)
def test_presets_survive_a_file_and_can_be_named_by_either(name: str, tmp_path: Path) -> None:
    path = tmp_path / "mine"  # found although it has no .yaml at its end
    save(preset(name), path)
    assert resolve(name) == resolve(str(path)) == preset(name)


def test_a_file_says_what_was_run_and_leaves_out_the_rest(tmp_path: Path) -> None:
    save(Policy("mine", "sglang", 0.3), tmp_path / "policy.yaml")
    assert (tmp_path / "policy.yaml").read_text() == (
        "draftgate: 1\nname: mine\nrule: sglang\ntau: 0.3\nparams: {acc: 1.0}\ndraft: {length: fixed, k: 3}\n"
    )


def test_numbers_of_numpy_become_plain(tmp_path: Path) -> None:
    one = np.float64(0.5)
    length = Goodput(
        np.int64(1),  # type: ignore[arg-type]
        Calibration({"*": ((one,), (one,))}),
        {np.int64(1): (one, one)},  # type: ignore[dict-item]
        {np.int64(1): one},  # type: ignore[dict-item]
        one,
    )
    policy = Policy("x", "typical", one, {"delta": one}, {"safe": one}, bounds=(one, one), length=length)
    save(policy, tmp_path / "policy.yaml")
    assert load(tmp_path / "policy.yaml") == policy


def test_a_draft_has_defaults() -> None:
    head = {"draftgate": VERSION, "name": "x", "rule": "exact"}
    assert parse(head) == parse(head | {"draft": {}}) == Policy("x", length=Fixed(3))
    assert parse(head | {"tau": None}) == Policy("x")


def test_seconds_may_be_written_with_an_exponent(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    save(Policy("x", length=GOODPUT), path)
    path.write_text(path.read_text().replace("[0.01, 0.011]", "[1e-2, 11E-3]"))
    assert load(path) == Policy("x", length=GOODPUT)


GOODPUT = Goodput(1, Calibration({"*": ((0.0,), (0.5,))}), {1: (0.01, 0.011)}, {1: 100.0})
FIXED: dict[str, Any] = dump(Policy("x", "threshold", 0.5))
WHOLE: dict[str, Any] = dump(Policy("x", length=GOODPUT))


def broken(base: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy of `base` with the dotted key set."""
    head, _, rest = path.partition(".")
    return base | {head: broken(base[head], rest, value) if rest else value}


REFUSED: list[tuple[dict[str, Any], str, Any, str]] = [
    (FIXED, "draftgate", 2, r"reads policy version 1: write 'draftgate: 1' at the top \(found 2\)"),
    (FIXED, "draftgate", True, "found True"),
    (FIXED, "draftgate", "1", "found '1'"),
    (FIXED, "tua", 0.5, "top level: unknown key 'tua'; did you mean 'tau'"),
    (FIXED, "drfat", {}, "top level: unknown key 'drfat'; did you mean 'draft'"),
    (FIXED, "name", None, "name: must be text but got None"),
    (FIXED, "rule", 5, "rule: must be text but got 5"),
    (FIXED, "rule", "treshold", "unknown rule 'treshold'; did you mean 'threshold'"),
    (FIXED, "tau", "0,5", "tau: must be a finite number but got '0,5'"),
    (FIXED, "tau", True, "tau: must be a finite number but got True"),
    (FIXED, "tau", float("nan"), "tau: must be a finite number but got nan"),
    (FIXED, "tau", 10**400, "tau: must be a finite number but got 1000"),
    (FIXED, "tau", 1.5, r"tau must be in \[0, 1\] but got 1.5"),
    (FIXED, "params", [1], r"params: must be a mapping but got \[1\]"),
    (FIXED, "params", {"acc": 1}, "params: rule 'threshold' has no parameter 'acc'"),
    (FIXED, "category", None, "category: must be a mapping but got None"),
    (FIXED, "category", {"safe": "low"}, "category.safe: must be a finite number but got 'low'"),
    (FIXED, "category", {"saef": 0.1}, "unknown category 'saef'; did you mean 'safe'"),
    (FIXED, "category", {3: 0.1}, "unknown category '3'; valid: "),
    (FIXED, "language", {"pyton": 0.1}, "unknown language 'pyton'; did you mean 'python'"),
    (FIXED, "position", 5, r"position: must be a list of \[offset, tau\] pairs but got 5"),
    (FIXED, "position", [[1, 0.5, 2]], "position: must be a list of"),
    (FIXED, "position", [[0.5, 1]], "position: must be a whole number but got 0.5"),
    (FIXED, "position", [[1, 0.5]], "either tau or a position schedule but got both"),
    (FIXED, "bounds", [0.1], r"bounds: must be \[least, greatest\] but got \[0.1\]"),
    (FIXED, "bounds", [0.9, 0.1], "bounds must satisfy"),
    (FIXED, "bounds", {}, "bounds: must be a list of numbers"),
    (FIXED, "draft", 5, "draft: must be a mapping but got 5"),
    (FIXED, "draft", {"lenght": "fixed"}, "draft: unknown key 'lenght'; did you mean 'length'"),
    (FIXED, "draft", {"k": 3, "least": 0.5}, "draft: unknown key 'least'; valid: k, length, temperature, top_p"),
    (FIXED, "draft.length", "fixd", "draft.length: unknown draft length 'fixd'; did you mean 'fixed'"),
    (FIXED, "draft.length", ["fixed"], r"draft.length: must be text but got \['fixed'\]"),
    (FIXED, "draft.k", 2.5, "draft.k: must be a whole number but got 2.5"),
    (FIXED, "draft.k", True, "draft.k: must be a whole number but got True"),
    (FIXED, "draft.k", -1, "draft length k must be >= 0 but got -1"),
    (FIXED, "draft.temperature", "hot", "draft.temperature: must be a finite number"),
    (FIXED, "draft.top_p", 0, "draft top_p must be"),
    (FIXED, "draft", {"length": "cut", "k": 3}, "draft: 'least' is missing for length 'cut'"),
    (FIXED, "draft", {"length": "cut", "least": 3}, "draft: 'k' is missing for length 'cut'"),
    (FIXED, "draft", {"length": "goodput", "k": 3}, "draft: 'calibration' is missing for length 'goodput'"),
    (WHOLE, "draft.k", 2, "draft.verify_s.1: needs k [+] 1 = 3 numbers but got 2"),
    (WHOLE, "draft.verify_s", [1, 2], "draft.verify_s: must be a mapping"),
    (WHOLE, "draft.verify_s", {}, "draft.verify_s: needs batch sizes of 1 or more as keys but got"),
    (WHOLE, "draft.verify_s", {0: [1, 2]}, r"draft.verify_s: needs batch sizes of 1 or more as keys but got \[0\]"),
    (WHOLE, "draft.verify_s", {"one": [1, 2]}, r"draft.verify_s \(batch size\): must be a whole number"),
    (WHOLE, "draft.verify_s", {2: [1, 2]}, r"verify_s has batch sizes \[2\] but rate_tok_s has \[1\]"),
    (WHOLE, "draft.verify_s", {1: [1, 0]}, "draft.verify_s.1: must be greater than 0 but got 0"),
    (WHOLE, "draft.rate_tok_s", {1: -3}, "draft.rate_tok_s.1: must be greater than 0 but got -3"),
    (WHOLE, "draft.draft_s", -1, "draft.draft_s: must be >= 0 but got -1"),
    (WHOLE, "draft.calibration", {}, r"draft.calibration: the pooled group '\*' is missing"),
    (WHOLE, "draft.calibration.saef", {}, "draft.calibration: unknown key 'saef'; did you mean 'safe'"),
    (WHOLE, "draft.calibration.*", [], r"draft.calibration.\*: must be a mapping"),
    (WHOLE, "draft.calibration.*.chances", [], r"draft.calibration.\*: unknown key 'chances'; did you mean 'chance'"),
    (WHOLE, "draft.calibration.*", {"edges": [0]}, r"draft.calibration.\*.chance: must be a list of numbers"),
    (WHOLE, "draft.calibration.*", {"edges": [0], "chance": [0, 1]}, "must be equally long and not decrease"),
    (WHOLE, "draft.calibration.*", {"edges": [1, 0], "chance": [0, 1]}, "must be equally long and not decrease"),
    (WHOLE, "draft.calibration.*", {"edges": [0, 1], "chance": [1, 0]}, "must be equally long and not decrease"),
    (WHOLE, "draft.calibration.*.chance", [1.5], r"draft.calibration.\*.chance: must be in \[0, 1\] but got \[1.5\]"),
]


@pytest.mark.parametrize(("base", "key", "value", "message"), REFUSED, ids=[message for *_, message in REFUSED])
def test_one_wrong_setting_is_refused_with_the_file_and_the_key(
    base: dict[str, Any], key: str, value: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=f"^my.yaml: .*{message}"):
        parse(broken(base, key, value), "my.yaml")


@pytest.mark.parametrize("value", [None, [], "code", 3])
def test_a_policy_is_a_mapping(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"^policy: top level: must be a mapping but got"):
        parse(value)


def test_a_newer_file_is_told_by_its_version_not_by_its_new_keys() -> None:
    with pytest.raises(ConfigError, match="version"):
        parse({"draftgate": VERSION + 1, "mystery": 1})


def test_a_wrong_file_is_named_once(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("draftgate: 1\nname: mine\nrule: threshold\ntau: 7\n")
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert str(caught.value) == f"{path}: policy 'mine': tau must be in [0, 1] but got 7.0"


UNREADABLE: list[tuple[Callable[[Path], object], str]] = [
    (lambda path: None, "cannot be read: No such file"),
    (lambda path: path.mkdir(), "cannot be read: Is a directory"),
    (lambda path: path.write_text("name: a: b"), "line 1: mapping values are not allowed"),
    (lambda path: path.write_text(""), "top level: must be a mapping but got None"),
]


@pytest.mark.parametrize(("make", "message"), UNREADABLE, ids=[message for _, message in UNREADABLE])
def test_an_unreadable_file_is_named(make: Callable[[Path], object], message: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    make(path)
    with pytest.raises(ConfigError, match=f"^{path}: .*{message}"):
        load(path)


def test_a_name_that_is_neither_preset_nor_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown preset 'chta'; did you mean 'chat'"):
        resolve("chta")
    with pytest.raises(ConfigError, match=r"missing.yml: cannot be read: No such file"):
        resolve(str(tmp_path / "missing.yml"))


def test_a_preset_wins_over_a_file_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save(preset("chat"), Path("code"))
    assert resolve("code") == preset("code")


def test_a_place_that_cannot_be_written_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        save(preset("code"), tmp_path)


def test_policies_survive_json():
    """Batch sizes are whole numbers as YAML keys and text as JSON keys."""
    length = Goodput(1, Calibration({"*": ((1.0,), (0.5,))}), {1: (0.1, 0.2), 4: (0.3, 0.4)}, {1: 10.0, 4: 20.0})
    policy = Policy("json", length=length)
    assert parse(json.loads(json.dumps(dump(policy)))) == policy
