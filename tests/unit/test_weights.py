"""How Readers share places to run handlers in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gnsq_lite.worker.shared_concurrency import Wish, share_out


def test_with_enough_to_do_each_has_its_weight() -> None:
    assert share_out(8, [Wish(3.0, 8, 6, 100), Wish(1.0, 8, 2, 100)]) == [6, 2]
    assert share_out(10, [Wish(1.0, 10, 0, 100), Wish(1.0, 10, 0, 100)]) == [5, 5]


def test_what_one_does_not_want_is_the_others() -> None:
    assert share_out(8, [Wish(3.0, 8, 0, 1), Wish(1.0, 8, 0, 100)]) == [1, 7]
    assert share_out(8, [Wish(3.0, 2, 0, 100), Wish(1.0, 8, 0, 100)]) == [2, 6]


def test_nobody_waits_for_ever_behind_a_heavy_one() -> None:
    assert share_out(4, [Wish(1000.0, 4, 3, 100), Wish(0.001, 4, 0, 1)]) == [3, 1]


def test_a_place_is_given_when_it_is_free_and_not_before() -> None:
    assert share_out(8, [Wish(1.0, 8, 8, 50), Wish(1.0, 8, 0, 50)]) == [4, 0]
    assert share_out(8, [Wish(1.0, 8, 6, 50), Wish(1.0, 8, 0, 50)]) == [4, 2]


def test_who_wants_nothing_has_room_for_what_is_about_to_come() -> None:
    assert share_out(8, [Wish(3.0, 8, 0, 0), Wish(1.0, 8, 0, 0)]) == [6, 2]
    assert share_out(8, [Wish(1.0, 8, 4, 0), Wish(1.0, 8, 0, 0)]) == [6, 2]


wishes = st.lists(
    st.builds(Wish, st.floats(0.01, 100), st.integers(1, 20), st.integers(0, 20), st.integers(0, 20)), min_size=1
)


@given(st.integers(1, 40), wishes)
def test_never_more_than_there_are_but_for_those_that_run_and_no_place_is_left_while_one_waits(
    total: int, some: list[Wish]
) -> None:
    given_out = share_out(total, some)
    running = sum(wish.busy for wish in some)
    could_run = sum(max(count, wish.busy) for count, wish in zip(given_out, some, strict=True))
    assert could_run <= max(total, running)
    assert all(count >= 0 for count in given_out)
    assert all(count <= wish.most for count, wish in zip(given_out, some, strict=True))
    waits = any(max(count, wish.busy) < wish.wanted for count, wish in zip(given_out, some, strict=True))
    assert not waits or could_run >= total
