"""Bodies compressed by youzan/go-nsq; its codecs made the bytes in this file."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_lite.errors import CompressedBodyError, OptionError
from gnsq_lite.youzan.compression import CODEC_KEY, SIZE_KEY, unpack
from gnsq_lite.youzan.dialect import YouzanDialect
from gnsq_lite.youzan.messages import YouzanMessage, message_factory
from gnsq_lite.youzan.tail import to_tail
from tests.compressed import BODY, BOMBS, CODECS, GO, said
from tests.unit.youzan.owner import OWNER

pytestmark = pytest.mark.rule("YZ-15")


def message(body: bytes, headers: dict[str, Any], most: int | None = 1 << 20, tail: bool = False) -> YouzanMessage:
    header = json.dumps(headers).encode()
    place = b"\0" * 12 if tail else b""
    content = b"\x04" + len(header).to_bytes(2, "big") + header + place + body
    return message_factory(0, most, ext=True, tail=tail)(OWNER, 0, 1, b"\0" * 16, content)


@pytest.mark.parametrize("codec", CODECS)
def test_what_the_go_client_packed_is_unpacked(codec: str) -> None:
    assert unpack(GO[codec], said(codec), len(BODY)) == BODY
    assert unpack(GO[codec], said(codec, None), 1 << 20) == BODY  # it does not need the size, as it is bounded anyhow


@pytest.mark.parametrize("tail", [False, True])
@pytest.mark.parametrize("codec", CODECS)
def test_a_handler_sees_what_was_published(codec: str, tail: bool) -> None:
    got = message(GO[codec], said(codec, city="hz"), tail=tail)
    assert (got.body, got.headers, got.raw_body) == (BODY, {"city": "hz"}, GO[codec])


def test_a_message_that_names_no_codec_is_left_as_it_is() -> None:
    for headers in ({}, {CODEC_KEY: 1}, {CODEC_KEY: ""}, {"note": CODEC_KEY}):
        got = message(b"x", headers)
        assert (got.body, got.headers) == (b"x", headers)
    assert (message(b"x", {CODEC_KEY: "0", "a": 1}).body, message(b"x", {CODEC_KEY: "0", "a": 1}).headers) == (
        b"x",
        {"a": 1},
    )


def test_nothing_is_unpacked_where_that_is_not_wanted() -> None:
    got = message(GO["lz4"], said("lz4"), None)
    assert (got.body, got.headers) == (GO["lz4"], said("lz4"))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size", [None, 100, len(BODY), 1 << 40])
def test_a_bomb_is_not_unpacked(codec: str, size: int | None) -> None:
    got = message(BOMBS[codec], said(codec, size), most=1 << 20)
    with pytest.raises(CompressedBodyError):
        _ = got.body
    assert got.raw_body == BOMBS[codec]


@given(st.binary(max_size=200), st.sampled_from(CODECS), st.sampled_from([None, 0, 5, 1000]))
def test_any_bytes_are_unpacked_or_refused(data: bytes, codec: str, size: int | None) -> None:
    try:
        assert len(unpack(data, said(codec, size), 4096)) <= 4096
    except CompressedBodyError:
        pass


@pytest.mark.parametrize(
    ("data", "headers", "why"),
    [
        (b"x", {CODEC_KEY: "9"}, "codec '9'"),
        (b"x", {CODEC_KEY: "two"}, "codec 'two'"),
        (GO["lz4"], {CODEC_KEY: "3", SIZE_KEY: "-1"}, "not a number"),
        (GO["lz4"], {CODEC_KEY: "3", SIZE_KEY: "10"}, "lz4 block of 44 bytes is corrupt"),
        (GO["gzip"][:-3], {CODEC_KEY: "1"}, "too early"),
        (GO["gzip"] + b"xy", {CODEC_KEY: "1"}, "gzip data is corrupt"),
        (b"\xff\xff\xff\xff\x0fabc", {CODEC_KEY: "2"}, "more than 1048576 bytes"),
        (b"\xff\xff\x3fabc", {CODEC_KEY: "2"}, "declares a size of 1048575 bytes"),
    ],
)
def test_what_cannot_be_unpacked_says_why(data: bytes, headers: dict[str, str], why: str) -> None:
    with pytest.raises(CompressedBodyError, match=why):
        unpack(data, headers, 1 << 20)


def test_a_gzip_of_several_members_is_one_body() -> None:
    assert unpack(GO["gzip"] * 2, said("gzip"), 2000) == BODY * 2


def test_what_is_moved_to_the_tail_stays_as_it_was() -> None:
    moved: list[Any] = []

    class Writer:
        def publish(self, topic: str, body: bytes, **more: Any) -> None:
            moved.append((body, more["headers"]))

    to_tail(Writer())(message(BOMBS["lz4"], said("lz4", a="b")))
    assert moved == [(BOMBS["lz4"], said("lz4", a="b"))]


@pytest.mark.parametrize(
    "options",
    [
        {"max_decompressed_size": 0},
        {"max_decompressed_size": "1"},
    ],
)
def test_bad_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        YouzanDialect(**options)


def test_threads_may_ask_for_a_body_at_once() -> None:
    got = message(GO["gzip"], said("gzip"))
    bodies: list[bytes] = []
    threads = [threading.Thread(target=lambda: bodies.append(got.body)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert bodies == [BODY] * 4
