"""Policy files: YAML that round-trips, carries a version and refuses what it does not know."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from draftgate.errors import ConfigError, nearest
from draftgate.files import write_atomic
from draftgate.policy.length import Calibration, Cut, Fixed, Goodput, Length
from draftgate.policy.policy import Policy
from draftgate.policy.presets import PRESETS, preset

__all__ = ["VERSION", "dump", "load", "parse", "resolve", "save"]

VERSION = 1

_TOP = ("draftgate", "name", "rule", "tau", "params", "category", "language", "position", "bounds", "draft")
_DRAFT = {
    "fixed": ("length", "k", "temperature", "top_p"),
    "cut": ("length", "k", "least", "temperature", "top_p"),
    "goodput": ("length", "k", "calibration", "verify_s", "rate_tok_s", "draft_s", "temperature", "top_p"),
}


def _known(where: str, keys: Mapping[str, Any], valid: tuple[str, ...]) -> None:
    for key in keys:
        if key not in valid:
            raise ConfigError(f"{where}: unknown key '{key}'; {nearest(str(key), valid)}")


def _mapping(where: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: must be a mapping but got {value!r}")
    return value


def _number(where: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(f"{where}: must be a number but got {value!r}")
    return float(value)


def _whole(where: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{where}: must be a whole number but got {value!r}")
    return value


def _numbers(where: str, value: Any) -> tuple[float, ...]:
    if not isinstance(value, list) or not value:
        raise ConfigError(f"{where}: must be a list of numbers but got {value!r}")
    return tuple(_number(where, v) for v in value)


def _offsets(where: str, value: Any) -> dict[str, float]:
    return {str(k): _number(f"{where}.{k}", v) for k, v in _mapping(where, value).items()}


def _pairs(where: str, value: Any) -> tuple[tuple[int, float], ...]:
    rows = value if isinstance(value, list) else [value]
    if not all(isinstance(row, list) and len(row) == 2 for row in rows):
        raise ConfigError(f"{where}: must be a list of [offset, tau] pairs but got {value!r}")
    return tuple((_whole(where, at), _number(where, tau)) for at, tau in rows)


def _by_batch(where: str, value: Any) -> dict[int, Any]:
    return {_whole(f"{where} (batch size)", k): v for k, v in _mapping(where, value).items()}


def _calibration(where: str, value: Any) -> Calibration:
    groups = {}
    for name, table in _mapping(where, value).items():
        inner = f"{where}.{name}"
        _known(inner, _mapping(inner, table), ("edges", "chance"))
        edges, chance = (_numbers(f"{inner}.{key}", table.get(key)) for key in ("edges", "chance"))
        if len(edges) != len(chance) or list(edges) != sorted(edges) or list(chance) != sorted(chance):
            raise ConfigError(f"{inner}: edges and chance must be equally long and not decrease")
        if not 0 <= chance[0] <= chance[-1] <= 1:
            raise ConfigError(f"{inner}.chance: must be in [0, 1] but got {chance}")
        groups[str(name)] = (edges, chance)
    if "*" not in groups:
        raise ConfigError(f"{where}: the pooled group '*' is missing")
    return Calibration(groups)


def _length(where: str, draft: Mapping[str, Any]) -> Length:
    kind = draft.get("length", "fixed")
    if kind not in _DRAFT:
        raise ConfigError(f"{where}.length: unknown draft length '{kind}'; {nearest(str(kind), _DRAFT)}")
    _known(where, draft, _DRAFT[kind])
    missing = [
        key for key in _DRAFT[kind] if key not in draft and key not in ("length", "temperature", "top_p", "draft_s")
    ]
    if missing:
        raise ConfigError(f"{where}: '{missing[0]}' is missing for length '{kind}'")
    k = _whole(f"{where}.k", draft["k"])
    if kind == "fixed":
        return Fixed(k)
    if kind == "cut":
        return Cut(k, _number(f"{where}.least", draft["least"]))
    verify_s = {
        b: _numbers(f"{where}.verify_s", v) for b, v in _by_batch(f"{where}.verify_s", draft["verify_s"]).items()
    }
    rates = {
        b: _number(f"{where}.rate_tok_s", v) for b, v in _by_batch(f"{where}.rate_tok_s", draft["rate_tok_s"]).items()
    }
    if any(len(v) != k + 1 for v in verify_s.values()) or not verify_s or verify_s.keys() != rates.keys():
        raise ConfigError(f"{where}: verify_s needs k + 1 = {k + 1} numbers for each batch size of rate_tok_s")
    calibration = _calibration(f"{where}.calibration", draft["calibration"])
    return Goodput(k, calibration, verify_s, rates, _number(f"{where}.draft_s", draft.get("draft_s", 0.0)))


def parse(data: Any, where: str = "policy") -> Policy:
    """The policy that a mapping describes.

    Args:
        data: what `dump` returns, or a YAML reader's output.
        where: name for error messages.

    Raises:
        ConfigError: unknown key, wrong type, value out of range, or another version.
    """
    data = _mapping(where, data)
    _known(where, data, _TOP)
    if data.get("draftgate") != VERSION:
        raise ConfigError(
            f"{where}: this draftgate reads policy version {VERSION}: write 'draftgate: {VERSION}' at the top "
            f"(found {data.get('draftgate')!r})"
        )
    draft = _mapping(f"{where}.draft", data.get("draft", {}))
    bounds = _numbers(f"{where}.bounds", data.get("bounds", [0.0, 1.0]))
    if len(bounds) != 2:
        raise ConfigError(f"{where}.bounds: must be [least, greatest] but got {list(bounds)}")
    if not isinstance(data.get("name"), str) or not isinstance(data.get("rule"), str):
        raise ConfigError(f"{where}: 'name' and 'rule' must be given as text")
    return Policy(
        name=data["name"],
        rule=data["rule"],
        tau=None if data.get("tau") is None else _number(f"{where}.tau", data["tau"]),
        params=_offsets(f"{where}.params", data.get("params", {})),
        category=_offsets(f"{where}.category", data.get("category", {})),
        language=_offsets(f"{where}.language", data.get("language", {})),
        position=_pairs(f"{where}.position", data.get("position", [])),
        bounds=(bounds[0], bounds[1]),
        length=_length(f"{where}.draft", {"k": 3, **draft} if draft.get("length", "fixed") == "fixed" else draft),
        draft_temperature=_number(f"{where}.draft.temperature", draft.get("temperature", 0.0)),
        draft_top_p=_number(f"{where}.draft.top_p", draft.get("top_p", 1.0)),
    )


def _dump_length(length: Length) -> dict[str, Any]:
    if isinstance(length, Fixed):
        return {"length": "fixed", "k": length.k}
    if isinstance(length, Cut):
        return {"length": "cut", "k": length.k, "least": length.least}
    return {
        "length": "goodput",
        "k": length.k,
        "draft_s": length.draft_s,
        "rate_tok_s": dict(length.rate_tok_s),
        "verify_s": {b: list(v) for b, v in length.verify_s.items()},
        "calibration": {
            name: {"edges": list(edges), "chance": list(chance)}
            for name, (edges, chance) in length.calibration.groups.items()
        },
    }


def dump(policy: Policy) -> dict[str, Any]:
    """A mapping of plain values that `parse` turns back into an equal policy; settings at their default are left out."""
    out: dict[str, Any] = {"draftgate": VERSION, "name": policy.name, "rule": policy.rule}
    if policy.tau is not None:
        out["tau"] = policy.tau
    out |= {key: dict(v) for key in ("params", "category", "language") if (v := getattr(policy, key))}
    if policy.position:
        out["position"] = [list(point) for point in policy.position]
    if policy.bounds != (0.0, 1.0):
        out["bounds"] = list(policy.bounds)
    out["draft"] = _dump_length(policy.length)
    if policy.draft_temperature:
        out["draft"]["temperature"] = policy.draft_temperature
    if policy.draft_top_p != 1.0:
        out["draft"]["top_p"] = policy.draft_top_p
    return out


def load(path: Path) -> Policy:
    """Read a policy file.

    Raises:
        ConfigError: not readable, not YAML, or not a valid policy; the message names the file.
    """
    try:
        data = yaml.safe_load(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is not YAML: {' '.join(str(error).split())}") from error
    return parse(data, str(path))


def resolve(name_or_path: str) -> Policy:
    """A preset by name, or a policy file by path.

    Raises:
        ConfigError: neither exists.
    """
    if name_or_path in PRESETS:
        return preset(name_or_path)
    path = Path(name_or_path)
    if path.suffix in (".yaml", ".yml") or path.exists():
        return load(path)
    return preset(name_or_path)


def save(policy: Policy, path: Path) -> None:
    """Write a policy file atomically.

    Raises:
        InputError: the place cannot be written.
    """
    write_atomic(path, yaml.safe_dump(dump(policy), sort_keys=False, default_flow_style=None).encode())
