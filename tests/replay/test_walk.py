"""The renewal walk against a plain loop, token by token."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftgate.replay.walk import Drafts, Pieces, walk

FIELDS = ("tokens", "accepted", "by_length", "lossy", "given_up")


@st.composite
def recordings(draw):
    """(kept, exact, margin, drafts) of up to 12 steps of up to 6 tokens, and a random generator."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    most, steps, n_requests = draw(st.integers(0, 6)), draw(st.integers(0, 12)), draw(st.integers(1, 4))
    exact = rng.random((most, steps)) < 0.7
    kept = exact | (rng.random((most, steps)) < 0.3) if draw(st.booleans()) else rng.random((most, steps)) < 0.8
    margin = rng.exponential(size=(most, steps)).astype(np.float32)
    drafted_n = rng.integers(0, most + 1, steps).astype(np.int32)
    ended = (drafted_n > 0) & (rng.random(steps) < 0.3)
    request = np.sort(rng.integers(0, n_requests, steps)).astype(np.int32)
    return (kept, exact, margin, Drafts(drafted_n, ended, request, n_requests)), rng


def plain(recording, k, length, same):
    """What the module's docstring says, one token after the other."""
    kept, exact, margin, drafts = recording
    most, r_n = len(kept), drafts.n_requests
    tokens, accepted, lossy, given_up = np.zeros((4, r_n))
    by_length = np.zeros((r_n, k + 1))
    for s, (r, n) in enumerate(zip(drafts.request, drafts.drafted_n, strict=True)):
        start = 0
        while True:
            wanted, c = length(start, s), 0
            while c < wanted and start + c < n and kept[start + c, s]:
                if not exact[start + c, s]:
                    lossy[r] += 1
                    given_up[r] += margin[start + c, s]
                c += 1
            if start + c == n:  # at the end of the recorded draft, everything kept
                if drafts.ended[s]:
                    if c:
                        tokens[r], accepted[r] = tokens[r] + c, accepted[r] + c
                        by_length[r, c] += 1
                else:
                    tokens[r], accepted[r] = tokens[r] + c + 1, accepted[r] + c
                    if n == most:
                        by_length[r, wanted] += (c + 1) / (wanted + 1)
                    else:
                        by_length[r, c] += 1
                break
            tokens[r], accepted[r] = tokens[r] + c + 1, accepted[r] + c
            by_length[r, wanted] += 1
            replaced_alike = same[start + c, s] if c < wanted else exact[start + c, s]
            if not replaced_alike:
                break
            start += c + 1
    return Pieces(tokens, accepted, by_length, lossy, given_up)


def assert_same(found, expected):
    for name in FIELDS:
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-6, err_msg=name)


@given(recordings(), st.integers(1, 6))
def test_equal_pieces_are_the_plain_loop(drawn, k):
    recording, _ = drawn
    k = min(k, max(len(recording[0]), 1))
    expected = plain(recording, k, lambda j, s: k, np.zeros_like(recording[1]))
    assert_same(walk(*recording, k=k), expected)


@given(recordings(), st.integers(0, 6))
def test_varied_pieces_are_the_plain_loop(drawn, k):
    recording, rng = drawn
    same = rng.random(recording[0].shape) < 0.5
    length = rng.integers(0, k + 1, (len(recording[0]) + 1, recording[0].shape[1]))
    expected = plain(recording, k, lambda j, s: int(length[j, s]), same)
    assert_same(walk(*recording, k=k, length=length, same=same), expected)


@given(recordings(), st.integers(1, 6))
def test_a_lossless_rule_gives_nothing_up(drawn, k):
    (_, exact, *rest), _ = drawn
    found = walk(exact, exact, *rest, k=k)
    assert not found.lossy.any()
    assert not found.given_up.any()
    assert_same(found, walk(exact.copy(), exact, *rest, k=k))


@given(recordings(), st.integers(1, 6))
def test_steps_may_come_in_any_order(drawn, k):
    (kept, exact, margin, drafts), rng = drawn
    order = rng.permutation(len(drafts.drafted_n))
    shuffled = Drafts(drafts.drafted_n[order], drafts.ended[order], drafts.request[order], drafts.n_requests)
    found = walk(kept[:, order], exact[:, order], margin[:, order], shuffled, k=k)
    assert_same(found, walk(kept, exact, margin, drafts, k=k))


@given(recordings(), st.integers(1, 6))
def test_requests_add_up(drawn, k):
    (kept, exact, margin, drafts), _ = drawn
    apart, together = walk(kept, exact, margin, drafts, k=k), walk(kept, exact, margin, drafts.as_one(), k=k)
    for name in FIELDS:
        np.testing.assert_allclose(getattr(apart, name).sum(axis=0), getattr(together, name)[0], rtol=1e-6)


@given(recordings())
def test_the_recorded_rule_at_the_recorded_length_is_what_was_recorded(drawn):
    (_, exact, margin, drafts), _ = drawn
    most = len(exact)
    if not most or not exact.shape[1]:
        return
    valid = np.arange(most)[:, None] < drafts.drafted_n
    accepted = np.logical_and.accumulate(exact & valid, axis=0).sum(axis=0)
    ended = drafts.ended & (accepted == drafts.drafted_n)
    found = walk(exact, exact, margin, Drafts(drafts.drafted_n, ended, drafts.request, drafts.n_requests), k=most)
    assert found.accepted.sum() == accepted.sum()
    assert found.tokens.sum() == (accepted + ~ended).sum()
    assert found.by_length.sum() == pytest.approx(exact.shape[1])


def one_step(pattern, k, ended=False):
    """Pieces of one recorded draft; x is a position that the lossless test keeps, . one that it rejects."""
    exact = np.array([[c == "x"] for c in pattern])
    drafts = Drafts(np.array([len(pattern)], np.int32), np.array([ended]), np.zeros(1, np.int32), 1)
    return walk(exact, exact, np.zeros(exact.shape, np.float32), drafts, k=k)


@pytest.mark.parametrize(
    ("pattern", "k", "tokens", "steps"),
    [
        ("xxxxxxx", 7, 8, 1),  # the recorded step
        ("xxxxxxx", 3, 8, 2),  # three and a bonus token, twice: the second bonus token is the recorded one
        ("xxxxxxx", 1, 8, 4),
        ("xxxxxxx", 5, 8, 1 + 2 / 6),  # five and a bonus token; then one and the recorded bonus token of a piece of six
        ("xxxxxxx", 6, 8, 1 + 1 / 7),  # only the recorded bonus token of the second piece is seen
        ("xxxx.xx", 3, 5, 2),  # the second piece starts at the miss
        ("xxx.xxx", 3, 4, 1),  # the bonus token is not the drafted one
        (".xxxxxx", 3, 1, 1),
    ],
)
def test_pieces_of_one_draft(pattern, k, tokens, steps):
    found = one_step(pattern, k)
    assert found.tokens[0] == tokens
    assert found.by_length.sum() == pytest.approx(steps)


def test_no_bonus_token_follows_the_end_of_the_text():
    assert one_step("xxxx", 4, ended=True).tokens[0] == 4
    assert one_step("xxxx", 3, ended=True).tokens[0] == 4  # the end token was the bonus token
    assert one_step("xxxx", 3, ended=True).by_length.sum() == 1
    assert one_step("xxxx", 2, ended=True).by_length.sum() == 2  # two and a bonus token; then the end token, drafted
