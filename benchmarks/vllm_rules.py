"""Time of vLLM's V1 rejection sampler with draftgate's rules, relative to vLLM's own, on the CPU.

    VENV/bin/python benchmarks/vllm_rules.py            # VENV from tools/vllm_env.py; six minutes, 8 GB

Both run the whole `RejectionSampler.forward`, as an engine does each step; only its `rejection_sample` differs. The two
take turns on the same logits, and the figure is the median over turns of the ratio of neighbours. Drafts agree with the
target's first choice 7 times in 10 (small batches go through ten drafts for it); thresholds are .1. "own us" is vLLM's
own time a step. With one thread, seconds are those of the processor.
"""

import argparse
import ctypes
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from itertools import cycle

import torch

warnings.filterwarnings("ignore", category=FutureWarning)  # vLLM's kernel registry looks at every attribute of torch

from vllm.platforms import current_platform  # noqa: E402
from vllm.v1.sample import rejection_sampler  # noqa: E402
from vllm.v1.sample.logits_processor import LogitsProcessors  # noqa: E402
from vllm.v1.sample.metadata import SamplingMetadata  # noqa: E402
from vllm.v1.sample.sampler import Sampler  # noqa: E402
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata  # noqa: E402

from draftgate.engines.vllm import cpu_fix  # noqa: E402
from draftgate.engines.vllm.tables import PolicyTables  # noqa: E402
from draftgate.engines.vllm.v1 import verify_v1  # noqa: E402
from draftgate.engines.vllm.verify import Rows  # noqa: E402
from draftgate.policy.policy import Policy  # noqa: E402

Step = Callable[[], object]
OWN = rejection_sampler.rejection_sample

RULES = {
    "lossless": Policy("lossless", "lossless"),
    "or-lossless": Policy("or-lossless", "threshold-or-lossless", 0.1),
    "threshold": Policy("threshold", "threshold", 0.1),
    "typical": Policy("typical", "typical", 0.1),
}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--batches", type=int, nargs="+", default=[1, 8, 64, 256])
    options.add_argument("--drafts", type=int, nargs="+", default=[1, 5, 8])
    options.add_argument("--vocabularies", type=int, nargs="+", default=[49_152, 151_936])
    options.add_argument("--turns", type=int, default=7)
    options.add_argument("--threads", type=int, default=1)
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    keep_memory()
    cpu_fix.repair()
    current_platform.register_triton_kernel_overrides()
    print(f"{'':8} {'batch':>5} {'k':>2} {'vocab':>6} {'own us':>9} " + " ".join(f"{name:>11}" for name in RULES))
    for greedy in (True, False):
        for vocabulary in given.vocabularies:
            for batch in given.batches:
                for k in given.drafts:
                    line(greedy, batch, k, vocabulary, given.turns)


def keep_memory() -> None:
    """Stop glibc from giving large blocks back, else page faults decide; servers preload tcmalloc for that."""
    for setting, value in ((-1, -1), (-4, 0)):  # M_TRIM_THRESHOLD: never; M_MMAP_MAX: no block is mapped by itself
        ctypes.CDLL(None).mallopt(setting, value)


def line(greedy: bool, batch: int, k: int, vocabulary: int, turns: int) -> None:
    steps = case(greedy, batch, k, vocabulary)
    repeat = variants(batch, k) * max(1, 20 // (batch * k))
    own, ratios = compare(steps, repeat, turns)
    figures = " ".join(f"{ratio:11.2f}" for ratio in ratios)
    print(
        f"{'greedy' if greedy else 'sampled':8} {batch:5} {k:2} {vocabulary:6} {own * 1e6:9.0f} {figures}", flush=True
    )


def variants(batch: int, k: int) -> int:
    """Drafts that a case goes through: few tokens cannot agree 7 times in 10 at once."""
    return 10 if batch * k < 10 else 1


def compare(steps: Sequence[Step], repeat: int, turns: int) -> tuple[float, list[float]]:
    """Seconds of the first step, and the ratio of each other one to it."""
    for step in steps:
        step()
    times = [[timed(step, repeat) for step in steps] for _ in range(turns)]
    ratios = [statistics.median(turn[i] / turn[0] for turn in times) for i in range(1, len(steps))]
    return statistics.median(turn[0] for turn in times), ratios


def timed(step: Step, repeat: int) -> float:
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter  # other processes do not count
    start = clock()
    for _ in range(repeat):
        step()
    return (clock() - start) / repeat


def case(greedy: bool, batch: int, k: int, vocabulary: int) -> list[Step]:
    """vLLM's own step, then one for each of `RULES`, all on one set of logits."""
    logits = torch.randn(batch * (k + 1), vocabulary, generator=torch.Generator().manual_seed(0)).mul_(3)
    first, second = logits.topk(2).indices.view(batch, k + 1, 2)[:, :k].unbind(-1)
    n = variants(batch, k) * batch * k
    agree = torch.randperm(n, generator=torch.Generator().manual_seed(1)) % 10 < 7
    specs = [spec_of(torch.where(own, first, second)) for own in agree.view(-1, batch, k)]
    sampling, sampler = metadata(greedy, batch), rejection_sampler.RejectionSampler(Sampler())

    def step(rule: Callable[..., torch.Tensor]) -> Step:
        turns = cycle(specs)

        def run() -> object:
            rejection_sampler.rejection_sample = rule
            return sampler(next(turns), None, logits, sampling)

        return run

    return [step(OWN), *(step(patched(policy, batch)) for policy in RULES.values())]


def spec_of(drafts: torch.Tensor) -> SpecDecodeMetadata:
    batch, k = drafts.shape
    spec = SpecDecodeMetadata.make_dummy(drafts.tolist(), torch.device("cpu"))
    places = torch.arange(batch * (k + 1)).view(batch, k + 1)
    spec.target_logits_indices, spec.bonus_logits_indices = places[:, :k].flatten(), places[:, k].flatten()
    return spec


def patched(policy: Policy, batch: int) -> Callable[..., torch.Tensor]:
    """A batch of one policy, as the plugin has it."""
    tables = PolicyTables("cpu")
    tables.set(0, policy)
    zeros = torch.zeros(batch, dtype=torch.int64)
    rows = Rows(slot=zeros, language=zeros, offset=None, only=0)

    def rule(*arguments: object, use_fp64_gumbel: bool, **synthetic: object) -> torch.Tensor:
        return verify_v1(tables, rows, *arguments, use_fp64_gumbel).tokens

    return rule


def metadata(greedy: bool, batch: int) -> SamplingMetadata:
    none = torch.zeros(batch)
    return SamplingMetadata(
        temperature=None if greedy else none + 0.8,
        all_greedy=greedy,
        all_random=not greedy,
        top_p=None,
        top_k=None,
        generators={},
        max_num_logprobs=None,
        no_penalties=True,
        prompt_token_ids=None,
        frequency_penalties=none,
        presence_penalties=none,
        repetition_penalties=none,
        output_token_ids=[[] for _ in range(batch)],
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=LogitsProcessors(),
    )


if __name__ == "__main__":
    main()
