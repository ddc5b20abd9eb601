"""Lookupds are found, retried, put last when they fail, and taken back when they answer (YZ-1)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_lite.dialect import Verdict
from gnsq_lite.youzan.lookupds import LookupSet
from tests.fakes import FakeClock

pytestmark = pytest.mark.rule("YZ-1")


def a_set(*seeds: str, retries: int = 1) -> tuple[LookupSet, FakeClock]:
    clock = FakeClock()
    return LookupSet(seeds, clock, retries=retries, rest=10.0, longest_rest=35.0), clock


def fail_round(lookupds: LookupSet, address: str, retries: int = 1) -> Verdict:
    for _ in range(retries):
        assert lookupds.failed(address) is Verdict.RETRY
    return lookupds.failed(address)


def rest_of(lookupds: LookupSet, clock: FakeClock, address: str) -> float:
    """Let time pass until the one that rests is asked again; return how long that took."""
    began = clock.now()
    while address not in lookupds.due():
        clock.advance(0.25)
    return clock.now() - began


def test_a_failed_one_is_retried_then_rests_and_is_asked_last() -> None:
    lookupds, clock = a_set("a", "b")
    assert lookupds.due() == ("a", "b")
    assert fail_round(lookupds, "a") is Verdict.RESTS
    assert lookupds.addresses() == ("b", "a")
    assert lookupds.due() == ("b",)
    clock.advance(9.99)
    assert lookupds.due() == ("b",)
    clock.advance(0.01)
    assert lookupds.due() == ("b", "a")  # awake, and still behind the one that works
    lookupds.succeeded("a")
    assert lookupds.due() == ("a", "b")


def test_rests_grow_to_a_limit_and_start_anew_after_a_success() -> None:
    lookupds, clock = a_set("a", "b")
    for rest in (10.0, 20.0, 35.0, 35.0):
        fail_round(lookupds, "a")
        assert rest_of(lookupds, clock, "a") == rest
    lookupds.succeeded("a")
    fail_round(lookupds, "a")
    assert rest_of(lookupds, clock, "a") == 10.0


def test_all_are_asked_when_all_rest() -> None:
    lookupds, clock = a_set("a", "b")
    fail_round(lookupds, "a")
    clock.advance(1.0)
    fail_round(lookupds, "b")
    assert lookupds.due() == ("a", "b")  # soonest awake first


def test_thousands_of_failures_overflow_nothing() -> None:
    lookupds, clock = a_set("a", "b", retries=0)
    for _ in range(5000):  # a float ends at 2 ** 1024
        lookupds.failed("a")
    assert rest_of(lookupds, clock, "a") == 35.0


def test_found_ones_are_added_once_and_forgotten_only_when_they_fail_and_are_not_listed() -> None:
    lookupds, _ = a_set("a")
    assert lookupds.found(["a", "b", "b"]) == ("b",)
    assert lookupds.found(["a", "b"]) == ()
    assert fail_round(lookupds, "b") is Verdict.RESTS  # still listed
    lookupds.found(["a", "c"])
    assert lookupds.addresses() == ("a", "c", "b")
    assert fail_round(lookupds, "b") is Verdict.FORGOTTEN
    assert lookupds.addresses() == ("a", "c")
    assert lookupds.failed("b") is Verdict.FORGOTTEN
    lookupds.succeeded("b")
    assert lookupds.addresses() == ("a", "c")


def test_a_seed_is_never_forgotten_though_nobody_lists_it() -> None:
    lookupds, _ = a_set("a")
    lookupds.found(["b"])
    assert fail_round(lookupds, "a") is Verdict.RESTS
    assert set(lookupds.addresses()) == {"a", "b"}


def test_an_empty_listing_says_nothing_about_the_others() -> None:
    lookupds, _ = a_set("a")
    lookupds.found(["b"])
    assert lookupds.found([]) == ()
    assert fail_round(lookupds, "b") is Verdict.RESTS


EVENTS = st.lists(
    st.tuples(st.sampled_from(["fail", "succeed", "found", "wait"]), st.sampled_from("abcd"), st.floats(0, 50)),
    max_size=60,
)


@given(EVENTS)
def test_there_is_always_somebody_to_ask_and_seeds_stay(events: list[tuple[str, str, float]]) -> None:
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
        assert set(lookupds.due()) <= set(lookupds.addresses())
        assert {"a", "b"} <= set(lookupds.addresses())
    clock.advance(35.0)
    assert set(lookupds.due()) == set(lookupds.addresses())  # nobody rests for ever
