from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_lite.errors import BodyTypeError, InvalidBody, InvalidName, MessageTooLarge, OptionError
from gnsq_lite.wire import commands

ID = b"0123456789abcdef"

#: Written by hand from the protocol's specification.
LAYOUTS = {
    "IDENTIFY": (commands.identify(b"{}"), b"IDENTIFY\n\x00\x00\x00\x02{}"),
    "AUTH": (commands.auth(b"s\n3"), b"AUTH\n\x00\x00\x00\x03s\n3"),
    "SUB": (commands.subscribe("top", "chan#ephemeral"), b"SUB top chan#ephemeral\n"),
    "PUB": (commands.publish("top", b"\x00\n"), b"PUB top\n\x00\x00\x00\x02\x00\n"),
    "MPUB": (
        commands.multipublish("top", [b"a", b"bcd"]),
        b"MPUB top\n\x00\x00\x00\x10\x00\x00\x00\x02\x00\x00\x00\x01a\x00\x00\x00\x03bcd",
    ),
    "DPUB": (commands.defer_publish("top", b"x", 1.5), b"DPUB top 1500\n\x00\x00\x00\x01x"),
    "RDY": (commands.ready(2500), b"RDY 2500\n"),
    "RDY 0": (commands.ready(0), b"RDY 0\n"),
    "FIN": (commands.finish(ID), b"FIN 0123456789abcdef\n"),
    "REQ": (commands.requeue(ID, 90), b"REQ 0123456789abcdef 90000\n"),
    "REQ 0": (commands.requeue(ID, 0), b"REQ 0123456789abcdef 0\n"),
    "TOUCH": (commands.touch(ID), b"TOUCH 0123456789abcdef\n"),
    "CLS": (commands.CLS, b"CLS\n"),
    "NOP": (commands.NOP, b"NOP\n"),
}


@pytest.mark.rule("WIRE-7")
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_command_has_the_layout_of_the_specification(name: str) -> None:
    made, specified = LAYOUTS[name]
    assert made == specified


@pytest.mark.rule("WIRE-6")
@pytest.mark.parametrize(
    "make",
    [
        lambda name: commands.publish(name, b"x"),
        lambda name: commands.multipublish(name, [b"x"]),
        lambda name: commands.defer_publish(name, b"x", 1),
        lambda name: commands.subscribe(name, "ok"),
        lambda name: commands.subscribe("ok", name),
        lambda name: commands.PUBLISH_HEADS[name],
        commands.multipublish_head,
    ],
)
@pytest.mark.parametrize("name", ["t\n", "t t", "", "a" * 65])
def test_a_bad_name_makes_no_command(make, name: str) -> None:
    with pytest.raises(InvalidName):
        make(name)


# -- bodies


@pytest.mark.rule("WIRE-8")
@pytest.mark.parametrize(
    "make",
    [
        lambda body: commands.publish("t", body),
        lambda body: commands.defer_publish("t", body, 1),
        lambda body: commands.multipublish("t", [b"ok", body]),
        commands.check_body,
    ],
)
def test_an_empty_body_is_refused_and_one_of_a_byte_is_not(make) -> None:
    make(b"1")
    with pytest.raises(InvalidBody, match="empty"):
        make(b"")


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        ("text", "str; call .encode()"),
        (bytearray(b"x"), "bytearray"),
        (memoryview(b"x"), "memoryview"),
        (None, "NoneType"),
        (1, "int"),
    ],
)
def test_a_body_that_is_not_bytes_is_refused_by_name(body: object, hint: str) -> None:
    with pytest.raises(BodyTypeError) as caught:
        commands.publish("t", body)  # type: ignore[arg-type]
    assert hint in str(caught.value)
    with pytest.raises(BodyTypeError):
        commands.multipublish("t", [b"ok", body])  # type: ignore[list-item]


def test_a_body_may_be_as_large_as_the_limit_and_no_larger() -> None:
    commands.check_body(b"123", 3)
    with pytest.raises(MessageTooLarge) as caught:
        commands.check_body(b"1234", 3)
    assert (caught.value.size, caught.value.limit) == (4, 3)
    with pytest.raises(MessageTooLarge):
        commands.check_bodies([b"1", b"1234"], 3)


@pytest.mark.rule("WIRE-8")
@pytest.mark.parametrize("bodies", [[], (), iter(()), "text", b"bytes", bytearray(b"x"), None, 5])
def test_a_batch_that_is_empty_or_no_batch_is_refused(bodies: object) -> None:
    with pytest.raises(InvalidBody, match="batch"):
        commands.multipublish("t", bodies)  # type: ignore[arg-type]


def test_a_batch_may_be_any_iterable() -> None:
    assert commands.check_bodies(body for body in (b"a", b"b")) == [b"a", b"b"]


@pytest.mark.rule("WIRE-7")
@pytest.mark.rule("WIRE-8")
@given(st.lists(st.binary(min_size=1, max_size=50), min_size=1, max_size=20))
def test_a_batch_reads_back_as_nsqd_reads_it(bodies: list[bytes]) -> None:
    head, _, rest = commands.multipublish("top", bodies).partition(b"\n")
    assert head == b"MPUB top"
    size, count = struct.unpack_from(">ii", rest)
    assert (size, count) == (len(rest) - 4, len(bodies))
    at, read = 8, []
    for _ in range(count):
        (length,) = struct.unpack_from(">i", rest, at)
        read.append(rest[at + 4 : at + 4 + length])
        at += 4 + length
    assert (read, at) == (bodies, len(rest))


def test_the_parts_for_hot_paths_make_the_same_bytes() -> None:
    bodies = [b"one", b"two"]
    whole = commands.multipublish_head("t") + commands.multipublish_body(bodies)
    assert whole == commands.multipublish("t", bodies)
    assert commands.publish("t", b"one") == commands.PUBLISH_HEADS["t"] + b"\0\0\0\3one"


def test_a_batch_above_what_its_size_field_can_tell_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "MAX_INT32", 20)
    commands.multipublish_body([b"x" * 12])  # 4 + 12, and 4 for the count: 20
    with pytest.raises(MessageTooLarge):
        commands.multipublish_body([b"x" * 13])


# -- times


@pytest.mark.rule("WIRE-8")
@pytest.mark.parametrize(
    ("seconds", "milliseconds"),
    [(0, 0), (0.0, 0), (0.0001, 1), (0.001, 1), (0.0011, 2), (0.07, 70), (1.1, 1100), (2.007, 2007), (3600, 3600000)],
)
def test_a_delay_goes_out_as_whole_milliseconds_rounded_up(seconds: float, milliseconds: int) -> None:
    assert commands.defer_publish("t", b"x", seconds).startswith(b"DPUB t %d\n" % milliseconds)
    assert commands.requeue(ID, seconds) == b"REQ %b %d\n" % (ID, milliseconds)


@pytest.mark.rule("WIRE-8")
@pytest.mark.parametrize("seconds", [-0.001, -1, math.nan, math.inf, -math.inf, True, "1", None])
def test_a_delay_that_is_negative_or_no_number_is_refused(seconds: object) -> None:
    with pytest.raises(OptionError, match="delay"):
        commands.requeue(ID, seconds)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="defer"):
        commands.defer_publish("t", b"x", seconds)  # type: ignore[arg-type]


def test_a_requeue_delay_beyond_reason_does_not_overflow_nsqds_int64() -> None:
    milliseconds = int(commands.requeue(ID, 1e300).split()[2])
    assert milliseconds * 1_000_000 < 2**63


@given(st.floats(0, 1e9))
def test_a_delay_is_never_shortened_and_grows_by_less_than_a_millisecond(seconds: float) -> None:
    milliseconds = int(commands.requeue(ID, seconds).split()[2])
    assert -1e-6 <= milliseconds - seconds * 1000 < 1 + 1e-6


# -- ids and counts


@pytest.mark.parametrize("message_id", [b"", ID[:-1], ID + b"0"])
def test_an_id_of_another_length_makes_no_command(message_id: bytes) -> None:
    for make in (commands.finish, commands.touch, lambda value: commands.requeue(value, 0)):
        with pytest.raises(OptionError, match="16 bytes"):
            make(message_id)


@pytest.mark.parametrize("count", [-1, 1.0, True, "1", None])
def test_a_ready_count_that_is_negative_or_no_number_is_refused(count: object) -> None:
    with pytest.raises(OptionError, match="count"):
        commands.ready(count)  # type: ignore[arg-type]


def test_an_empty_secret_is_refused() -> None:
    with pytest.raises(OptionError, match="auth_secret"):
        commands.auth(b"")
