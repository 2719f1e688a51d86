"""Files: written whole or not at all, and read without surprises."""

import os
import re
import tempfile
from pathlib import Path
from typing import Any

import yaml

from draftgate.errors import ConfigError, InputError

__all__ = ["dump_yaml", "read_yaml", "write_atomic"]


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees the old bytes or the new ones, never a mix, also after a crash.

    Missing folders are made. The new file is readable by all; a symbolic link is replaced, not followed.

    Raises:
        InputError: the place cannot be written; an old file is whole, and nothing else is left behind.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        finally:
            Path(temporary).unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from error


def read_yaml(path: Path) -> Any:
    """The value in a YAML file, made of plain types; numbers such as 1e-3 are numbers, as in YAML 1.2.

    Raises:
        ConfigError: not readable, not YAML, a key given twice, or an alias or tag; names the file and the line.
    """
    try:
        return yaml.load(path.read_text("utf-8"), _Reader)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    # Beyond YAML's own errors: wrong encodings, impossible dates and endless numbers; nesting without end.
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        raise ConfigError(f"{path}: is not plain YAML: {_reason(error)}") from error


class _Reader(yaml.SafeLoader):
    """Refuses what makes a small file huge, a reader fail, or an edit have no effect."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or event.tag is not None:
            raise yaml.MarkedYAMLError(problem="aliases and tags are not read", problem_mark=event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        mapping = super().construct_mapping(node, deep)
        seen = set()
        for name, _ in node.value:
            key = self.construct_object(name)
            if key in seen:
                raise yaml.MarkedYAMLError(problem=f"'{key}' is given twice", problem_mark=name.start_mark)
            seen.add(key)
        return mapping


class _Writer(yaml.SafeDumper):
    """Quotes text that the reader would take for a number."""


# YAML 1.1, and so PyYAML, takes 1e-3 for text because it has no dot.
for _side in (_Reader, _Writer):
    _side.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+$"), list("-+0123456789")
    )


def dump_yaml(data: Any) -> bytes:
    """YAML of plain values, which `read_yaml` turns back into equal ones; keys keep their order."""
    text: str = yaml.dump(data, Dumper=_Writer, sort_keys=False, default_flow_style=None)
    return text.encode()


def _reason(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return " ".join(str(error).split())
