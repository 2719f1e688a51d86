"""Host memory that a device copies into while the engine goes on, and moments on the device's own clock."""

import time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["Mark", "Ring", "mark", "seconds"]

Mark = Any  # time.perf_counter() on a CPU, else an event of the device


def mark(device: torch.device) -> Mark:
    """This moment, in the order of the device's work; the host does not wait."""
    if device.type == "cpu":
        return time.perf_counter()
    event = torch.Event(device, enable_timing=True)
    event.record()
    return event


def seconds(start: Mark, end: Mark) -> float:
    """Seconds between two marks; waits until the device has passed the second."""
    if isinstance(start, float):
        return float(end - start)
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3


class Ring:
    """Memory of `words` 32-bit words that one thread fills and another empties, in the same order.

    Attributes:
        memory: the words as a tensor, pinned so that copies from a device can be asynchronous.
        array: the same words in numpy.
    """

    def __init__(self, words: int, pinned: bool) -> None:
        self.memory = torch.empty(words, dtype=torch.int32, pin_memory=pinned)
        self.array: NDArray[np.int32] = self.memory.numpy()
        # Words ever claimed and ever freed; the first is written by the filling thread only, the second by the other.
        self._claimed = self._freed = 0

    def claim(self, words: int) -> tuple[int, int] | None:
        """Where `words` free words in a row start, and what `free` takes once they are read; None when it is full."""
        size, freed = len(self.array), self._freed
        start = self._claimed % size
        skipped = size - start if start + words > size else 0
        end = self._claimed + skipped + words
        if words > size or (end - freed > size and freed < self._claimed):  # an empty ring has room, skipped or not
            return None
        self._claimed = end
        return (0 if skipped else start), end

    def free(self, end: int) -> None:
        """Give back the words up to the end of a claim."""
        self._freed = end
