"""What a program may use, and how it ended."""

from dataclasses import dataclass, fields

from draftgate.errors import ConfigError

__all__ = ["Limits", "Outcome"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one cell may use.

    Attributes:
        wall_s: seconds from start to end, whatever the processes do meanwhile.
        cpu_s: seconds of CPU time of each process.
        memory_bytes: address space of each process, and resident memory of all of them together, looked at every 50 ms.
        processes: processes and threads at one time.
        output_bytes: stdout and stderr together.
        tmp_bytes: what fits into the one writable place, and the largest file.

    Raises:
        ConfigError: a limit is not positive.
    """

    wall_s: float = 10.0
    cpu_s: int = 10
    memory_bytes: int = 1 << 30
    processes: int = 32
    output_bytes: int = 1 << 20
    tmp_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        for each in fields(self):
            if not getattr(self, each.name) > 0:
                raise ConfigError(f"limit {each.name} must be above 0 but got {getattr(self, each.name)}")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a program ended.

    Attributes:
        kind: "ok" (by itself, status 0), "failed" (another status), "killed" (by a signal, such as a crash), or the
            limit that ended it: "timeout", "memory", "output". "ok" is no verdict: a program chooses its status.
        exit: status as a shell gives it: 128 + n for signal n.
        stdout: what it wrote, cut at the limit; bytes that are no UTF-8 are replaced.
        stderr: the same.
        seconds: from start to end.
    """

    kind: str
    exit: int
    stdout: str
    stderr: str
    seconds: float
