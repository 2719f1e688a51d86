from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from draftgate.errors import ConfigError
from draftgate.policy.lookup import SuffixLookup

TEXTS = st.integers(1, 4).flatmap(lambda n: st.lists(st.integers(0, n - 1), max_size=40))
K = 7


def ends_of_match(text: list[int]) -> tuple[int, list[int]]:
    """Length of the longest suffix that also ends earlier, and where it does; by trying all."""
    for n in range(len(text) - 1, 0, -1):
        ends = [end for end in range(n, len(text)) if text[end - n : end] == text[-n:]]
        if ends:
            return n, ends
    return 0, []


def continuation(text: list[int], end: int, k: int) -> list[int]:
    """What followed `end`, over and over when the text runs out."""
    return [text[end + i % (len(text) - end)] for i in range(k)]


@given(text=TEXTS)
@example(text=[0] * 30)
@example(text=[0, 1] * 15)
def test_proposes_what_followed_an_earlier_occurrence_of_the_longest_repeated_suffix(text: list[int]) -> None:
    match, ends = ends_of_match(text)
    found, length = SuffixLookup(text).propose(K)
    assert length == match
    assert found in ([continuation(text, end, K) for end in ends] or [[]])


@pytest.mark.parametrize("kinds", [1, 2, 3, 4])
def test_so_does_every_beginning_of_a_longer_text(kinds: int) -> None:
    text = np.random.default_rng(kinds).integers(0, kinds, 100).tolist()
    lookup = SuffixLookup()
    for n, token in enumerate(text, 1):
        lookup.extend([token])
        match, ends = ends_of_match(text[:n])
        found, length = lookup.propose(K)
        assert length == match
        assert found in ([continuation(text[:n], end, K) for end in ends] or [[]])


@given(text=TEXTS, data=st.data())
def test_a_text_in_pieces_is_the_same_text(text: list[int], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    lookup = SuffixLookup()
    for start, stop in pairwise([0, *cuts, len(text)]):
        lookup.extend(text[start:stop])
        lookup.propose(K)  # looking does not change anything
        prefix = SuffixLookup(text[:stop])
        assert lookup.tokens == text[:stop]
        assert all(lookup.propose(k) == prefix.propose(k) for k in range(K))


@given(text=TEXTS, k=st.integers(0, 60))
def test_a_shorter_draft_is_the_beginning_of_a_longer_one(text: list[int], k: int) -> None:
    lookup = SuffixLookup(text)
    short, long = lookup.propose(k)[0], lookup.propose(k + 5)[0]
    assert short == long[:k]
    assert len(short) in (0, k)


@given(text=TEXTS, least=st.integers(1, 6))
def test_short_matches_propose_nothing(text: list[int], least: int) -> None:
    all_of_them = SuffixLookup(text).propose(K)
    assert SuffixLookup(text, least).propose(K) == (all_of_them if all_of_them[1] >= least else ([], 0))


@given(text=TEXTS.filter(len))
@example(text=[0, 1, 1] + [2, 1] * 20)
def test_the_index_has_at_most_two_states_and_three_transitions_a_token(text: list[int]) -> None:
    lookup = SuffixLookup(text)
    assert len(lookup._length) <= 2 * len(text)
    assert sum(map(len, lookup._next)) <= 3 * len(text)


def test_a_long_run_is_matched_whole_and_continued() -> None:
    lookup = SuffixLookup([5] * 20_000)
    assert lookup.propose(3) == ([5, 5, 5], 19_999)


def test_the_copy_wraps_where_the_text_ends() -> None:
    assert SuffixLookup([9, 1, 2, 1, 2]).propose(5) == ([1, 2, 1, 2, 1], 2)


def test_the_nearest_of_several_occurrences_is_followed() -> None:
    assert SuffixLookup([1, 7, 1, 8, 1, 9, 1]).propose(1) == ([9], 1)


def test_nothing_repeats_in_an_empty_or_new_text() -> None:
    assert SuffixLookup().propose(3) == ([], 0)
    assert SuffixLookup([1, 2, 3]).propose(3) == ([], 0)
    assert SuffixLookup([1, 1]).propose(0) == ([], 0)


def test_what_is_proposed_can_be_changed_without_harm() -> None:
    lookup = SuffixLookup([1, 2, 1])
    lookup.propose(2)[0].append(99)
    assert lookup.propose(2) == ([2, 1], 1)
    assert lookup.tokens == [1, 2, 1]


def test_evidence_is_the_context_behind_each_token() -> None:
    assert SuffixLookup.evidence(4, 3).tolist() == [4.0, 5.0, 6.0]
    assert SuffixLookup.evidence(0, 0).tolist() == []


def test_an_empty_match_cannot_be_asked_for() -> None:
    with pytest.raises(ConfigError, match="must be >= 1 token but got 0"):
        SuffixLookup([1, 2, 1], least=0)


@given(text=TEXTS)
def test_strength_divides_the_match_by_what_followed_it(text: list[int]) -> None:
    match, ends = ends_of_match(text)
    strength = SuffixLookup(text).strength
    assert strength == pytest.approx(match / len({text[end] for end in ends}) if match else 0)
