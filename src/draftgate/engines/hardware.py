"""What figures were measured on, in words."""

import os
import platform
from pathlib import Path

__all__ = ["processor"]


def processor() -> str:
    """The processor's name, as the kernel gives it, and the number of CPUs."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
    return f"{name}, {os.cpu_count()} CPUs"
