"""What vLLM is not asked to do: refused before anything is sent, with what to change."""

from collections.abc import Sequence

from draftgate.engines.base import Request, Sampling
from draftgate.errors import ConfigError
from draftgate.policy.length import Fixed
from draftgate.policy.policy import Policy

__all__ = ["check_batch", "check_request", "check_sampling"]


def check_sampling(sampling: Sampling) -> None:
    """Refuse what vLLM ignores or draftgate does not hand on.

    Raises:
        ConfigError: min-p, which vLLM drops under speculation, or constrained decoding.
    """
    if sampling.min_p:
        raise ConfigError(
            "vLLM ignores min-p under speculative decoding, so arms would differ in their law; leave it out"
        )
    if sampling.constrained:
        raise ConfigError("constrained decoding is available with the embedded engine only; leave --constrained out")


def check_request(request: Request, n_ctx: int) -> None:
    """Refuse a request that does not fit.

    Raises:
        ConfigError: no prompt, no output, or more of both than the context holds.
    """
    prompt, output = len(request.tokens), request.max_tokens
    if not prompt or output < 1:
        raise ConfigError(f"prompt '{request.id}': needs at least one prompt token and one output token")
    if prompt + output > n_ctx:
        raise ConfigError(
            f"prompt '{request.id}': {prompt} prompt tokens and {output} output tokens do not fit the context of "
            f"{n_ctx}; shorten it, or start vLLM with a longer context"
        )


def check_batch(requests: Sequence[Request], policy: Policy, n_ctx: int, max_batch: int, longest: int) -> None:
    """Refuse a batch or a policy that cannot run.

    Args:
        longest: drafted tokens that vLLM was started with.

    Raises:
        ConfigError: the batch is empty or too large, a request does not fit, or no vLLM can run the policy.
    """
    if not 1 <= len(requests) <= max_batch:
        raise ConfigError(f"batch must be 1 to {max_batch} requests but got {len(requests)}")
    for request in requests:
        check_request(request, n_ctx)
    if policy.length.most > longest:
        raise ConfigError(
            f"policy '{policy.name}': drafts up to {policy.length.most} tokens, but vLLM was started with {longest}; "
            "lower k, or start it with a greater num_speculative_tokens"
        )
    if not isinstance(policy.length, Fixed):
        raise ConfigError(
            f"policy '{policy.name}': vLLM's drafters do not say how sure they are of a token, so a draft can only "
            "have a fixed length; use length: fixed"
        )
    if policy.draft_temperature or policy.draft_top_p != 1.0:
        raise ConfigError(
            f"policy '{policy.name}': how drafts are drawn is set when vLLM starts (draft_sample_method); remove "
            "temperature and top_p from its draft"
        )
