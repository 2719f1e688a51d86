"""Named policies: the source article's settings as it gives them, and the defaults of engines, for comparison.

The article recommends thresholds of .5 to .9 for code. Under greedy decoding a threshold of .5 or more can only accept
the target's argmax, so it is stricter than exact match: measure before using one (`draftgate bench --arm code`).
"""

from collections.abc import Mapping

from draftgate.errors import ConfigError, nearest
from draftgate.policy.length import Fixed
from draftgate.policy.policy import NONE, Policy

__all__ = ["PRESETS", "preset", "source_presets"]

_K = 5  # speculative tokens of the article's example

PRESETS: Mapping[str, tuple[Policy, str]] = {
    policy.name: (policy, about)
    for policy, about in (
        (NONE, "no speculation: the baseline of every comparison"),
        (Policy("exact", length=Fixed(3)), "exact match, three drafted tokens: llama.cpp's default draft length"),
        (Policy("lossless", "lossless", length=Fixed(5)), "lossless rejection sampling, five drafted tokens"),
        (Policy("code", "threshold", 0.65, length=Fixed(_K)), "article: code, tau .60 to .75"),
        (Policy("code-low", "threshold", 0.60, length=Fixed(_K)), "article: code, low end"),
        (Policy("code-high", "threshold", 0.75, length=Fixed(_K)), "article: code, high end"),
        (Policy("chat", "threshold", 0.55, length=Fixed(_K)), "article: chat, tau .50 to .60"),
        (Policy("structured", "threshold", 0.80, length=Fixed(_K)), "article: JSON, XML, function calls, .75 to .90"),
        (
            Policy("syntax-aware", "threshold", 0.65, category={"safe": -0.10, "structural": 0.15}, length=Fixed(_K)),
            "article: .55 on safe, .65 on normal, .80 on structural tokens",
        ),
        (
            Policy("position", "threshold", position=((100, 0.60), (500, 0.75)), length=Fixed(_K)),
            "article: .60 for the first 100 tokens, then linear to .75 at 500",
        ),
        (
            Policy("code-or-lossless", "threshold-or-lossless", 0.65, length=Fixed(_K)),
            "the article's code threshold, added to the lossless test instead of replacing it",
        ),
        (
            Policy("loose", "threshold-or-lossless", 0.1, length=Fixed(_K)),
            "a threshold low enough to accept more than exact match under greedy decoding; lossy",
        ),
    )
}


def preset(name: str) -> Policy:
    """The preset of that name.

    Raises:
        ConfigError: no such preset.
    """
    if name not in PRESETS:
        raise ConfigError(f"unknown preset '{name}'; {nearest(name, PRESETS)}")
    return PRESETS[name][0]


def source_presets(workload: str) -> list[Policy]:
    """The source article's settings for a workload of this name; those for code when it names no such workload."""
    if workload == "chat":
        return [preset("chat")]
    if workload in ("json-records", "tool-calls"):
        return [preset("structured"), preset("syntax-aware")]
    return [preset("code"), preset("syntax-aware")]
