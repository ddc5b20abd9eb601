"""Compression on the broker's side: any split, no bombs, no wrong checksums."""

from __future__ import annotations

import itertools
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnsq_lite.broker.codecs import CodecError, Deflate, Snappy, codec_for
from tests.profiles import repeats

KINDS = ["snappy", "deflate"]


@pytest.mark.rule("SEC-2")
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=repeats(60))
@given(st.lists(st.binary(max_size=300), max_size=5), st.lists(st.integers(0, 2000), max_size=8))
def test_what_is_encoded_is_decoded_for_every_split(kind: str, parts: list[bytes], at: list[int]) -> None:
    sender, receiver = codec_for(kind, 6), codec_for(kind, 6)
    data = b"".join(sender.encode(part) for part in parts if part)
    places = [0, *sorted(n % (len(data) + 1) for n in at), len(data)]
    chunks = [data[a:b] for a, b in itertools.pairwise(places)]
    assert b"".join(piece for chunk in chunks for piece in receiver.decode(chunk)) == b"".join(parts)


@pytest.mark.parametrize("kind", KINDS)
def test_a_bomb_comes_out_in_small_pieces(kind: str) -> None:
    data = codec_for(kind, 6).encode(bytes(10_000_000))
    sizes = [len(piece) for piece in codec_for(kind, 6).decode(data)]
    assert (sum(sizes), max(sizes) <= 1 << 20) == (10_000_000, True)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=repeats(100))
@given(st.binary(max_size=200))
def test_noise_is_an_error_or_too_little_and_nothing_else(kind: str, noise: bytes) -> None:
    try:
        list(codec_for(kind, 6).decode(noise))
    except CodecError:
        pass


def test_a_wrong_checksum_is_an_error() -> None:
    data = bytearray(Snappy().encode(b"hello"))
    data[14] ^= 1  # the checksum follows the 10-byte header and the 4-byte chunk head
    with pytest.raises(CodecError):
        list(Snappy().decode(bytes(data)))


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\x06\x00\x00sNaPpX",
        b"\x00\x05\x00\x00hello",
        b"\xff\x06\x00\x00sNaPpY\x02\x01\x00\x00x",
        b"\xff\x06\x00\x00sNaPpY\x00\xff\xff\xff",
    ],
    ids=["wrong name", "no header", "reserved chunk", "endless chunk"],
)
def test_a_stream_that_is_no_snappy_is_refused(data: bytes) -> None:
    with pytest.raises(CodecError):
        list(Snappy().decode(data))


def test_the_end_of_a_deflate_stream_ends_the_connection() -> None:
    packer = zlib.compressobj(6, zlib.DEFLATED, -15)
    pieces = Deflate(6).decode(packer.compress(b"hi") + packer.flush())
    assert next(pieces) == b"hi"
    with pytest.raises(CodecError):
        next(pieces)
