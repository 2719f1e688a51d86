"""How constrained decoding changes what a draft is worth: acceptance by token category with and without the grammar.

    python benchmarks/constrained.py [--draft lookup|NAME] [--prompts 12] [--k 7]

The target decodes greedily on the packs that ask for JSON, freely and under each prompt's schema or tools, and drafts
of k tokens are verified exactly. Also printed: outputs that finished and are not valid JSON, and how many texts
speculation changed. Acceptance does not depend on what else the machine does.
"""

import argparse
import json
from collections import Counter
from collections.abc import Sequence

import numpy as np

from draftgate.engines.base import Completion, Sampling
from draftgate.engines.llamacpp.engine import LOOKUP, LlamaCpp
from draftgate.engines.llamacpp.models import resolve
from draftgate.policy.category import Category
from draftgate.policy.length import Fixed
from draftgate.policy.policy import NONE, Policy
from draftgate.workload.packs import load

PACKS = ("json-records", "tool-calls")


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def by_category(runs: Sequence[Completion]) -> dict[str, tuple[int, int]]:
    """Kept and reached drafted tokens of each category."""
    kept: Counter[int] = Counter()
    reached: Counter[int] = Counter()
    for step in (step for run in runs for step in run.steps if step.drafted is not None):
        n = min(step.accepted + 1, step.drafted_n)
        reached.update(step.drafted.category[:n].tolist())
        kept.update(step.drafted.category[: step.accepted].tolist())
    return {Category(c).name.lower(): (kept[c], n) for c, n in sorted(reached.items())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--draft", default=LOOKUP)
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--k", type=int, default=7)
    a = parser.parse_args()
    engine = LlamaCpp(resolve("smollm2-135m"), a.draft if a.draft == LOOKUP else resolve(a.draft))
    policy = Policy("exact", "exact", length=Fixed(a.k))
    for pack in PACKS:
        print(f"{pack}, {a.prompts} prompts, draft {a.draft}, k = {a.k}")
        for constrained in (False, True):
            requests = [
                engine.encode(p, pack, 96, Sampling(constrained=constrained)) for p in load(pack).prompts[: a.prompts]
            ]
            plain = [engine.generate([r], NONE)[0] for r in requests]
            runs = [engine.generate([r], policy, record=True)[0] for r in requests]
            steps = [step for run in runs for step in run.steps]
            drafted, accepted = sum(s.drafted_n for s in steps), sum(s.accepted for s in steps)
            ended = [run for run in runs if run.finish == "stop"]
            shares = ", ".join(f"{name} {k}/{n} {k / n:.0%}" for name, (k, n) in by_category(runs).items())
            print(
                f"  {'constrained' if constrained else 'free':12} accepted {accepted}/{drafted} "
                f"{accepted / drafted:.0%}, length {np.mean([s.committed for s in steps]):.2f}; ended {len(ended)}, "
                f"not JSON {sum(not is_json(run.text) for run in ended)}; texts that differ from no speculation "
                f"{sum(x.tokens != y.tokens for x, y in zip(plain, runs, strict=True))}\n    {shares}"
            )
    engine.close()


if __name__ == "__main__":
    main()
