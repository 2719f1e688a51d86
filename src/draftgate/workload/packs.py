"""The packs that ship with draftgate, and one way to name any workload."""

from importlib import resources
from pathlib import Path

from draftgate.errors import WorkloadError, nearest
from draftgate.workload.prompt import Workload, load_jsonl, parse_jsonl

__all__ = ["load", "pack_names"]

_DATA = resources.files("draftgate.workload") / "data"


def pack_names() -> list[str]:
    """Names of the packs that ship with draftgate, sorted.

    >>> pack_names()
    ['chat', 'code-completion', 'code-edit', 'json-records', 'tool-calls']
    """
    return sorted(entry.name.removesuffix(".jsonl") for entry in _DATA.iterdir() if entry.name.endswith(".jsonl"))


def load(name_or_path: str | Path) -> Workload:
    """Load a pack by name, or a JSONL file by path. A pack wins over a file of the same name.

    Raises:
        WorkloadError: neither a pack nor a file, or the file is wrong.
    """
    name, names = str(name_or_path), pack_names()
    if name in names:
        return parse_jsonl((_DATA / f"{name}.jsonl").read_bytes(), name, f"pack {name}")
    if name.endswith(".jsonl") or Path(name).is_file():
        return load_jsonl(name)
    raise WorkloadError(f"no workload {name!r}: neither a pack nor a file; {nearest(name, names)}")
