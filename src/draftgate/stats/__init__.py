"""How sure a figure is: intervals, paired comparison that may be looked at any time, verdicts.

    proportion   Wilson's interval of a share, and how many outputs a promise needs
    sequence     anytime-valid interval of a mean
    betting      anytime-valid evidence about the mean of bounded values, such as valid or not
    verdict      paired speedup, and better / worse / not worse / inconclusive
    bootstrap    interval of a ratio of sums over requests
    drift        alarms when the mean of a stream rises

Assumptions, coverage and power are in docs/statistics.md.
"""

from draftgate.stats.betting import Tally
from draftgate.stats.bootstrap import ratio_interval
from draftgate.stats.drift import Cusum, PageHinkley
from draftgate.stats.proportion import needed, wilson, wilson_interval
from draftgate.stats.sequence import PHI, Interval, MeanSequence, mean_sequence, running
from draftgate.stats.verdict import Verdict, compare, speedup

__all__ = [
    "PHI",
    "Cusum",
    "Interval",
    "MeanSequence",
    "PageHinkley",
    "Tally",
    "Verdict",
    "compare",
    "mean_sequence",
    "needed",
    "ratio_interval",
    "running",
    "speedup",
    "wilson",
    "wilson_interval",
]
