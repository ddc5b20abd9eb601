"""What a thread encodes and decodes on a connection that it shares with the loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gnsq_lite.errors import ConnectionLost, DecompressionError, NSQConnectionError, TLSError
from gnsq_lite.publish.thread_io import ThreadIO
from gnsq_lite.wire.compress import Codec, make_codec

OK = b"\0\0\0\6\0\0\0\0OK"
NO = b"\0\0\0\7\0\0\0\1E_BAD"


class Line:
    """A stream whose TLS turns letters round."""

    tls: Any = "on"

    def __init__(self) -> None:
        self.error: NSQConnectionError | None = None

    def calls(self) -> Any:
        return None, None, 0, -1

    def encrypt(self, data: bytes) -> bytes:
        if self.error is not None:
            raise self.error
        return data.swapcase()

    def decrypt(self, data: bytes) -> bytes:
        if self.error is not None:
            raise self.error
        return data.swapcase()


def thread_io(line: Line, codec: Codec | None = None) -> ThreadIO:
    return ThreadIO(line, codec)  # type: ignore[arg-type]


class Reads:
    """Takes what consists of OKs."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []

    def __call__(self, data: bytes) -> bool:
        if data != OK * (len(data) // len(OK)):
            return False
        self.taken.append(data)
        return True


def test_bytes_that_do_not_change_on_the_way_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert thread_io(Line()).is_coded
    monkeypatch.setattr(Line, "tls", None)
    assert not thread_io(Line()).is_coded
    assert thread_io(Line(), make_codec("snappy")).is_coded


@pytest.mark.rule("SEC-2")
@pytest.mark.parametrize("algorithm", ["snappy", "deflate"])
def test_what_is_sent_is_compressed_first(algorithm: Any) -> None:
    line, peer = Line(), make_codec(algorithm)
    shared = thread_io(line, make_codec(algorithm))
    sent = shared.encode(b"one")
    sent += line.encrypt(shared.compress(b"two"))  # the loop's turn
    sent += shared.encode(b"three")
    assert b"".join(peer.decompress(sent.swapcase())) == b"onetwothree"


def test_what_is_not_for_the_thread_is_given_to_the_loop_decrypted() -> None:
    take = Reads()
    shared = thread_io(Line())
    assert shared.decode(OK.swapcase(), take) is None
    assert shared.decode(b"", take) is None  # half a record, or a ticket
    assert shared.decode((OK + NO).swapcase(), take) == OK + NO
    assert take.taken == [OK]


@pytest.mark.parametrize("error", [TLSError("nsqd", "an alert"), ConnectionLost("nsqd", "closed")])
def test_an_error_in_what_was_read_is_the_loops(error: NSQConnectionError) -> None:
    line = Line()
    line.error = error
    assert thread_io(line).decode(b"x", Reads()) is error
    with pytest.raises(type(error)):
        thread_io(line).encode(b"x")


@pytest.mark.rule("SEC-2")
@pytest.mark.parametrize("algorithm", ["snappy", "deflate"])
def test_a_compressed_read_is_taken_or_the_loops_and_is_decompressed_once(algorithm: Any) -> None:
    peer, take = make_codec(algorithm), Reads()
    shared = thread_io(Line(), make_codec(algorithm))
    whole = peer.compress(OK * 3).swapcase()
    if algorithm == "snappy":  # of which a part of a chunk is nothing yet
        assert shared.decode(whole[:5], take) is None
        whole = whole[5:]
    assert shared.decode(whole, take) is None
    assert take.taken == [OK * 3]
    assert shared.decode(peer.compress(NO).swapcase(), take) == b""
    assert list(shared.decompress(b"")) == [NO]
    assert list(shared.decompress(peer.compress(OK))) == [OK]


@pytest.mark.rule("SEC-2")
def test_what_decompresses_to_much_is_decompressed_as_the_loop_takes_it() -> None:
    made: list[bytes] = []

    class Bomb:
        def compress(self, data: bytes) -> bytes:
            return data

        def decompress(self, data: bytes) -> Iterator[bytes]:
            for number in range(100):
                made.append(b"%d" % number)
                yield made[-1]

    take = Reads()
    shared = thread_io(Line(), Bomb())
    assert shared.decode(b"boom", take) == b""
    assert len(made) == 2
    pieces = shared.decompress(b"")
    assert [next(pieces) for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]
    assert (len(made), take.taken) == (5, [])


@pytest.mark.rule("SEC-2")
def test_what_came_before_a_fault_of_compression_comes_before_its_error() -> None:
    peer, take = make_codec("snappy"), Reads()
    shared = thread_io(Line(), make_codec("snappy"))
    assert shared.decode((peer.compress(OK) + b"\x02\0\0\0").swapcase(), take) == b""
    found: list[bytes] = []
    with pytest.raises(DecompressionError):
        found.extend(shared.decompress(b""))
    assert (found, take.taken) == ([OK], [])
