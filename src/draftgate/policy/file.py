"""Policy files: YAML that round-trips, carries a version and refuses what it does not know."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from reprlib import repr as brief
from sys import float_info
from typing import Any

from draftgate.errors import ConfigError, nearest
from draftgate.files import dump_yaml, read_yaml, write_atomic
from draftgate.policy.category import GROUPS
from draftgate.policy.length import Calibration, Cut, Fixed, Goodput, Length
from draftgate.policy.policy import Policy
from draftgate.policy.presets import PRESETS, preset

__all__ = ["VERSION", "dump", "load", "parse", "resolve", "save"]

VERSION = 1

_TOP = ("draftgate", "name", "rule", "tau", "params", "category", "language", "position", "bounds", "truncate", "draft")
_ANY_DRAFT = ("length", "temperature", "top_p")
_DRAFT: Mapping[str, tuple[str, ...]] = {
    "fixed": ("k",),
    "cut": ("k", "least"),
    "goodput": ("k", "calibration", "verify_s", "rate_tok_s", "draft_s"),
}
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {"fixed": {"k": 3}, "cut": {}, "goodput": {"draft_s": 0.0}}


def _known(where: str, keys: Iterable[Any], valid: Iterable[str]) -> None:
    for key in keys:
        if key not in valid:
            raise ConfigError(f"{where}: unknown key '{key}'; {nearest(str(key), valid)}")


def _mapping(where: str, value: Any) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: must be a mapping but got {brief(value)}")
    return value


def _text(where: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{where}: must be text but got {brief(value)}")
    return value


def _flag(where: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{where}: must be true or false but got {brief(value)}")
    return value


def _number(where: str, value: Any) -> float:
    # The comparison refuses NaN, infinity, and whole numbers too large for a float.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= float_info.max:
        raise ConfigError(f"{where}: must be a finite number but got {brief(value)}")
    return float(value)


def _whole(where: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{where}: must be a whole number but got {brief(value)}")
    return value


def _numbers(where: str, value: Any) -> tuple[float, ...]:
    if not isinstance(value, list) or not value:
        raise ConfigError(f"{where}: must be a list of numbers but got {brief(value)}")
    return tuple(_number(where, v) for v in value)


def _offsets(where: str, value: Any) -> dict[str, float]:
    return {str(k): _number(f"{where}.{k}", v) for k, v in _mapping(where, value).items()}


def _points(where: str, value: Any) -> tuple[tuple[int, float], ...]:
    if not isinstance(value, list) or not all(isinstance(row, list) and len(row) == 2 for row in value):
        raise ConfigError(f"{where}: must be a list of [offset, tau] pairs but got {brief(value)}")
    return tuple((_whole(where, at), _number(where, tau)) for at, tau in value)


def _positive(where: str, value: Any) -> float:
    number = _number(where, value)
    if number <= 0:
        raise ConfigError(f"{where}: must be greater than 0 but got {number}")
    return number


def _by_batch(where: str, value: Any) -> dict[int, Any]:
    # JSON knows no numbers as keys, so "1" is as good as 1.
    numbers = {
        int(key) if isinstance(key, str) and key.isdecimal() else key: v for key, v in _mapping(where, value).items()
    }
    out = {_whole(f"{where} (batch size)", batch): v for batch, v in numbers.items()}
    if not out or min(out) < 1:
        raise ConfigError(f"{where}: needs batch sizes of 1 or more as keys but got {brief(list(out))}")
    return out


def _calibration(where: str, value: Any) -> Calibration:
    tables = _mapping(where, value)
    _known(where, tables, ("*", *sorted(set(GROUPS.values()))))
    if "*" not in tables:
        raise ConfigError(f"{where}: the pooled group '*' is missing")
    return Calibration({name: _table(f"{where}.{name}", table) for name, table in tables.items()})


def _table(where: str, value: Any) -> tuple[tuple[float, ...], tuple[float, ...]]:
    table = _mapping(where, value)
    _known(where, table, ("edges", "chance"))
    edges, chance = (_numbers(f"{where}.{key}", table.get(key)) for key in ("edges", "chance"))
    if len(edges) != len(chance) or list(edges) != sorted(edges) or list(chance) != sorted(chance):
        raise ConfigError(f"{where}: edges and chance must be equally long and not decrease")
    if not 0 <= chance[0] <= chance[-1] <= 1:
        raise ConfigError(f"{where}.chance: must be in [0, 1] but got {brief(list(chance))}")
    return edges, chance


def _length(draft: Mapping[Any, Any]) -> Length:
    kind = _text("draft.length", draft.get("length", "fixed"))
    if kind not in _DRAFT:
        raise ConfigError(f"draft.length: unknown draft length '{kind}'; {nearest(kind, _DRAFT)}")
    _known("draft", draft, (*_ANY_DRAFT, *_DRAFT[kind]))
    given = {**_DEFAULTS[kind], **draft}
    for key in _DRAFT[kind]:
        if key not in given:
            raise ConfigError(f"draft: '{key}' is missing for length '{kind}'")
    k = _whole("draft.k", given["k"])
    if kind == "fixed":
        return Fixed(k)
    if kind == "cut":
        return Cut(k, _number("draft.least", given["least"]))
    return _goodput(k, given)


def _goodput(k: int, given: Mapping[Any, Any]) -> Goodput:
    curves = {b: _numbers(f"draft.verify_s.{b}", v) for b, v in _by_batch("draft.verify_s", given["verify_s"]).items()}
    rates = _by_batch("draft.rate_tok_s", given["rate_tok_s"])
    if curves.keys() != rates.keys():
        raise ConfigError(f"draft: verify_s has batch sizes {sorted(curves)} but rate_tok_s has {sorted(rates)}")
    for batch, curve in curves.items():
        if len(curve) != k + 1:
            raise ConfigError(f"draft.verify_s.{batch}: needs k + 1 = {k + 1} numbers but got {len(curve)}")
        _positive(f"draft.verify_s.{batch}", min(curve))
    draft_s = _number("draft.draft_s", given["draft_s"])
    if draft_s < 0:
        raise ConfigError(f"draft.draft_s: must be >= 0 but got {draft_s}")
    return Goodput(
        k,
        _calibration("draft.calibration", given["calibration"]),
        curves,
        {batch: _positive(f"draft.rate_tok_s.{batch}", rate) for batch, rate in rates.items()},
        draft_s,
    )


def parse(data: Any, where: str = "policy") -> Policy:
    """The policy that a mapping describes.

    Args:
        data: what `dump` returns, or a YAML reader's output.
        where: name for error messages, such as the file's.

    Raises:
        ConfigError: unknown key, wrong type, value out of range, or another version; names `where` and the key.
    """
    try:
        return _policy(_mapping("top level", data))
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _policy(data: Mapping[Any, Any]) -> Policy:
    version = data.get("draftgate")
    if type(version) is not int or version != VERSION:
        raise ConfigError(
            f"this draftgate reads policy version {VERSION}: write 'draftgate: {VERSION}' at the top "
            f"(found {brief(version)})"
        )
    _known("top level", data, _TOP)
    draft = _mapping("draft", data.get("draft", {}))
    bounds = _numbers("bounds", data.get("bounds", [0.0, 1.0]))
    if len(bounds) != 2:
        raise ConfigError(f"bounds: must be [least, greatest] but got {brief(list(bounds))}")
    return Policy(
        name=_text("name", data.get("name")),
        rule=_text("rule", data.get("rule")),
        tau=None if data.get("tau") is None else _number("tau", data["tau"]),
        params=_offsets("params", data.get("params", {})),
        category=_offsets("category", data.get("category", {})),
        language=_offsets("language", data.get("language", {})),
        position=_points("position", data.get("position", [])),
        bounds=(bounds[0], bounds[1]),
        truncate=_flag("truncate", data.get("truncate", False)),
        length=_length(draft),
        draft_temperature=_number("draft.temperature", draft.get("temperature", 0.0)),
        draft_top_p=_number("draft.top_p", draft.get("top_p", 1.0)),
    )


def _floats(values: Mapping[Any, float]) -> dict[Any, float]:
    return {key: float(value) for key, value in values.items()}


def _dump_length(length: Length) -> dict[str, Any]:
    if isinstance(length, Fixed):
        return {"length": "fixed", "k": int(length.k)}
    if isinstance(length, Cut):
        return {"length": "cut", "k": int(length.k), "least": float(length.least)}
    return {
        "length": "goodput",
        "k": int(length.k),
        "draft_s": float(length.draft_s),
        "rate_tok_s": {int(batch): float(rate) for batch, rate in length.rate_tok_s.items()},
        "verify_s": {int(batch): list(map(float, curve)) for batch, curve in length.verify_s.items()},
        "calibration": {
            name: {"edges": list(map(float, edges)), "chance": list(map(float, chance))}
            for name, (edges, chance) in length.calibration.groups.items()
        },
    }


def dump(policy: Policy) -> dict[str, Any]:
    """A mapping of plain values that `parse` turns back into an equal policy.

    Settings at their default are left out, but for the draft length and the rule's parameters: those are what was run.
    """
    out: dict[str, Any] = {"draftgate": VERSION, "name": policy.name, "rule": policy.rule}
    if policy.tau is not None:
        out["tau"] = float(policy.tau)
    out |= {key: _floats(v) for key in ("params", "category", "language") if (v := getattr(policy, key))}
    if policy.position:
        out["position"] = [[int(at), float(tau)] for at, tau in policy.position]
    if policy.bounds != (0.0, 1.0):
        out["bounds"] = list(map(float, policy.bounds))
    if policy.truncate:
        out["truncate"] = True
    out["draft"] = _dump_length(policy.length)
    if policy.draft_temperature:
        out["draft"]["temperature"] = float(policy.draft_temperature)
    if policy.draft_top_p != 1.0:
        out["draft"]["top_p"] = float(policy.draft_top_p)
    return out


def load(path: Path) -> Policy:
    """Read a policy file.

    Raises:
        ConfigError: not readable, not plain YAML, or not a valid policy; the message names the file.
    """
    return parse(read_yaml(path), str(path))


def resolve(name_or_path: str) -> Policy:
    """A preset by name, or a policy file by path; a preset wins over a file of its name.

    Raises:
        ConfigError: neither exists.
    """
    path = Path(name_or_path)
    if name_or_path not in PRESETS and (path.suffix in (".yaml", ".yml") or path.exists()):
        return load(path)
    return preset(name_or_path)


def save(policy: Policy, path: Path) -> None:
    """Write a policy file atomically.

    Raises:
        InputError: the place cannot be written.
    """
    write_atomic(path, dump_yaml(dump(policy)))
