from __future__ import annotations

import itertools
import os
import random
import tracemalloc
import zlib
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnsq_lite.errors import ProtocolError
from gnsq_lite.net.stream import READ_SIZE
from gnsq_lite.wire.compress import MAX_PIECE, Codec, DeflateCodec, SnappyCodec, make_codec
from gnsq_lite.wire.frames import HEARTBEAT_FRAME, OK_FRAME, Frame, FrameDecoder
from tests.profiles import repeats
from tests.unit.wire.golden import golden
from tests.unit.wire.snappy_by_hand import STREAM_ID, chunk, compressed, masked_crc, plain, varint

MAKERS: list[Callable[[], Codec]] = [SnappyCodec, DeflateCodec]
both = pytest.mark.parametrize("make", MAKERS, ids=["snappy", "deflate"])

NOISE = random.Random(7).randbytes(200_000)
#: Small and large bodies, compressible or not.  One body fills the largest chunk exactly.
PARTS = [b"x", b"OK" * 40, NOISE[:300], b"", bytes(65536), NOISE[:65537]]


def stream(codec: Codec, parts: Iterable[bytes]) -> bytes:
    return b"".join(codec.compress(part) for part in parts)


def run(codec: Codec, reads: Iterable[bytes]) -> bytes:
    return b"".join(piece for data in reads for piece in codec.decompress(data))


def fails(codec: Codec, data: bytes) -> tuple[bytes, ProtocolError]:
    """Return the pieces before the error, and the text of the error."""
    out: list[bytes] = []
    with pytest.raises(ProtocolError) as caught:
        out.extend(codec.decompress(data))
    return b"".join(out), caught.value


# -- both codecs


@pytest.mark.rule("SEC-2")
@both
def test_what_one_side_compresses_the_other_reads(make: Callable[[], Codec]) -> None:
    writer, reader = make(), make()
    for part in PARTS:  # each part was flushed, so it can be read at once
        assert run(reader, [writer.compress(part)]) == part


@both
@settings(max_examples=repeats(60))
@given(parts=st.lists(st.binary(max_size=300), max_size=5), cuts=st.lists(st.integers(0, 3000), max_size=6))
def test_any_data_in_any_split_comes_out_as_it_went_in(
    make: Callable[[], Codec], parts: list[bytes], cuts: list[int]
) -> None:
    data = stream(make(), parts)
    edges = sorted({0, len(data), *(point % (len(data) + 1) for point in cuts)})
    reads = [data[a:b] for a, b in itertools.pairwise(edges)]
    assert run(make(), reads) == b"".join(parts)


@pytest.mark.rule("SEC-2")
@both
def test_a_body_of_five_megabytes_arrives(make: Callable[[], Codec]) -> None:
    body = (NOISE * 26)[:5_000_000]
    data = make().compress(body)
    reader = make()
    assert run(reader, [data[at : at + 65536] for at in range(0, len(data), 65536)]) == body


@pytest.mark.rule("SEC-2")
@both
def test_a_bomb_takes_no_memory(make: Callable[[], Codec]) -> None:
    writer, reader = make(), make()
    data = b"".join(writer.compress(bytes(4_000_000)) for _ in range(3))
    tracemalloc.start()
    try:
        total = 0
        for at in range(0, len(data), READ_SIZE):
            for piece in reader.decompress(data[at : at + READ_SIZE]):
                total += len(piece)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert total == 12_000_000
    assert peak < 25 * 2 * READ_SIZE  # snappy expands bytes at most 22 times


@both
@pytest.mark.parametrize("size", [MAX_PIECE - 1, MAX_PIECE, MAX_PIECE + 1, 2 * MAX_PIECE])
def test_output_around_the_size_of_a_piece_is_whole(make: Callable[[], Codec], size: int) -> None:
    writer, reader = make(), make()
    assert len(run(reader, [writer.compress(bytes(size))])) == size
    assert run(reader, [writer.compress(b"next")]) == b"next"


@both
@settings(max_examples=repeats(200))
@given(st.binary(max_size=200))
def test_noise_gives_bytes_or_a_decompression_error(make: Callable[[], Codec], data: bytes) -> None:
    try:
        run(make(), [data])
    except ProtocolError:
        pass


@both
def test_a_stream_that_is_cut_short_gives_what_is_whole_and_waits(make: Callable[[], Codec]) -> None:
    data = stream(make(), [b"whole", NOISE[:90]])
    for end in range(len(data)):
        assert (b"whole" + NOISE[:90]).startswith(run(make(), [data[:end]]))


@both
def test_nothing_in_means_nothing_out(make: Callable[[], Codec]) -> None:
    assert make().compress(b"") == b""
    assert run(make(), [b"", b""]) == b""


@pytest.mark.rule("SEC-2")
@pytest.mark.rule("SEC-3")
@pytest.mark.parametrize("algorithm", ["snappy", "deflate"])
@pytest.mark.parametrize("step", [1, 2, 3, 7, 50, 10_000])
def test_the_streams_of_a_real_nsqd_are_read(algorithm: str, step: int) -> None:
    sent = golden(f"{algorithm}_stream")
    decoder = FrameDecoder(1 << 20, lambda owner, timestamp, attempts, message_id, body: body)
    identified = None
    codec = make_codec(algorithm)  # type: ignore[arg-type]
    messages: list[bytes] = []
    frames: list[Frame] = []
    for at in range(0, len(sent), step):
        data = sent[at : at + step]
        if identified is None:
            identified = decoder.feed_one(data)
            data = decoder.take_pending() if identified else b""
        for piece in codec.decompress(data):
            found, others = decoder.feed(piece)
            messages += found
            frames += others
    assert identified is not None
    assert frames == [OK_FRAME, HEARTBEAT_FRAME, OK_FRAME]
    assert messages == [b"first", b"second" * 100]


# -- DEFLATE


@pytest.mark.rule("SEC-2")
def test_deflate_is_raw_and_flushed() -> None:
    codec = DeflateCodec(6)
    first, second = codec.compress(b"one"), codec.compress(b"two")
    assert zlib.decompressobj(-15).decompress(first + second) == b"onetwo"
    assert first.endswith(b"\x00\x00\xff\xff")
    assert second.endswith(b"\x00\x00\xff\xff")


@pytest.mark.rule("SEC-3")
def test_what_zlib_can_tell_is_not_kept_back_until_the_next_read() -> None:
    data = DeflateCodec().compress(bytes(3 * MAX_PIECE))
    reader, told = zlib.decompressobj(-15), [0]
    for byte in data:
        told.append(told[-1] + len(reader.decompress(bytes([byte]))))
    near = [end for end, size in enumerate(told) if (size + 5000) % MAX_PIECE < 10_000]
    assert len(near) > 20  # sizes around a full piece
    for end in near:
        assert len(run(DeflateCodec(), [data[:end]])) == told[end]


@pytest.mark.parametrize("level", range(10))
def test_every_level_is_read(level: int) -> None:
    assert run(DeflateCodec(), [DeflateCodec(level).compress(NOISE[:999])]) == NOISE[:999]


def test_deflate_with_a_zlib_head_is_refused() -> None:
    assert "DEFLATE" in str(fails(DeflateCodec(), zlib.compress(b"hello" * 100))[1])


def test_a_deflate_stream_may_end_but_nothing_may_follow() -> None:
    packer = zlib.compressobj(6, zlib.DEFLATED, -15)
    ended = packer.compress(b"the end") + packer.flush()
    codec = DeflateCodec()
    assert run(codec, [ended, b""]) == b"the end"
    assert "after the end" in str(fails(codec, b"x")[1])
    out, error = fails(DeflateCodec(), ended + b"x")
    assert out == b"the end"
    assert "after the end" in str(error)


# -- snappy's framing


@pytest.mark.rule("SEC-2")
def test_a_snappy_stream_begins_with_its_identifier_once() -> None:
    codec = SnappyCodec()
    first, second = codec.compress(b"one"), codec.compress(b"two")
    assert first == STREAM_ID + plain(b"one")
    assert second == plain(b"two")


@pytest.mark.parametrize(
    "chunks",
    [
        [plain(b"data")],
        [compressed(b"data")],
        [STREAM_ID, plain(b"da"), STREAM_ID, compressed(b"ta")],
        [plain(b""), plain(b"data")],
        [plain(b"da"), plain(b""), plain(b"ta")],
        [plain(b"da"), compressed(b""), plain(b"ta")],
        [compressed(b""), compressed(b""), plain(b"data")],
        [chunk(0xFE, b""), plain(b"da"), chunk(0xFE, b"padding"), plain(b"ta"), chunk(0x80, bytes(60_000))],
    ],
    ids=range(8),
)
def test_every_form_of_chunk_is_read_whole_and_cut(chunks: list[bytes]) -> None:
    data = STREAM_ID + b"".join(chunks)
    assert run(SnappyCodec(), [data]) == b"data"
    for at in [*range(60), *range(len(data) - 30, len(data))]:
        assert run(SnappyCodec(), [data[:at], data[at:]]) == b"data"


@pytest.mark.rule("SEC-2")
@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x00\x00\x06\x00\x00\x00\x00OK",
        b"\xff\x05\x00\x00sNaPp",
        b"\xff\x07\x00\x00sNaPpYY",
        b"\xff\x06\x00\x00sNaPpX",
        STREAM_ID + b"\xff\x06\x00\x00snappy",
        STREAM_ID + chunk(0x02, b"12345"),
        STREAM_ID + b"\x7f\x00\x00\x00",
        STREAM_ID + chunk(0x00, b"123"),
        STREAM_ID + chunk(0x01, b""),
        STREAM_ID + chunk(0x00, b"1234"),
        STREAM_ID + chunk(0x00, b"1234\x80"),
        STREAM_ID + chunk(0x00, b"1234\xff\xff\xff\xff\x0f"),
        STREAM_ID + chunk(0x00, masked_crc(b"") + varint(65537) + b"\0\0"),
        STREAM_ID + plain(bytes(65537)),
        STREAM_ID + b"\x00\xff\xff\xff",
        STREAM_ID + b"\x80\xff\xff\xff",
        STREAM_ID + chunk(0x01, b"\0\0\0\0data"),
        STREAM_ID + chunk(0x01, b"\0\0\0\0"),
        STREAM_ID + chunk(0x00, masked_crc(b"data") + varint(5) + b"\x0cdata"),
        STREAM_ID + chunk(0x00, masked_crc(b"data") + varint(3) + b"\x0cdata"),
        STREAM_ID + chunk(0x00, masked_crc(b"data") + varint(4) + b"\x09\xff"),
    ],
)
def test_what_is_no_snappy_stream_is_refused(data: bytes) -> None:
    out, error = fails(SnappyCodec(), data)
    assert out == b""
    assert "snappy" in str(error)


def test_a_chunk_of_the_largest_size_is_read() -> None:
    for make in (plain, compressed):
        data = STREAM_ID + make(NOISE[:65536]) + plain(b"next")
        assert run(SnappyCodec(), [data[:70_000], data[70_000:]]) == NOISE[:65536] + b"next"


@settings(max_examples=repeats(300))
@given(at=st.integers(0, 10_000), bit=st.integers(0, 7), split=st.integers(0, 10_000))
def test_a_flipped_bit_in_snappy_never_changes_what_comes_out(at: int, bit: int, split: int) -> None:
    parts = [b"one one one one one one", NOISE[:50], b"three" * 9]
    data = bytearray(stream(SnappyCodec(), parts))
    data[at % len(data)] ^= 1 << bit
    cut = split % len(data)
    out = b""
    codec = SnappyCodec()
    try:
        for read in (bytes(data[:cut]), bytes(data[cut:])):
            for piece in codec.decompress(read):
                out += piece
    except ProtocolError:
        pass
    # A flipped bit can make the codec skip a chunk or wait for more bytes, but never return a wrong byte.
    allowed = {b""}
    for part in parts:
        allowed |= {before + part for before in allowed}
    assert out in allowed


def chunks(stream: bytes) -> list[int]:
    """Return the sizes of the data chunks in a framed stream."""
    sizes, at = [], 0
    while at < len(stream):
        kind, size = stream[at], int.from_bytes(stream[at + 1 : at + 4], "little")
        block = stream[at + 8 : at + 4 + size]
        if kind == 1:
            sizes.append(len(block))
        elif kind == 0:
            length = shift = 0
            for byte in block:
                length |= (byte & 0x7F) << shift
                shift += 7
                if byte < 0x80:
                    break
            sizes.append(length)
        at += 4 + size
    return sizes


@pytest.mark.parametrize("size", [1, 16_000, 16_001, 20_040, 65_536, 300_000])
@pytest.mark.parametrize("random", [False, True])
def test_no_snappy_chunk_holds_more_than_an_old_nsqd_asks_for_at_once(size: int, random: bool) -> None:
    """nsqd 0.3.8 reads at most 16,384 bytes at once, and stalls on the rest of a longer chunk."""
    data = os.urandom(size) if random else b"abc" * (size // 3) + b"d" * (size % 3)
    codec = SnappyCodec()
    stream = codec.compress(data) + codec.compress(b"FIN")
    sizes = chunks(stream)
    assert max(sizes) <= 16_384 - 256
    assert sum(sizes) == size + 3
    assert b"".join(SnappyCodec().decompress(stream)) == data + b"FIN"
