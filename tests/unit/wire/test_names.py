from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_lite.errors import InvalidName
from gnsq_lite.wire import names

CHECKS = [names.check_topic, names.check_channel]
ALLOWED = string.ascii_letters + string.digits + "._-"


def by_hand(name: str) -> bool:
    """Check a name without a regular expression."""
    stem = name[: -len("#ephemeral")] if name.endswith("#ephemeral") else name
    return 1 <= len(name) <= 64 and len(stem) >= 1 and all(c in ALLOWED for c in stem)


@pytest.mark.rule("WIRE-6")
@pytest.mark.parametrize("name", ["a", "a" * 64, "A.b_c-9", "...", "a#ephemeral", "a" * 54 + "#ephemeral"])
@pytest.mark.parametrize("check", CHECKS)
def test_a_name_that_nsqd_takes_goes_out_as_it_is(check, name: str) -> None:
    assert check(name) == name.encode("ascii")


@pytest.mark.rule("WIRE-6")
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "empty"),
        ("a" * 65, "65 characters"),
        ("a" * 55 + "#ephemeral", "65 characters"),
        ("#ephemeral", "there is no name before"),
        ("t\n", r"'\n' at position 1"),
        ("t\nPUB x", r"'\n' at position 1"),
        ("t c", "' ' at position 1"),
        ("t\0", r"'\x00' at position 1"),
        ("a#ephemeral\n", "'#' at position 1"),
        ("a#other", "'#' at position 1"),
        ("a#ephemeral#ephemeral", "'#' at position 1"),
        ("caf\u00e9", "'\u00e9' at position 3"),
        ("\u0660", "position 0"),  # a digit that nsqd does not accept
        (b"topic", "call .decode()"),
        (None, "NoneType"),
        (7, "it is int"),
    ],
)
@pytest.mark.parametrize("check", CHECKS)
def test_a_name_that_nsqd_refuses_raises_and_says_why(check, name: object, why: str) -> None:
    with pytest.raises(InvalidName) as caught:
        check(name)
    assert why in str(caught.value)


def test_the_error_tells_topic_from_channel() -> None:
    with pytest.raises(InvalidName, match=r"^topic name"):
        names.check_topic("")
    with pytest.raises(InvalidName, match=r"^channel name"):
        names.check_channel("")


@pytest.mark.rule("WIRE-6")
@given(st.one_of(st.text(max_size=70), st.text(ALLOWED + "#ephemral\n ", max_size=70)), st.booleans())
def test_any_text_is_judged_as_the_rule_says(name: str, ephemeral: bool) -> None:
    name += "#ephemeral" * ephemeral
    for check in CHECKS:
        if by_hand(name):
            assert check(name) == name.encode()
        else:
            with pytest.raises(InvalidName):
                check(name)


def test_a_subclass_of_str_cannot_send_other_bytes_than_those_checked() -> None:
    class Liar(str):
        __slots__ = ()

        def encode(self, *args: object) -> bytes:  # type: ignore[override]
            return b"x\nFIN 0123456789abcdef"

    assert names.check_topic(Liar("honest")) == b"honest"
