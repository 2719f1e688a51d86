"""What a request tells vLLM beside its prompt: its stream of random numbers, and the plugin's arguments (`rows.py`)."""

import zlib

from draftgate.engines.base import Request

__all__ = ["extra_arguments", "seed_of"]


def seed_of(request: Request) -> int | None:
    """Seed of a request's own stream, whatever else runs; None when it draws nothing.

    32 bits: torch's generator on a CPU takes no more of a seed, and drops the rest in silence.
    """
    sampling = request.sampling
    return None if sampling.greedy else zlib.crc32(f"{sampling.seed} {request.id}".encode())


def extra_arguments(request: Request) -> dict[str, str]:
    """Arguments that name the prompt, its workload and its language."""
    named = {"prompt": request.id, "workload": request.workload, "language": request.language}
    return {f"draftgate_{name}": value for name, value in named.items() if value}
