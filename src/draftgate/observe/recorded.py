"""What an engine records beside its own metrics: acceptance by token category from its trace, and what it dropped.

An engine's metrics know no token classes. Its trace does, so new segments of it are added up as they appear.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftgate.control.fetch import SourceError, fetch, own_route
from draftgate.errors import require
from draftgate.policy.category import Category

__all__ = ["Counts", "EngineStatus", "TraceTail"]

Counts = Mapping[str, tuple[int, int]]
"""Token category -> drafted tokens that were reached (all before them in the draft were kept), and those kept."""

_SEGMENT = re.compile(r"requests-(\d{6})\.parquet")
_STEPS = ("request", "drafted_n", "accepted", "category")


class TraceTail:
    """Follows a folder of traces, such as DRAFTGATE_TRACE of a vLLM server.

    Attributes:
        unusable: segments left out so far; fault: why the last of them was.
    """

    def __init__(self, folder: Path, from_start: bool = False) -> None:
        """Name a folder, which need not exist yet; what it holds already is passed over unless `from_start`.

        Raises:
            MissingExtraError: pyarrow is not installed.
        """
        self.unusable = 0
        self.fault: str | None = None
        self._arrow, self._parquet = require("pyarrow", "tune"), require("pyarrow.parquet", "tune")
        self._folder = folder
        self._seen = set() if from_start else set(self._segments())

    def poll(self) -> dict[str, Counts]:
        """What new segments hold, by workload. One that cannot be read is counted, and the others are."""
        found: dict[str, Counter[tuple[str, bool]]] = {}
        for path in self._segments():
            if path in self._seen:
                continue
            self._seen.add(path)
            try:
                self._read(path, found)
            except (self._arrow.ArrowException, OSError, ValueError, LookupError) as error:
                self.unusable += 1
                self.fault = f"{path}: {error}"
        return {workload: _by_category(counts) for workload, counts in found.items()}

    def _segments(self) -> list[Path]:
        """The requests files, which are written after the steps that belong to them."""
        return sorted(p for p in self._folder.glob("**/requests-*.parquet") if _SEGMENT.fullmatch(p.name))

    def _read(self, path: Path, found: "dict[str, Counter[tuple[str, bool]]]") -> None:
        requests = self._table(path, ["request", "workload"])
        steps = self._table(path.with_name(path.name.replace("requests", "steps")), list(_STEPS))
        drafted, accepted = steps["drafted_n"].to_numpy(), steps["accepted"].to_numpy()
        category = steps["category"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
        if len(category) != drafted.sum():
            raise ValueError("was recorded without its drafted tokens")
        position = np.arange(len(category)) - np.repeat(drafted.cumsum() - drafted, drafted)
        reached = position <= np.repeat(accepted, drafted)
        kept = position < np.repeat(accepted, drafted)
        names, number = _numbered(requests["request"].to_numpy(), requests["workload"].to_pylist())
        key = steps["request"].to_numpy()
        row = number[np.searchsorted(number[:, 0], key).clip(max=len(number) - 1)]
        if not np.array_equal(row[:, 0], key):
            raise ValueError("has steps of requests that are not in it")
        workload = np.repeat(row[:, 1], drafted)
        cell = (workload * len(Category) + np.minimum(category, Category.OTHER)) * 2 + kept
        counts = np.bincount(cell[reached], minlength=len(names) * len(Category) * 2).reshape(-1, len(Category), 2)
        for w, c, is_kept in np.argwhere(counts).tolist():
            into = found.setdefault(names[w], Counter())
            into[Category(c).name.lower(), bool(is_kept)] += int(counts[w, c, is_kept])

    def _table(self, path: Path, columns: list[str]) -> Any:
        return self._parquet.read_table(path, columns=columns, page_checksum_verification=True)


def _numbered(requests: NDArray[np.int64], workloads: Sequence[str]) -> tuple[list[str], NDArray[np.int64]]:
    """Names of workloads, and rows (request, number of its workload) sorted by request."""
    names = sorted(set(workloads))
    number = np.array([names.index(name) for name in workloads], np.int64)
    order = requests.argsort()
    return names, np.stack((requests[order], number[order]), axis=1)


def _by_category(counts: "Counter[tuple[str, bool]]") -> Counts:
    names = dict.fromkeys(name for name, _ in counts)
    return {name: (counts[name, False] + counts[name, True], counts[name, True]) for name in names}


class EngineStatus:
    """`/draftgate/status` of a vLLM server with draftgate: how many requests it recorded, and dropped by why."""

    def __init__(self, url: str, key: str | None = None, timeout_s: float = 5.0) -> None:
        """Name a server by its root URL.

        Args:
            key: the server's API key.

        Raises:
            ConfigError: it is no HTTP URL.
        """
        self._route = own_route(url, "status")
        self._key, self._timeout_s = key, timeout_s

    def poll(self) -> Mapping[str, int]:
        """Totals since the server started; empty when it has recorded nothing.

        Raises:
            SourceError: it cannot be reached, or its answer is not what this route gives.
        """
        text = fetch(self._route, self._timeout_s, key=self._key)
        try:
            traces = [runner["trace"] for rank in json.loads(text)["ranks"] for runner in rank["runners"]]
            totals: Counter[str] = Counter()
            for trace in traces:
                totals.update({str(name): _whole(n) for name, n in (trace or {}).items()})
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise SourceError(f"{self._route}: is not what draftgate answers there: {error!r}") from error
        return dict(totals)


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"counts must be whole numbers of 0 or more but got {value!r:.40}")
    return value
