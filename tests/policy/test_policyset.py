import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from draftgate.errors import ConfigError, InputError
from draftgate.policy.file import VERSION
from draftgate.policy.file import dump as dump_policy
from draftgate.policy.file import save as save_policy
from draftgate.policy.length import Calibration, Cut, Fixed, Goodput
from draftgate.policy.policy import Policy
from draftgate.policy.policyset import PolicySet, dump, load, loads, parse, save
from draftgate.policy.presets import PRESETS, preset

EXAMPLE = Path(__file__).parents[2] / "examples" / "policyset.yaml"

NAMES = st.text(min_size=1).filter(str.isprintable)
LENGTHS = st.one_of(
    st.builds(Fixed, st.integers(0, 9)),
    st.builds(Cut, st.integers(0, 9), st.floats(-5, 5)),
    st.just(Goodput(1, Calibration({"*": ((0.0,), (0.5,))}), {1: (0.01, 0.011), 8: (0.1, 0.2)}, {1: 9.0, 8: 7.5})),
)
POLICIES = st.one_of(
    st.builds(Policy, NAMES, length=LENGTHS),
    st.builds(Policy, NAMES, st.just("threshold-or-lossless"), st.floats(0, 1), length=LENGTHS),
)


@st.composite
def sets(draw: st.DrawFn) -> PolicySet:
    policies = draw(st.lists(POLICIES, max_size=5, unique_by=lambda policy: policy.name))
    named = st.sampled_from([*(policy.name for policy in policies), *PRESETS])
    return PolicySet(tuple(policies), draw(named), draw(st.dictionaries(NAMES, named, max_size=4)))


@given(policies=sets())
def test_parse_undoes_dump_and_keeps_the_digest(policies: PolicySet) -> None:
    again = parse(json.loads(json.dumps(dump(policies))))
    assert again == policies
    assert again.digest() == policies.digest()


@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(policies=sets())
@example(policies=PolicySet((Policy("1e3"),), "1e3", {"0E0": "1e3", "no": "1e3", "1": "1e3", "~": "1e3"}))
def test_load_undoes_save(policies: PolicySet, tmp_path: Path) -> None:
    path = tmp_path / "set.yaml"
    save(policies, path)
    assert load(path) == loads(path.read_bytes(), "bytes") == policies


@given(first=sets(), second=sets())
def test_digests_tell_sets_apart(first: PolicySet, second: PolicySet) -> None:
    assert (first.digest() == second.digest()) == (dump(first) == dump(second))


def test_the_order_of_workloads_is_not_part_of_the_digest() -> None:
    one, other = ({"a": "none", "b": "code"}, {"b": "code", "a": "none"})
    named = tuple(preset(name) for name in ("none", "code"))
    assert PolicySet(named, "none", one).digest() == PolicySet(named, "none", other).digest()


@given(policies=sets(), workload=NAMES)
def test_every_request_has_a_policy_and_a_name_wins(policies: PolicySet, workload: str) -> None:
    chosen = policies.of(workload)
    assert chosen.name == policies.workloads.get(workload, policies.default)
    assert chosen in policies.policies
    for policy in policies.policies:
        assert policies.of(workload, policy.name) == policy


def test_the_example_says_what_the_documentation_says() -> None:
    policies = load(EXAMPLE)
    assert policies.of().name == policies.default == "exact"
    assert policies.of("code") == policies.of(name="careful")
    assert not policies.of("chat").drafts
    assert policies.of("unheard-of") == preset("exact")


def test_presets_become_part_of_the_set() -> None:
    policies = PolicySet((), "exact", {"chat": "none", "code": "code"})
    assert [policy.name for policy in policies.policies] == ["exact", "none", "code"]
    assert dump(policies)["policies"][2]["tau"] == 0.65


def test_a_policy_of_the_set_wins_over_a_preset_of_its_name() -> None:
    mine = Policy("code", "threshold-or-lossless", 0.2)
    assert PolicySet((mine,), "code").of() == mine


def test_a_request_cannot_have_what_the_set_does_not_list() -> None:
    with pytest.raises(ConfigError, match="no policy 'loose' in force; valid: exact"):
        PolicySet((), "exact").of(name="loose")
    with pytest.raises(ConfigError, match="no policy 'exatc' in force; did you mean 'exact'"):
        PolicySet((), "exact").of(name="exatc")


@pytest.mark.parametrize("name", PRESETS)
def test_a_file_with_one_policy_is_a_set_of_one(name: str, tmp_path: Path) -> None:
    save_policy(preset(name), tmp_path / "policy.yaml")
    policies = load(tmp_path / "policy.yaml")
    assert policies == PolicySet((preset(name),), name)
    assert policies.of("any") == preset(name)


HEAD: dict[str, Any] = {"draftgate": VERSION, "default": "exact"}
MINE = {"name": "mine", "rule": "threshold", "tau": 0.5}

REFUSED: list[tuple[Any, str]] = [
    (None, "top level: must be a mapping but got None"),
    ([], "top level: must be a mapping but got"),
    ({}, r"reads policy version 1: write 'draftgate: 1' at the top \(found None\)"),
    (HEAD | {"draftgate": 2}, "found 2"),
    (HEAD | {"draftgate": True}, "found True"),
    (HEAD | {"polices": []}, "top level: unknown key 'polices'; did you mean 'policies'"),
    ({"draftgate": VERSION, "policies": [MINE]}, "'default' is missing; name a policy of this set or a preset"),
    (HEAD | {"default": 3}, "default: must be text but got 3"),
    (
        HEAD | {"default": "exatc"},
        "default: 'exatc' is neither a policy of this set nor a preset; did you mean 'exact'",
    ),
    (HEAD | {"default": "mien", "policies": [MINE]}, "default: 'mien' is neither .* did you mean 'mine'"),
    (HEAD | {"policies": MINE}, "policies: must be a list of policies but got {"),
    (HEAD | {"policies": ["exact"]}, r"policies\[0\]: must be a mapping but got 'exact'"),
    (HEAD | {"policies": [MINE, MINE]}, "policies: two are named 'mine'; rename one"),
    (HEAD | {"policies": [MINE | {"tau": math.nan}]}, r"policies\[0\]: tau: must be a finite number but got nan"),
    (HEAD | {"policies": [MINE | {"tau": 1.5}]}, r"policies\[0\]: policy 'mine': tau must be in \[0, 1\] but got 1.5"),
    (
        HEAD | {"policies": [MINE, MINE | {"tua": 1}]},
        r"policies\[1\]: top level: unknown key 'tua'; did you mean 'tau'",
    ),
    (HEAD | {"policies": [MINE | {"draftgate": 2}]}, r"policies\[0\]: this draftgate reads policy version 1"),
    (HEAD | {"policies": [MINE | {"name": ""}]}, "names must be printable text but got ''"),
    (HEAD | {"policies": [MINE | {"name": "a\nb"}]}, r"names must be printable text but got 'a\\nb'"),
    (HEAD | {"policies": [MINE | {"name": "\ud800"}]}, r"names must be printable text but got '\\ud800'"),
    (HEAD | {"workloads": ["code"]}, "workloads: must be a mapping"),
    (HEAD | {"workloads": {"code": 3}}, "workloads.code: must be text but got 3"),
    (HEAD | {"workloads": {3: "exact"}}, r"workloads \(name\): must be text but got 3"),
    (HEAD | {"workloads": {"": "exact"}}, "names must be printable text but got ''"),
    (HEAD | {"workloads": {"code": "lose"}}, "workloads.code: 'lose' is neither .* did you mean 'loose'"),
    (HEAD | MINE, "policy: top level: unknown key 'default'"),
    (dump_policy(Policy("x")) | {"tau": 0.5}, "policy: policy 'x': rule 'exact' has no threshold"),
]


@pytest.mark.parametrize(("data", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_one_wrong_thing_is_refused_with_the_file_and_the_place(data: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^my.yaml: .*{message}"):
        parse(data, "my.yaml")


UNREADABLE: list[tuple[bytes, str]] = [
    (b"name: a: b", "is not plain YAML: line 1: mapping values"),
    (b"draftgate: 1\ndefault: exact\ndefault: none", "is not plain YAML: line 3: 'default' is given twice"),
    (b"a: &a [*a]", "is not plain YAML: line 1: aliases and tags"),
    (b"\xff", "is not plain YAML: "),
    (b"[" * 5000, "is not plain YAML: .*recursion"),
    (b"", "top level: must be a mapping but got None"),
]


@pytest.mark.parametrize(("data", "message"), UNREADABLE, ids=[message for _, message in UNREADABLE])
def test_bytes_that_are_no_set_are_refused(data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "set.yaml"
    path.write_bytes(data)
    for read in (lambda: load(path), lambda: loads(data, str(path))):
        with pytest.raises(ConfigError, match=f"^{path}: {message}"):
            read()


def test_json_is_read_too() -> None:
    policies = PolicySet((Policy("mine", "threshold", 0.25),), "mine", {"chat": "none"})
    assert loads(json.dumps(dump(policies)).encode(), "body") == policies


def test_a_place_that_cannot_be_written_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        save(PolicySet((), "exact"), tmp_path)


def test_the_kubernetes_example_is_valid_and_mounted_where_it_is_looked_for() -> None:
    folder = EXAMPLE.parents[1] / "deploy" / "kubernetes"
    data = yaml.safe_load((folder / "configmap.yaml").read_text())["data"]
    ((name, text),) = data.items()
    assert loads(text.encode(), name).of("code").name == "careful"
    pod = yaml.safe_load((folder / "vllm.yaml").read_text())["spec"]["template"]["spec"]
    (container,), (mount,) = pod["containers"], pod["containers"][0]["volumeMounts"]
    variables = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert variables["DRAFTGATE_POLICY"] == f"{mount['mountPath']}/{name}"
    assert "subPath" not in mount
