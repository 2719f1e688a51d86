"""Policy sets: several policies in one file, and which one serves which request.

    draftgate: 1
    default: exact                        # a policy of this set, or a preset
    policies:
      - {name: careful, rule: threshold-or-lossless, tau: 0.2, draft: {k: 5}}
    workloads: {code: careful, chat: none}

A file with a single policy is a set of that one. A set is complete: the presets it names are part of it. So its digest
says what is in force whatever a later release makes of a preset, and a request can only choose what the operator wrote.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from draftgate.errors import ConfigError, nearest
from draftgate.files import _Reader, _reason, read_yaml, write_atomic
from draftgate.policy.file import VERSION, _known, _mapping, _text
from draftgate.policy.file import dump as dump_policy
from draftgate.policy.file import parse as parse_policy
from draftgate.policy.policy import Policy
from draftgate.policy.presets import PRESETS, preset

__all__ = ["PolicySet", "dump", "load", "loads", "parse", "save"]

_TOP = ("draftgate", "default", "policies", "workloads")


@dataclass(frozen=True, slots=True)
class PolicySet:
    """Named policies and when to use which; immutable and checked when made.

    Attributes:
        policies: policies of different names; presets that `default` or `workloads` name are appended when missing.
        default: name of the policy for requests that ask for nothing else.
        workloads: workload name -> policy name.

    Raises:
        ConfigError: a name is used twice, is not printable, or names neither a policy of the set nor a preset.
    """

    policies: tuple[Policy, ...]
    default: str
    workloads: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        own = {policy.name: policy for policy in self.policies}
        if len(own) < len(self.policies):
            names = [policy.name for policy in self.policies]
            raise ConfigError(f"policies: two are named '{next(n for n in names if names.count(n) > 1)}'; rename one")
        for name in (*own, *self.workloads):
            # Names become log lines, metric labels and request fields.
            if not (name and name.isprintable()):
                raise ConfigError(f"names must be printable text but got {name!r}")
        for key, name in (("default", self.default), *((f"workloads.{w}", n) for w, n in self.workloads.items())):
            own.setdefault(name, _preset(key, name, own))
        object.__setattr__(self, "policies", tuple(own.values()))

    def of(self, workload: str | None = None, name: str | None = None) -> Policy:
        """The policy of a request: by policy name, else by workload, else the default.

        A workload that the set does not mention has the default.

        Raises:
            ConfigError: the set has no policy of that name.
        """
        wanted = name if name is not None else self.workloads.get(workload or "", self.default)
        for policy in self.policies:
            if policy.name == wanted:
                return policy
        raise ConfigError(f"no policy '{wanted}' in force; {nearest(wanted, [p.name for p in self.policies])}")

    def digest(self) -> str:
        """16 hex digits that are equal exactly when two sets say the same: SHA-256 of `dump` as canonical JSON."""
        canonical = json.dumps(dump(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def _preset(key: str, name: str, own: Mapping[str, Policy]) -> Policy:
    if name in own:
        return own[name]
    if name not in PRESETS:
        raise ConfigError(
            f"{key}: '{name}' is neither a policy of this set nor a preset; {nearest(name, [*own, *PRESETS])}"
        )
    return preset(name)


def parse(data: Any, where: str = "policy set") -> PolicySet:
    """The set that a mapping describes: a set, or a single policy, which then is the default.

    Args:
        data: what `dump` or `file.dump` returns, or a YAML or JSON reader's output.
        where: name for error messages, such as the file's.

    Raises:
        ConfigError: unknown key, wrong type, value out of range, or another version; names `where` and the place.
    """
    try:
        return _set(_mapping("top level", data))
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _set(data: Mapping[Any, Any]) -> PolicySet:
    if not data.keys().isdisjoint(("name", "rule")):
        policy = parse_policy(data)
        return PolicySet((policy,), policy.name)
    if type(data.get("draftgate")) is not int or data["draftgate"] != VERSION:
        raise ConfigError(
            f"this draftgate reads policy version {VERSION}: write 'draftgate: {VERSION}' at the top "
            f"(found {data.get('draftgate')!r:.40})"
        )
    _known("top level", data, _TOP)
    policies = data.get("policies", [])
    if not isinstance(policies, list):
        raise ConfigError(f"policies: must be a list of policies but got {policies!r:.40}")
    if "default" not in data:
        raise ConfigError("'default' is missing; name a policy of this set or a preset")
    workloads = _mapping("workloads", data.get("workloads", {}))
    return PolicySet(
        tuple(_member(f"policies[{i}]", item) for i, item in enumerate(policies)),
        _text("default", data["default"]),
        {_text("workloads (name)", work): _text(f"workloads.{work}", name) for work, name in workloads.items()},
    )


def _member(where: str, item: Any) -> Policy:
    return parse_policy({"draftgate": VERSION} | _mapping(where, item), where)


def dump(policies: PolicySet) -> dict[str, Any]:
    """A mapping of plain values that `parse` turns back into an equal set; every policy is written out in full."""
    members = [dump_policy(policy) for policy in policies.policies]
    for member in members:
        del member["draftgate"]
    out: dict[str, Any] = {"draftgate": VERSION, "default": policies.default, "policies": members}
    return out | ({"workloads": dict(policies.workloads)} if policies.workloads else {})


def load(path: Path) -> PolicySet:
    """Read a file with a policy set or a single policy.

    Raises:
        ConfigError: not readable, not plain YAML, or not valid; the message names the file.
    """
    return parse(read_yaml(path), str(path))


def loads(data: bytes, where: str) -> PolicySet:
    """The set in the bytes of a YAML or JSON text.

    Raises:
        ConfigError: as `load`; the message names `where`.
    """
    try:
        value = yaml.load(data, _Reader)
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        raise ConfigError(f"{where}: is not plain YAML: {_reason(error)}") from error
    return parse(value, where)


def save(policies: PolicySet, path: Path) -> None:
    """Write a policy set's file atomically.

    Raises:
        InputError: the place cannot be written.
    """
    text = yaml.dump(dump(policies), Dumper=_Writer, sort_keys=False, default_flow_style=None)
    write_atomic(path, text.encode())


class _Writer(yaml.SafeDumper):
    """Quotes text, such as a policy named 1e3, that the reader would take for something else."""

    yaml_implicit_resolvers = _Reader.yaml_implicit_resolvers
