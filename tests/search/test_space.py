from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftgate.policy.file import dump, parse
from draftgate.policy.length import Cut, Fixed
from draftgate.policy.policy import Policy
from draftgate.policy.rules import RULES
from draftgate.search.space import Space, describe

GRIDS = {greedy: list(Space(4, greedy=greedy).grid()) for greedy in (True, False)}


@pytest.mark.parametrize("greedy", [True, False])
def test_the_grid_has_every_length_and_no_name_twice(greedy):
    space, grid = Space(4, greedy=greedy), GRIDS[greedy]
    names = [p.name for p in grid]
    assert len(set(names)) == len(names)
    assert [p.length for p in grid if p.lossless and p.rule in ("exact", "lossless")] == space.lengths()
    assert {Fixed(k) for k in range(1, 5)} <= set(space.lengths())
    assert Cut(4, 8.0) in space.lengths()
    assert {p.rule for p in grid} == set(RULES) - {"lossless" if greedy else "exact"} - (
        {"sglang"} if greedy else set()
    )


@given(st.sampled_from(GRIDS[True] + GRIDS[False]), st.integers(0, 1 << 30))
def test_neighbours_stay_valid_and_inside_the_space(start, seed):
    space, rng, policy = Space(4, greedy=start.rule != "lossless"), np.random.default_rng(seed), start
    lengths = space.lengths()
    for _ in range(12):
        policy = space.neighbour(policy, rng)
        assert policy.rule == start.rule
        assert policy.length in lengths
        assert policy.name == describe(policy)
        assert parse(dump(policy)) == policy  # whatever the search finds can be written to a file and read back


@given(st.sampled_from(GRIDS[True]), st.integers(0, 1 << 30))
def test_a_name_says_everything(start, seed):
    """Session tells policies apart by name: one name must never stand for two policies."""
    space, rng = Space(4), np.random.default_rng(seed)
    seen: dict[str, Policy] = {p.name: p for p in GRIDS[True]}
    policy = start
    for _ in range(12):
        policy = space.neighbour(policy, rng)
        assert seen.setdefault(policy.name, policy) == policy


def test_a_neighbour_can_come_back_to_the_grid_under_its_old_name():
    for policy in GRIDS[False]:
        assert describe(replace(policy, name="x")) == policy.name
