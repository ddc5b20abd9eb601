"""Nsqlookupds are found, queried again when they fail, left alone for a minute, and queried after it (YZ-1)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_lite.dialect import Verdict
from gnsq_lite.youzan.lookupds import REST, LookupSet
from tests.fakes import FakeClock

pytestmark = pytest.mark.rule("YZ-1")


def a_set(*seeds: str) -> tuple[LookupSet, FakeClock]:
    clock = FakeClock()
    return LookupSet(seeds, clock), clock


def fail_twice(lookupds: LookupSet, address: str) -> Verdict:
    assert lookupds.failed(address) is Verdict.RETRY
    return lookupds.failed(address)


def test_one_that_fails_is_queried_again_and_then_left_alone_for_a_minute() -> None:
    lookupds, clock = a_set("a", "b")
    assert lookupds.due() == ("a", "b")
    assert fail_twice(lookupds, "a") is Verdict.RESTS
    assert lookupds.due() == ("b",)
    clock.advance(REST - 0.01)
    assert lookupds.due() == ("b",)
    clock.advance(0.01)
    assert lookupds.due() == ("a", "b")
    assert fail_twice(lookupds, "a") is Verdict.RESTS
    lookupds.succeeded("a")
    assert lookupds.due() == ("a", "b")


def test_all_are_queried_while_all_fail() -> None:
    lookupds, clock = a_set("a", "b")
    fail_twice(lookupds, "a")
    clock.advance(1.0)
    fail_twice(lookupds, "b")
    assert lookupds.due() == ("a", "b")


def test_an_answer_between_two_failures_counts() -> None:
    lookupds, _ = a_set("a", "b")
    for _ in range(3):
        assert lookupds.failed("a") is Verdict.RETRY
        lookupds.succeeded("a")


def test_found_ones_are_added_once_and_forgotten_only_when_they_fail_and_are_not_listed() -> None:
    lookupds, clock = a_set("a")
    assert lookupds.found(["a", "b", "b"]) == ("b",)
    assert lookupds.found(["a", "b"]) == ()
    assert fail_twice(lookupds, "b") is Verdict.RESTS  # still listed
    lookupds.found(["a", "c"])
    clock.advance(REST)
    assert lookupds.due() == ("a", "b", "c")
    assert fail_twice(lookupds, "b") is Verdict.FORGOTTEN
    assert lookupds.due() == ("a", "c")
    assert lookupds.failed("b") is Verdict.FORGOTTEN
    lookupds.succeeded("b")
    assert lookupds.due() == ("a", "c")


def test_a_seed_is_never_forgotten_though_nobody_lists_it() -> None:
    lookupds, clock = a_set("a")
    lookupds.found(["b"])
    assert fail_twice(lookupds, "a") is Verdict.RESTS
    clock.advance(REST)
    assert lookupds.due() == ("a", "b")


def test_an_empty_listing_says_nothing_about_the_others() -> None:
    lookupds, _ = a_set("a")
    lookupds.found(["b"])
    assert lookupds.found([]) == ()
    assert fail_twice(lookupds, "b") is Verdict.RESTS


EVENTS = st.lists(
    st.tuples(st.sampled_from(["fail", "succeed", "found", "wait"]), st.sampled_from("abcd"), st.floats(0, 50)),
    max_size=60,
)


@given(EVENTS)
def test_there_is_always_one_to_query_and_seeds_stay(events: list[tuple[str, str, float]]) -> None:
    lookupds, clock = a_set("a", "b")
    for what, address, seconds in events:
        if what == "fail":
            lookupds.failed(address)
        elif what == "succeed":
            lookupds.succeeded(address)
        elif what == "found":
            lookupds.found([address])
        else:
            clock.advance(seconds)
        assert lookupds.due()
    clock.advance(REST)
    assert {"a", "b"} <= set(lookupds.due())  # nobody is left alone for ever
