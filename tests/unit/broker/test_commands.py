"""The broker's command parser: total, the same for every split, exact at every bound."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gnsq_lite.broker.commands import (
    MAX_LINE,
    Command,
    CommandError,
    CommandReader,
    LineTooLong,
    as_int64,
    base10,
    quoted,
)
from tests.profiles import repeats

Outcome = list[object]


def sized(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def many(*bodies: bytes) -> bytes:
    return sized(struct.pack(">i", len(bodies)) + b"".join(sized(body) for body in bodies))


def outcome(chunks: list[bytes], max_msg_size: int = 100, max_body_size: int = 200) -> Outcome:
    """Return all commands in *chunks*, and the error or exception that ended them."""
    reader = CommandReader(max_msg_size, max_body_size)
    found: Outcome = []
    for chunk in chunks:
        reader.feed(chunk)
        try:
            while (command := reader.next()) is not None:
                found.append(command)
        except CommandError as error:
            return [*found, error.frame_body]
        except LineTooLong:
            return [*found, LineTooLong]
    return found


def cut(data: bytes, at: list[int]) -> list[bytes]:
    places = [0, *sorted(n % (len(data) + 1) for n in at), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(places)]


_body = st.binary(max_size=30)
_valid = st.one_of(
    st.sampled_from([b"NOP\n", b"RDY 5\r\n", b"FIN 0123456789abcdef\n", b"SUB t c\n", b"\n", b"CLS\n"]),
    _body.map(lambda body: b"PUB t\n" + sized(body)),
    _body.map(lambda body: b"DPUB t 10\n" + sized(body)),
    _body.map(lambda body: b"IDENTIFY\n" + sized(body)),
    st.lists(_body, max_size=4).map(lambda bodies: b"MPUB t\n" + many(*bodies)),
    st.tuples(st.sampled_from([b"PUB t\n", b"MPUB t\n", b"AUTH\n"]), st.integers(-(2**31), 2**31 - 1)).map(
        lambda pair: pair[0] + struct.pack(">i", pair[1])
    ),
    st.binary(max_size=40),
)


@settings(max_examples=repeats(300))
@given(st.lists(_valid, max_size=8).map(b"".join), st.lists(st.integers(0, 1000), max_size=12))
@example(b"MPUB t\n" + many(b"a", b"bb"), [3, 9, 12, 16])
def test_any_bytes_cut_anywhere_give_the_same_commands_and_never_another_exception(data: bytes, at: list[int]) -> None:
    whole = outcome([data])
    assert outcome(cut(data, at)) == whole
    assert outcome([data[n : n + 1] for n in range(len(data))]) == whole


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"PUB t\n" + struct.pack(">i", 0), b"E_BAD_MESSAGE PUB invalid message body size 0"),
        (b"PUB t\n" + struct.pack(">i", -1), b"E_BAD_MESSAGE PUB invalid message body size -1"),
        (b"PUB t\n" + struct.pack(">i", 101), b"E_BAD_MESSAGE PUB message too big 101 > 100"),
        (b"DPUB t 1\n" + struct.pack(">i", 101), b"E_BAD_MESSAGE DPUB message too big 101 > 100"),
        (b"IDENTIFY\n" + struct.pack(">i", 0), b"E_BAD_BODY IDENTIFY invalid body size 0"),
        (b"IDENTIFY\n" + struct.pack(">i", 201), b"E_BAD_BODY IDENTIFY body too big 201 > 200"),
        (b"AUTH\n" + struct.pack(">i", 201), b"E_BAD_BODY AUTH body too big 201 > 200"),
        (b"MPUB t\n" + struct.pack(">i", 201), b"E_BAD_BODY MPUB body too big 201 > 200"),
        (b"MPUB t\n" + struct.pack(">ii", 4, 0), b"E_BAD_BODY MPUB invalid message count 0"),
        (b"MPUB t\n" + struct.pack(">ii", 4, 40), b"E_BAD_BODY MPUB invalid message count 40"),
        (b"MPUB t\n" + struct.pack(">iii", 8, 1, 0), b"E_BAD_MESSAGE MPUB invalid message(0) body size 0"),
        (b"MPUB t\n" + struct.pack(">iii", 8, 1, 101), b"E_BAD_MESSAGE MPUB message too big 101 > 100"),
    ],
)
def test_a_bad_size_is_refused_with_nsqds_words_before_the_body_comes(data: bytes, error: bytes) -> None:
    assert outcome([data]) == [error]


@pytest.mark.parametrize(("length", "good"), [(MAX_LINE - 1, True), (MAX_LINE, False)])
@pytest.mark.parametrize("end", [b"\n", b""])
def test_a_line_is_at_most_as_long_as_nsqds_buffer(length: int, good: bool, end: bytes) -> None:
    expected: Outcome = [LineTooLong] if not good else [Command([b"x" * length])] if end else []
    assert outcome([b"x" * length + end]) == expected


def test_begin_can_refuse_a_command_before_its_size_is_read() -> None:
    def begin(words: list[bytes]) -> None:
        raise CommandError("E_INVALID", "no")

    reader = CommandReader(10, 10, begin)
    reader.feed(b"PUB t\n")
    with pytest.raises(CommandError):
        reader.next()


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"PUB t\n\0", b"E_BAD_MESSAGE PUB failed to read message body size"),
        (b"PUB t\n\0\0\0\5ab", b"E_BAD_MESSAGE PUB failed to read message body"),
        (b"IDENTIFY\n\0", b"E_BAD_BODY IDENTIFY failed to read body size"),
        (b"MPUB t\n\0\0\0\x09\0", b"E_BAD_BODY MPUB failed to read message count"),
        (b"MPUB t\n" + struct.pack(">ii", 20, 2), b"E_BAD_MESSAGE MPUB failed to read message(0) body size"),
        (b"MPUB t\n" + struct.pack(">iii", 20, 2, 3) + b"a", b"E_BAD_MESSAGE MPUB failed to read message body"),
    ],
)
def test_a_client_that_stops_within_a_body_is_told_what_is_missing(data: bytes, error: bytes) -> None:
    reader = CommandReader(100, 200)
    reader.feed(data)
    assert reader.next() is None
    with pytest.raises(CommandError) as caught:
        reader.at_end()
    assert caught.value.frame_body == error


@pytest.mark.parametrize(
    ("word", "value"),
    [(b"", 0), (b"007", 7), (b"-1", None), (b"1 ", None), (b"\xc2\xb2", None), (b"18446744073709551617", 1)],
)
def test_numbers_are_read_as_nsqd_does(word: bytes, value: int | None) -> None:
    assert base10(word) == value


@pytest.mark.parametrize(("value", "signed"), [(2**63 - 1, 2**63 - 1), (2**63, -(2**63)), (2**64 - 1, -1), (2**64, 0)])
def test_a_number_wraps_as_int64(value: int, signed: int) -> None:
    assert as_int64(value) == signed


@pytest.mark.parametrize(
    ("word", "text"),
    [
        (b"a b", '"a b"'),
        (b'"\\\n\x01\x7f', '"\\"\\\\\\n\\x01\\x7f"'),
        (b"\xff\xc3\xa9", '"\\xffé"'),
        ("\u2028\U000e0001".encode(), '"\\u2028\\U000e0001"'),
    ],
)
def test_names_are_quoted_as_go_prints_them(word: bytes, text: str) -> None:
    assert quoted(word) == text
