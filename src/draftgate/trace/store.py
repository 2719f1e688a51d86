"""A trace on disk: a folder of Parquet segments that any query engine reads, and the setup they were recorded on.

    trace/
      setup.json              what the figures depend on
      requests-<n>.parquet    one row a request
      steps-<n>.parquet       one row a step; drafted tokens as list columns of one length

A pair of segments is written to temporary names and renamed, the requests last: a request that can be read has all its
steps. Steps that a crash left without their requests are not read, and the next append replaces them. Appending never
touches a complete pair. One writer at a time; any number of readers.
"""

import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from draftgate.errors import TraceError, require
from draftgate.files import write_atomic
from draftgate.trace.records import DRAFTED_TYPES, Drafted, RequestRecord, StepRecord
from draftgate.trace.setup import Setup

__all__ = ["TraceStore"]

_VERSION = "1"
_SEGMENT = re.compile(r"requests-(\d{6})\.parquet")


def _parquet() -> tuple[ModuleType, ModuleType]:
    return require("pyarrow", "tune"), require("pyarrow.parquet", "tune")


def _request_schema(pa: ModuleType) -> Any:
    tokens = pa.list_(pa.int32())
    return pa.schema(
        [
            ("request", pa.int64()),
            ("prompt_id", pa.string()),
            ("workload", pa.string()),
            ("language", pa.string()),
            ("policy", pa.string()),
            ("prompt_tokens", tokens),
            ("output_tokens", tokens),
            ("finish", pa.string()),
            ("prefill_s", pa.float64()),
            ("decode_s", pa.float64()),
            ("sampling", pa.string()),
        ],
        {"draftgate": _VERSION},
    )


def _step_schema(pa: ModuleType) -> Any:
    whole = [(name, pa.int32()) for name in ("step", "offset", "batch")]
    counts = [(name, pa.int32()) for name in ("drafted_n", "accepted", "committed")]
    seconds = [(name, pa.float64()) for name in ("draft_s", "verify_s")]
    lists = [(name, pa.list_(pa.from_numpy_dtype(dtype))) for name, dtype in DRAFTED_TYPES.items()]
    return pa.schema([("request", pa.int64()), *whole, *seconds, *counts, *lists], {"draftgate": _VERSION})


def _request_row(record: RequestRecord) -> dict[str, Any]:
    row = {f.name: getattr(record, f.name) for f in fields(record)}
    return row | {"sampling": json.dumps(dict(record.sampling), sort_keys=True)}


def _step_row(record: StepRecord) -> dict[str, Any]:
    row = {f.name: getattr(record, f.name) for f in fields(record) if f.name != "drafted"}
    drafted = record.drafted
    return row | {name: None if drafted is None else getattr(drafted, name) for name in DRAFTED_TYPES}


class TraceStore:
    """Reads and appends one trace folder."""

    def __init__(self, path: Path) -> None:
        """Name a folder; nothing is read or written yet."""
        self.path = path

    @classmethod
    def create(cls, path: Path, setup: Setup) -> "TraceStore":
        """Open a trace for appending, new or of the same setup.

        Raises:
            TraceError: the folder holds a trace of another setup.
            InputError: the place cannot be written.
        """
        store = cls(path)
        if (path / "setup.json").exists():
            setup.require_same(store.setup(), str(path))
        else:
            write_atomic(path / "setup.json", json.dumps(asdict(setup), indent=1).encode())
        return store

    def setup(self) -> Setup:
        """The setup of the trace.

        Raises:
            TraceError: this is no trace folder.
        """
        try:
            return Setup.from_mapping(json.loads((self.path / "setup.json").read_text("utf-8")))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise TraceError(
                f"{self.path}: is no trace: it has no setup.json; pass a folder that 'tune' recorded"
            ) from error
        except (ValueError, OSError, TraceError) as error:
            raise TraceError(f"{self.path}/setup.json: cannot be read: {error}") from error

    def _segments(self) -> list[int]:
        found = (_SEGMENT.fullmatch(p.name) for p in self.path.glob("requests-*.parquet"))
        return sorted(int(match[1]) for match in found if match)

    def append(self, pairs: Sequence[tuple[RequestRecord, Sequence[StepRecord]]]) -> None:
        """Add finished requests with their steps as one pair of segments; nothing when there are none.

        Raises:
            InputError: the place cannot be written, for instance because the disk is full.
        """
        if not pairs:
            return
        pa, _ = _parquet()
        number = max(self._segments(), default=0) + 1
        steps = [_step_row(step) for _, rows in pairs for step in rows]
        requests = [_request_row(request) for request, _ in pairs]
        self._write(self.path / f"steps-{number:06}.parquet", pa.Table.from_pylist(steps, _step_schema(pa)))
        self._write(self.path / f"requests-{number:06}.parquet", pa.Table.from_pylist(requests, _request_schema(pa)))

    def _write(self, path: Path, table: Any) -> None:
        _, pq = _parquet()
        buffer = io.BytesIO()
        pq.write_table(table, buffer, compression="zstd", write_page_checksum=True)
        write_atomic(path, buffer.getvalue())

    def _read(self, path: Path, schema: Any) -> Any:
        pa, pq = _parquet()
        try:
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                table = file.read()
        except (pa.ArrowException, OSError, ValueError) as error:  # ValueError: names in the footer that are not UTF-8
            raise TraceError(
                f"{path}: cannot be read: {error}; restore it, or delete this pair of segments and record again"
            ) from error
        found = (table.schema.metadata or {}).get(b"draftgate", b"").decode("utf-8", "replace")
        if found != _VERSION:
            raise TraceError(
                f"{path}: is a trace of version {found or 'unknown'}; this draftgate reads version {_VERSION}; "
                "record again, or read it with the draftgate that wrote it"
            )
        if not table.schema.equals(schema):
            raise TraceError(f"{path}: its columns are not those of a version {_VERSION} trace; record again")
        return table

    def tables(self) -> tuple[Any, Any]:
        """All requests and all steps as Arrow tables, in the order they were appended.

        Raises:
            TraceError: this is no trace folder, it holds no segment, or one cannot be read.
        """
        pa, _ = _parquet()
        self.setup()
        numbers = self._segments()
        if not numbers:
            raise TraceError(f"{self.path}: holds no finished request yet; record into it first")
        kinds = (("requests", _request_schema(pa)), ("steps", _step_schema(pa)))
        requests, steps = (
            pa.concat_tables(self._read(self.path / f"{kind}-{n:06}.parquet", schema) for n in numbers)
            for kind, schema in kinds
        )
        return requests, steps

    def requests(self) -> list[RequestRecord]:
        """All finished requests, in the order they were appended; empty for a trace without any.

        Raises:
            TraceError: this is no trace folder, or a segment cannot be read.
        """
        self.setup()
        if not self._segments():
            return []
        rows = self.tables()[0].to_pylist()
        return [
            RequestRecord(
                **row
                | {
                    "prompt_tokens": np.array(row["prompt_tokens"], np.int32),
                    "output_tokens": np.array(row["output_tokens"], np.int32),
                    "sampling": json.loads(row["sampling"]),
                }
            )
            for row in rows
        ]

    def steps(self) -> Iterator[StepRecord]:
        """All steps, in the order they were appended; none for a trace without finished requests.

        Raises:
            TraceError: this is no trace folder, or a segment cannot be read.
        """
        self.setup()
        if self._segments():
            for row in self.tables()[1].to_pylist():
                lists = {name: row.pop(name) for name in DRAFTED_TYPES}
                yield StepRecord(**row, drafted=_drafted(lists))


def _drafted(lists: dict[str, Sequence[Any] | None]) -> Drafted | None:
    if lists["tokens"] is None:
        return None
    return Drafted(**{name: np.array(lists[name], dtype) for name, dtype in DRAFTED_TYPES.items()})
