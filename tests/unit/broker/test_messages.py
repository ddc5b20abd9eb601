"""Ids and names of the embedded broker."""

from __future__ import annotations

import pytest

from gnsq_lite.broker.messages import IdFactory
from gnsq_lite.broker.topics import is_valid_name


def test_ids_are_sixteen_hex_digits_that_never_repeat_even_if_the_clock_stands_still_or_goes_back() -> None:
    factory, now = IdFactory(3), 1_700_000_000_000_000_000
    made = [factory.next(now) for _ in range(10_000)] + [factory.next(now - 10**9)]
    assert len(set(made)) == len(made)
    assert made == sorted(made)
    assert all(len(each) == 16 and int(each, 16) and each == each.lower() for each in made)


def test_ids_of_different_nodes_differ() -> None:
    now = 1_700_000_000_000_000_000
    one, two = IdFactory(1), IdFactory(2)
    assert not {one.next(now) for _ in range(10_000)} & {two.next(now) for _ in range(10_000)}


@pytest.mark.rule("WIRE-6")
@pytest.mark.parametrize(
    ("name", "valid"),
    [
        ("a", True),
        ("A.b_c-9", True),
        ("a" * 64, True),
        ("a" * 65, False),
        ("", False),
        ("a#ephemeral", True),
        ("#ephemeral", False),
        ("a" * 54 + "#ephemeral", True),
        ("a" * 55 + "#ephemeral", False),
        ("a#other", False),
        ("a b", False),
        ("a\n", False),
        ("ä", False),
    ],
)
def test_names_are_checked_as_nsqd_does(name: str, valid: bool) -> None:
    assert is_valid_name(name) is valid
