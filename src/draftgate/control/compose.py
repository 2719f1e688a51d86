"""The policy set that a control loop puts in force: the operator's, with each controlled workload at its setting."""

from collections.abc import Mapping
from dataclasses import replace

from draftgate.control.setting import OFF, Setting
from draftgate.policy.policyset import PolicySet

__all__ = ["ALL", "compose", "controlled"]

ALL = "*"  # traffic of every workload that the set does not name, and all traffic where metrics do not tell workloads


def controlled(base: PolicySet, workload: str) -> str:
    """The name under which a workload is controlled: its own if the operator named it, else `ALL`.

    Request labels come from clients, so they must not make the set grow.
    """
    return workload if workload in base.workloads else ALL


def compose(base: PolicySet, settings: Mapping[str, Setting]) -> PolicySet:
    """The set with settings applied.

    A named workload gets a policy of its own, NAME@WORKLOAD. The setting of `ALL` moves the default policy under its
    own name; where it is off, so is every policy without a setting of its own, also for requests that ask for it by
    name.

    Raises:
        ConfigError: a setting does not fit its policy.
    """
    rest = settings.get(ALL)
    policies = [p if rest is None or rest.on else OFF.applied_to(p) for p in base.policies]
    if rest is not None and rest.on:
        policies = [rest.applied_to(p) if p.name == base.default else p for p in policies]
    workloads = dict(base.workloads)
    for workload in sorted(settings.keys() & base.workloads.keys()):
        own = base.of(workload)
        workloads[workload] = f"{own.name}@{workload}"
        policies.append(replace(settings[workload].applied_to(own), name=workloads[workload]))
    return PolicySet(tuple(policies), base.default, workloads)
