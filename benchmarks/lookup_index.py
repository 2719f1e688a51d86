"""Time and memory of a lookup draft per token of text, from 1k to 32k tokens, against a scan for the last n-gram.

python benchmarks/lookup_index.py [--longest 32768] [--k 7]

The text is what an engine meets: tokens of a small vocabulary with long repeats of earlier parts. At each length, 256
tokens are added one at a time and a draft is proposed behind each. The rival scans backwards for the latest earlier
occurrence of the last three tokens, then of two, then of one, as a first version would; where nothing matches it reads
the whole text, and half of this text matches nothing. Seconds are of CPU time. Memory is what tracemalloc
counts for an index of the whole text.
"""

import argparse
import time
import tracemalloc
from collections.abc import Callable, Sequence

import numpy as np

from draftgate.policy.lookup import SuffixLookup

ADDED = 256
ORDERS = (3, 2, 1)


def text(n: int, vocabulary: int = 50_000, repeated: float = 0.5) -> list[int]:
    """Tokens of which about half repeat an earlier stretch of 8 to 64."""
    rng = np.random.default_rng(n)
    out: list[int] = rng.integers(vocabulary, size=64).tolist()
    while len(out) < n:
        length = int(rng.integers(8, 65))
        if rng.random() < repeated:
            start = int(rng.integers(max(1, len(out) - length)))
            out += out[start : start + length]
        else:
            out += rng.integers(vocabulary, size=length).tolist()
    return out[:n]


def scan(tokens: Sequence[int], k: int) -> list[int]:
    """What followed the latest earlier occurrence of the last three, two or one tokens."""
    n = len(tokens)
    for order in ORDERS:
        last = tokens[n - order :]
        for start in range(n - order - 1, -1, -1):
            if tokens[start] == last[0] and tokens[start : start + order] == last:
                return list(tokens[start + order : start + order + k])
    return []


def per_token_us(step: Callable[[int], object], added: Sequence[int]) -> float:
    begin = time.process_time()
    for token in added:
        step(token)
    return 1e6 * (time.process_time() - begin) / len(added)


def indexed(tokens: Sequence[int], added: Sequence[int], k: int) -> float:
    index = SuffixLookup(tokens)

    def step(token: int) -> object:
        index.extend((token,))
        return index.propose(k)

    return per_token_us(step, added)


def scanned(tokens: Sequence[int], added: Sequence[int], k: int) -> float:
    grown = list(tokens)

    def step(token: int) -> object:
        grown.append(token)
        return scan(grown, k)

    return per_token_us(step, added)


def bytes_per_token(tokens: Sequence[int]) -> float:
    tracemalloc.start()
    index = SuffixLookup(tokens)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return used / len(index.tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--longest", type=int, default=32_768)
    parser.add_argument("--k", type=int, default=7)
    a = parser.parse_args()
    print(f"{'tokens':>8}{'index us':>10}{'scan us':>10}{'ratio':>8}{'build s':>9}{'bytes/token':>13}")
    n, first = 1024, 0.0
    while n <= a.longest:
        whole = text(n + ADDED)
        tokens, added = whole[:n], whole[n:]
        begin = time.process_time()
        SuffixLookup(tokens)
        built = time.process_time() - begin
        index_us = min(indexed(tokens, added, a.k) for _ in range(5))
        scan_us = scanned(tokens, added, a.k)
        first = first or index_us
        print(
            f"{n:8}{index_us:10.2f}{scan_us:10.1f}{scan_us / index_us:8.0f}{built:9.3f}{bytes_per_token(tokens):13.0f}"
        )
        n *= 2
    print(f"index, cost a token at the longest over the shortest: {index_us / first:.2f}")


if __name__ == "__main__":
    main()
