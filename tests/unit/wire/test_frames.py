from __future__ import annotations

import itertools
import struct
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnsq_lite.errors import ProtocolError
from gnsq_lite.wire.frames import OK_FRAME, Frame, FrameDecoder
from tests.frames import ID, frame, message
from tests.profiles import repeats

LIMIT = 200

Fields = tuple[Any, int, int, bytes, bytes]


def fields(*values: Any) -> Fields:
    return values


def decoder(limit: int = LIMIT) -> FrameDecoder[Fields]:
    return FrameDecoder(limit, fields, "owner")


Outcome = tuple[list[Fields], list[Frame], "str | None"]


def run(reads: list[bytes], limit: int = LIMIT) -> Outcome:
    """Feed the reads one by one.  Return the messages, the other frames, and the text of the error."""
    under_test = decoder(limit)
    messages: list[Fields] = []
    frames: list[Frame] = []
    try:
        for data in reads:
            found, others = under_test.feed(data)
            messages += found
            frames += others
            assert under_test.pending_bytes < limit + 4  # bounded memory
            under_test.feed(b"")  # the error that follows valid frames
    except ProtocolError as error:
        return messages, frames, str(error)
    return messages, frames, None


def by_hand(stream: bytes, limit: int = LIMIT) -> tuple[list[Fields], list[Frame], bool]:
    """Decode frames byte by byte, as slow code that is easy to check.  Return whether there was an error."""
    messages: list[Fields] = []
    frames: list[Frame] = []
    while len(stream) >= 4:
        size = int.from_bytes(stream[:4], "big", signed=True)
        if size < 4 or size > limit:
            return messages, frames, True
        if len(stream) < 8:
            break
        kind = int.from_bytes(stream[4:8], "big")
        if kind > 2 or (kind == 2 and size < 30):
            return messages, frames, True
        data, rest = stream[8 : 4 + size], stream[4 + size :]
        if len(data) < size - 4:
            break
        if kind == 2:
            timestamp = int.from_bytes(data[:8], "big", signed=True)
            messages.append(("owner", timestamp, data[8] * 256 + data[9], data[10:26], data[26:]))
        else:
            frames.append(Frame(kind, data))
        stream = rest
    return messages, frames, False


def cut(data: bytes, *points: int) -> list[bytes]:
    edges = [0, *sorted(point % (len(data) + 1) for point in points), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


# -- the layout


@pytest.mark.rule("WIRE-2")
def test_each_type_of_frame_is_read_from_the_specified_bytes() -> None:
    stream = (
        b"\x00\x00\x00\x06\x00\x00\x00\x00OK"
        b"\x00\x00\x00\x0d\x00\x00\x00\x01E_INVALID"
        b"\x00\x00\x00\x23\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x01\x00\x00\x02" + ID + b"hello"
    )
    messages, frames = decoder().feed(stream)
    assert frames == [(0, b"OK"), (1, b"E_INVALID")]
    assert messages == [("owner", 256, 2, ID, b"hello")]


@pytest.mark.rule("WIRE-3")
@pytest.mark.parametrize("attempts", [0, 1, 32767, 32768, 65535])
@pytest.mark.parametrize("timestamp", [-(2**63), -1, 0, 2**63 - 1])
def test_a_messages_numbers_keep_their_whole_range(attempts: int, timestamp: int) -> None:
    (found,), _ = decoder().feed(message(b"x", timestamp, attempts))
    assert found == ("owner", timestamp, attempts, ID, b"x")


def test_bodies_are_bytes_and_nothing_of_the_read_is_kept() -> None:
    under_test = decoder()
    (found,), (other,) = under_test.feed(message(b"x" * 50) + frame(0, b"some response"))
    assert type(found[3]) is bytes
    assert type(found[4]) is bytes
    assert type(other.body) is bytes
    assert under_test.pending_bytes == 0


# -- bounds


@pytest.mark.rule("WIRE-4")
@pytest.mark.parametrize("size", [4, 5, LIMIT - 1, LIMIT])
def test_a_size_within_the_bounds_is_read(size: int) -> None:
    assert run([frame(0, b"r" * (size - 4))]) == ([], [Frame(0, b"r" * (size - 4))], None)


@pytest.mark.rule("WIRE-4")
@pytest.mark.parametrize("size", [3, 0, -1, -(2**31), LIMIT + 1, 2**31 - 1])
@pytest.mark.parametrize("kind", [0, 2])
def test_a_size_outside_the_bounds_is_refused_before_more_is_read(size: int, kind: int) -> None:
    head = struct.pack(">ii", size, kind)
    for given_bytes in (head[:4], head, head + bytes(300)):
        messages, frames, error = run([given_bytes])
        assert (messages, frames) == ([], [])
        assert error is not None
        assert f"size is {size}, outside 4..{LIMIT}" in error


@pytest.mark.rule("WIRE-4")
@pytest.mark.parametrize(("kind", "what"), [(0, "a response"), (1, "an error")])
def test_a_response_or_an_error_above_64_kib_is_refused_before_more_is_read(kind: int, what: str) -> None:
    largest = frame(kind, bytes(65532))
    assert run([largest], limit=1 << 20) == ([], [Frame(kind, bytes(65532))], None)
    for feed in (FrameDecoder.feed, FrameDecoder.feed_one):
        under_test = decoder(1 << 20)
        with pytest.raises(ProtocolError, match=f"{what} has 65537 bytes"):
            feed(under_test, frame(kind, bytes(65533))[:8])
        assert under_test.pending_bytes == 0
    assert len(run([frame(2, bytes(100_000))], limit=1 << 20)[0]) == 1


@pytest.mark.rule("WIRE-4")
@pytest.mark.parametrize("kind", [3, 4, 255, 2**31, 2**32 - 1])
def test_an_unknown_type_is_refused(kind: int) -> None:
    head = struct.pack(">iI", 40, kind)
    assert run([head])[2] == f"unknown frame type {kind}"
    assert run([head + bytes(40)])[2] == f"unknown frame type {kind}"
    assert run([head[:7]])[2] is None


@pytest.mark.rule("WIRE-4")
def test_a_message_must_have_its_head() -> None:
    assert run([frame(2, bytes(26))]) == ([("owner", 0, 0, bytes(16), b"")], [], None)
    for short in (0, 1, 25):
        error = run([frame(2, bytes(short)) + bytes(50)])[2]
        assert error is not None
        assert f"a message has {short} bytes" in error


@pytest.mark.rule("WIRE-4")
def test_the_smallest_limit_still_reads_the_smallest_frame() -> None:
    assert run([frame(0, b"")], limit=4) == ([], [Frame(0, b"")], None)
    assert run([frame(0, b"OK")], limit=6) == ([], [OK_FRAME], None)
    assert run([frame(0, b"OK")], limit=5)[2] is not None


@pytest.mark.rule("WIRE-4")
@pytest.mark.parametrize("limit", [1 << 20, 2**31 - 1])
@pytest.mark.parametrize(
    ("sent", "hint"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "use nsqd's TCP port"),
        (b"HTTP/1.0 200 OK\r\n\r\n", "use nsqd's TCP port"),
        (b"\x15\x03\x01\x00\x02\x02\x46\x00\x00\x00", "TLS record"),
    ],
)
def test_a_wrong_port_is_recognised(limit: int, sent: bytes, hint: str) -> None:
    error = run([sent], limit)[2]
    assert error is not None
    assert hint in error


# -- faults


@pytest.mark.rule("WIRE-4")
def test_good_frames_before_a_bad_one_are_not_lost() -> None:
    under_test = decoder()
    messages, frames = under_test.feed(message(b"good") + frame(0, b"OK") + frame(9, b""))
    assert [found[4] for found in messages] == [b"good"]
    assert frames == [OK_FRAME]
    assert isinstance(under_test.error, ProtocolError)
    with pytest.raises(ProtocolError) as caught:
        under_test.feed(b"")
    assert caught.value is under_test.error


@pytest.mark.rule("WIRE-4")
def test_a_decoder_that_has_failed_stays_failed() -> None:
    under_test = decoder()
    with pytest.raises(ProtocolError) as first:
        under_test.feed(frame(9, b""))
    for again in (b"", frame(0, b"OK")):
        with pytest.raises(ProtocolError) as later:
            under_test.feed(again)
        assert later.value is first.value
        with pytest.raises(ProtocolError):
            under_test.feed_one(again)
    assert under_test.pending_bytes == 0


def test_what_the_message_maker_refuses_ends_the_stream() -> None:
    def picky(owner: Any, timestamp: int, attempts: int, message_id: bytes, body: bytes) -> bytes:
        if body == b"bad":
            raise ProtocolError("no header")
        return body

    under_test: FrameDecoder[bytes] = FrameDecoder(LIMIT, picky)
    assert under_test.feed(message(b"good") + message(b"bad") + message(b"good")) == ([b"good"], [])
    with pytest.raises(ProtocolError, match="no header"):
        under_test.feed(b"")
    with pytest.raises(ProtocolError, match="no header"):
        under_test.feed(b"")


# -- splits

SAMPLE = (
    frame(0, b"OK")
    + message(b"first")
    + frame(0, b"_heartbeat_")
    + message(b"")
    + frame(1, b"E_FIN_FAILED FIN 0123456789abcdef failed")
    + frame(0, b"")
    + message(b"\x00\x00\x00\x06\x00\x00\x00\x00OK")
    + frame(0, b"OK")
)


def heads() -> st.SearchStrategy[bytes]:
    """Return frame heads with sizes around each limit."""
    sizes = st.one_of(st.sampled_from([-1, 0, 3, 4, 5, 29, 30, 31, LIMIT, LIMIT + 1]), st.integers(-(2**31), 2**31 - 1))
    kinds = st.one_of(st.sampled_from([0, 1, 2, 3]), st.integers(-(2**31), 2**31 - 1))
    return st.builds(lambda size, kind: struct.pack(">ii", size, kind), sizes, kinds)


PIECES = st.one_of(
    st.binary(max_size=40),
    heads(),
    st.builds(frame, st.integers(0, 2), st.binary(max_size=LIMIT)),
    st.builds(message, st.binary(max_size=60), st.integers(-(2**63), 2**63 - 1), st.integers(0, 65535)),
    st.just(frame(0, b"OK")),
)


@pytest.mark.rule("WIRE-4")
@pytest.mark.rule("WIRE-5")
@settings(max_examples=repeats(300))
@given(st.lists(PIECES, max_size=8), st.lists(st.integers(0, 4000), max_size=6))
def test_any_bytes_in_any_split_give_what_the_rules_say(pieces: list[bytes], points: list[int]) -> None:
    stream = b"".join(pieces)
    messages, frames, failed = by_hand(stream)
    got = run(cut(stream, *points))
    assert got[:2] == (messages, frames)
    assert (got[2] is not None) == failed
    assert got == run([stream])


@pytest.mark.rule("WIRE-5")
def test_a_large_frame_in_small_reads_is_not_copied_at_each() -> None:
    body = bytes(6_000_000)
    stream = message(body)
    under_test = decoder(8_000_000)
    start = time.process_time()
    found: list[Fields] = []
    for at in range(0, len(stream), 64):
        found += under_test.feed(stream[at : at + 64])[0]
    spent = time.process_time() - start
    assert found[0][4] == body
    assert spent < 5  # takes 0.1 s; copying all held bytes at each of the 94,000 reads would take half a minute


# -- the handshake


@pytest.mark.rule("SEC-3")
@pytest.mark.parametrize("split", range(20))
def test_one_frame_is_taken_and_what_follows_it_is_handed_over_raw(split: int) -> None:
    stream = frame(0, b"{}") + b"\xff\x06\x00\x00sNaPpY and more"
    under_test = decoder()
    got = under_test.feed_one(stream[:split])
    if got is None:
        assert split < 10
        got = under_test.feed_one(stream[split:])
        rest = b""
    else:
        rest = stream[split:]
    assert got == Frame(0, b"{}")
    assert under_test.take_pending() + rest == b"\xff\x06\x00\x00sNaPpY and more"
    assert under_test.pending_bytes == 0


def test_frames_that_came_together_are_taken_one_by_one_and_then_fed_on() -> None:
    under_test = decoder()
    stream = frame(0, b"{}") + frame(0, b"OK") + message(b"early") + frame(0, b"OK")
    assert under_test.feed_one(stream) == Frame(0, b"{}")
    assert under_test.feed_one(b"") == OK_FRAME
    assert under_test.feed(b"") == ([("owner", 5, 1, ID, b"early")], [OK_FRAME])
    assert under_test.feed_one(b"") is None


def test_the_smallest_frame_that_came_along_is_not_forgotten() -> None:
    under_test = decoder()
    assert under_test.feed_one(frame(0, b"{}") + frame(0, b"")) == Frame(0, b"{}")
    assert under_test.feed(b"") == ([], [Frame(0, b"")])


def test_a_message_in_the_handshake_comes_as_a_raw_frame() -> None:
    got = decoder().feed_one(message(b"early"))
    assert got is not None
    assert (got.kind, got.body[-5:]) == (2, b"early")


def test_a_bad_frame_in_the_handshake_raises_at_once() -> None:
    under_test = decoder()
    with pytest.raises(ProtocolError):
        under_test.feed_one(b"HTTP/1.1 200")
    assert under_test.error is not None
