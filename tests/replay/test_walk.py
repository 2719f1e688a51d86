"""The renewal walk against a plain loop, token by token."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftgate.replay.walk import Pieces, product_limit, walk_fixed, walk_varied

FIELDS = ("at_risk", "passed", "drafted", "open_end", "lossy", "given_up")


@st.composite
def recordings(draw):
    """(kept, exact, margin, drafted_n, request, R) of up to 12 steps of up to 6 tokens, and a seed for lengths."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    most, steps, n_requests = draw(st.integers(0, 6)), draw(st.integers(0, 12)), draw(st.integers(1, 4))
    exact = rng.random((most, steps)) < 0.7
    kept = exact | (rng.random((most, steps)) < 0.3) if draw(st.booleans()) else rng.random((most, steps)) < 0.8
    margin = rng.exponential(size=(most, steps)).astype(np.float32)
    margin[rng.random(margin.shape) < 0.1] = np.inf
    drafted_n = rng.integers(0, most + 1, steps).astype(np.int32)
    request = np.sort(rng.integers(0, n_requests, steps)).astype(np.int32)
    return (kept, exact, margin, drafted_n, request, n_requests), rng


def plain(recording, k, length):
    """What the docstrings of `walk_fixed` and `walk_varied` say, one token after the other."""
    kept, exact, margin, drafted_n, request, n_requests = recording
    at_risk, passed = np.zeros((2, n_requests, k), int)
    drafted, open_end = np.zeros((2, n_requests, k + 1), int)
    lossy, given_up = np.zeros(n_requests, int), np.zeros(n_requests)
    for s, (r, n) in enumerate(zip(request, drafted_n, strict=True)):
        start = 0
        while start == 0 or start < n:
            wanted = length(start, s)
            is_open = start > 0 and wanted == n - start and wanted < k
            (open_end if is_open else drafted)[r, wanted] += 1
            c = 0
            while c < wanted and start + c < n and kept[start + c, s]:
                at_risk[r, c] += 1
                passed[r, c] += 1
                if not exact[start + c, s]:
                    lossy[r] += 1
                    given_up[r] += margin[start + c, s]
                c += 1
            known = start + c < n
            if c < wanted:  # rejected, or cut off by the end of the recording
                at_risk[r, c] += known
                break
            if c < k and (known or start + c == 0):
                at_risk[r, c] += 1
            if not known or not exact[start + c, s]:
                break
            start += c + 1
    return Pieces(at_risk, passed, drafted, open_end, lossy, given_up)


def assert_same(found, expected):
    for name in FIELDS:
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-6, err_msg=name)


@given(recordings(), st.integers(1, 6))
def test_fixed_walk_is_the_plain_loop(drawn, k):
    recording, _ = drawn
    drafted_n = recording[3]
    k = min(k, max(len(recording[0]), 1))
    assert_same(walk_fixed(*recording, k=k), plain(recording, k, lambda j, s: k if drafted_n[s] else 0))


@given(recordings(), st.integers(1, 6))
def test_fixed_and_varied_walks_agree_on_constant_lengths(drawn, k):
    recording, _ = drawn
    length = np.full((len(recording[0]) + 1, len(recording[3])), k)
    length[0, recording[3] == 0] = 0
    assert_same(walk_fixed(*recording, k=k), walk_varied(*recording, length=length, k=k))


@given(recordings(), st.integers(0, 6))
def test_varied_walk_is_the_plain_loop(drawn, k):
    recording, rng = drawn
    length = rng.integers(0, k + 1, (len(recording[0]) + 1, len(recording[3])))
    length[0] = np.minimum(length[0], recording[3])
    assert_same(walk_varied(*recording, length=length, k=k), plain(recording, k, lambda j, s: int(length[j, s])))


@given(recordings(), st.integers(1, 6))
def test_a_lossless_rule_gives_nothing_up(drawn, k):
    (_, exact, *rest), _ = drawn
    found = walk_fixed(exact, exact, *rest, k=k)
    assert not found.lossy.any()
    assert not found.given_up.any()
    copied = walk_fixed(exact.copy(), exact, *rest, k=k)
    assert_same(found, copied)


@given(recordings(), st.integers(1, 6))
def test_steps_may_come_in_any_order(drawn, k):
    (kept, exact, margin, drafted_n, request, n), rng = drawn
    order = rng.permutation(len(drafted_n))
    shuffled = (kept[:, order], exact[:, order], margin[:, order], drafted_n[order], request[order], n)
    assert_same(walk_fixed(*shuffled, k=k), walk_fixed(kept, exact, margin, drafted_n, request, n, k=k))


@given(recordings(), st.integers(1, 6))
def test_shares_and_chances_are_proper(drawn, k):
    recording, rng = drawn
    found = walk_varied(*recording, length=rng.integers(0, k + 1, (len(recording[0]) + 1, len(recording[3]))), k=k)
    lengths, reach = found.lengths(), found.reach()
    assert lengths.sum() == pytest.approx(1)
    assert (lengths >= 0).all()
    assert (np.diff(reach, prepend=1.0) <= 1e-12).all()
    assert (found.passed <= found.at_risk).all()


def test_without_open_ends_lengths_are_plain_shares():
    zero = np.zeros((2, 3), int)
    found = Pieces(zero[:, :2], zero[:, :2], np.array([[1, 0, 3], [0, 4, 0]]), zero, zero[:, 0], np.zeros(2))
    np.testing.assert_allclose(found.lengths(), [1 / 8, 4 / 8, 3 / 8])
    np.testing.assert_allclose(found.lengths(np.array([[1, 0], [0, 1]])), [[0.25, 0, 0.75], [0, 1, 0]])
    assert found.stepped().all()


def test_an_open_end_moves_to_the_lengths_beyond_it():
    """Two pieces want 1, two want 2, and two want at least 1: those split as the known ones of 1 or more do."""
    zero = np.zeros((1, 3), int)
    found = Pieces(zero[:, :2], zero[:, :2], np.array([[0, 2, 2]]), np.array([[0, 2, 0]]), zero[:, 0], np.zeros(1))
    np.testing.assert_allclose(found.lengths(), [0, 0.5, 0.5])


@pytest.mark.parametrize(
    ("at_risk", "passed", "chance"),
    [
        ([10, 8, 4], [8, 4, 1], [0.8, 0.4, 0.1]),  # no censoring: plain shares of 10
        ([10, 4], [8, 2], [0.8, 0.4]),  # four of the eight are censored after the first position
        ([10, 0, 0], [10, 0, 0], [1.0, 0.0, 0.0]),  # nothing is known past the first: nothing is claimed
        ([0, 0], [0, 0], [0.0, 0.0]),
        ([], [], []),
    ],
)
def test_product_limit(at_risk, passed, chance):
    np.testing.assert_allclose(product_limit(np.array(at_risk), np.array(passed)), chance)


def test_product_limit_works_along_the_last_axis():
    at_risk = np.array([[4.0, 2.0], [0.0, 0.0]])
    np.testing.assert_allclose(product_limit(at_risk, np.array([[2.0, 1.0], [0.0, 0.0]])), [[0.5, 0.25], [0, 0]])
