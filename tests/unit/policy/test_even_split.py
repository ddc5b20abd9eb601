"""Even splits of a budget."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnsq_lite.policy.rdy import even_split
from tests.profiles import repeats

TAKERS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=12)


@pytest.mark.rule("RDY-3")
@pytest.mark.rule("RDY-5")
@settings(max_examples=repeats(300), derandomize=True)
@given(st.integers(0, 200), TAKERS)
def test_a_split_is_even_complete_and_within_the_limits(budget: int, takers: list[tuple[int, int]]) -> None:
    limits, current = [limit for limit, _ in takers], [now for _, now in takers]
    shares = even_split(budget, limits, current)
    assert sum(shares) == min(budget, sum(limits))
    assert all(0 <= share <= limit for share, limit in zip(shares, limits, strict=True))
    below = [share for share, limit in zip(shares, limits, strict=True) if share < limit]
    if below:
        assert max(shares) - min(below) <= 1
    if budget >= len(takers):
        assert all(share > 0 for share, limit in zip(shares, limits, strict=True) if limit)


@pytest.mark.rule("RDY-3")
def test_the_remainder_goes_to_the_largest_shares() -> None:
    assert even_split(5, [9, 9, 9], [1, 3, 2]) == [1, 2, 2]
    assert even_split(4, [9, 9, 9], [0, 0, 0]) == [2, 1, 1]
