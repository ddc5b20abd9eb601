"""How long a Reader waits before it looks for a leader that was lost."""

from __future__ import annotations

import pytest

from gnsq_lite.policy.losses import first_pause


@pytest.mark.rule("YZ-12")
def test_the_search_for_a_leader_begins_ever_later_and_no_count_of_losses_is_too_much_for_it() -> None:
    assert [first_pause(0.2, misses) for misses in (1, 2, 3, 4, 5, 8, 9)] == [0.2, 0.2, 0.2, 0.4, 0.8, 6.4, 8.0]
    assert first_pause(0.05, 5_000) == 8.0  # a leader that stays away for a day
