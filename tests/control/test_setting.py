import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftgate.control.compose import ALL, compose, controlled
from draftgate.control.setting import OFF, Setting
from draftgate.errors import ConfigError
from draftgate.policy.length import Calibration, Cut, Fixed, Goodput
from draftgate.policy.policy import NONE, Policy
from draftgate.policy.policyset import PolicySet, dump, parse

CAREFUL = Policy("careful", "threshold-or-lossless", 0.2, length=Fixed(5))
GOODPUT = Policy(
    "goodput",
    length=Goodput(3, Calibration({"*": ((0.0,), (0.5,))}), {1: (0.01, 0.012, 0.013, 0.014)}, {1: 100.0}),
)


@pytest.mark.parametrize("policy", [NONE, CAREFUL, GOODPUT, Policy("cut", length=Cut(4, 2.0))])
def test_a_policys_own_setting_changes_nothing(policy: Policy) -> None:
    assert Setting.of(policy).applied_to(policy) == policy


@given(tau=st.none() | st.floats(0, 1), k=st.integers(1, 16), cut=st.none() | st.floats(0, 10))
def test_what_is_applied_is_what_is_read(tau: float | None, k: int, cut: float | None) -> None:
    applied = Setting(True, tau, k, cut).applied_to(CAREFUL)
    assert Setting.of(applied) == Setting(True, 0.2 if tau is None else tau, k, cut)
    assert applied.name == "careful"


def test_off_drafts_nothing_and_keeps_the_rest() -> None:
    off = OFF.applied_to(CAREFUL)
    assert not off.drafts
    assert (off.name, off.rule, off.tau) == ("careful", CAREFUL.rule, 0.2)


def test_an_adaptive_length_is_bounded_and_stays_valid() -> None:
    applied = Setting(True, None, 2, None).applied_to(GOODPUT)
    assert parse(dump(PolicySet((applied,), "goodput"))).of() == applied
    assert applied.length.most == 2
    assert Setting(True, None, 9, None).applied_to(GOODPUT) == GOODPUT


@pytest.mark.parametrize(
    "values", [(True, None, 0, None), (False, None, 3, None), (True, 1.5, 3, None), (True, float("nan"), 3, None)]
)
def test_impossible_settings_are_refused(values: tuple[bool, float | None, int, float | None]) -> None:
    with pytest.raises(ConfigError):
        Setting(*values)


def test_a_threshold_for_a_rule_without_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="no threshold"):
        Setting(True, 0.2, 3, None).applied_to(Policy("exact"))


BASE = PolicySet((CAREFUL, Policy("exact", length=Fixed(3))), "exact", {"code": "careful", "chat": "exact"})


def test_only_named_workloads_are_controlled_by_name() -> None:
    assert [controlled(BASE, w) for w in ("code", "chat", "client's", "")] == ["code", "chat", ALL, ALL]


def test_a_named_workload_gets_its_own_policy() -> None:
    in_force = compose(BASE, {"code": Setting(True, 0.3, 2, None)})
    assert Setting.of(in_force.of("code")) == Setting(True, 0.3, 2, None)
    assert in_force.of("code").name == "careful@code"
    assert in_force.of(name="careful") == CAREFUL
    assert in_force.of("chat") == BASE.of("chat")


def test_the_rest_moves_the_default_under_its_own_name() -> None:
    in_force = compose(BASE, {ALL: Setting(True, None, 7, None)})
    assert in_force.of() == Policy("exact", length=Fixed(7))
    assert in_force.of("code") == CAREFUL


def test_all_off_is_off_for_everybody_without_a_setting() -> None:
    in_force = compose(BASE, {ALL: OFF, "code": Setting(True, 0.2, 4, None)})
    assert not in_force.of("chat").drafts
    assert not in_force.of(name="careful").drafts
    assert in_force.of("code").drafts


def test_nothing_controlled_is_the_base_itself() -> None:
    assert compose(BASE, {}).digest() == BASE.digest()
    assert compose(BASE, {ALL: Setting.of(BASE.of())}).digest() == BASE.digest()
