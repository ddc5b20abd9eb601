"""A server may send any bytes: every call ends in time, in bounded memory, with a typed error."""

from __future__ import annotations

import gzip
import socket
import time
import tracemalloc
from collections.abc import Callable

import pytest

from gnsq_lite import errors
from gnsq_lite.http import LookupdClient, NsqdClient
from tests.servers import refusing_port
from tests.system.http_stub import answer, read_request, replying, scripted

#: Maximum seconds of a call, and seconds that a busy machine may add.
LIMIT = 0.6
SLACK = 20.0


def lookup(address: str, **settings: object) -> None:
    options: dict[str, object] = {"http_timeout": LIMIT, "http_max_body": 4096, **settings}
    with LookupdClient(address, **options) as client:
        client.lookup("t")


def drip(start: bytes, byte: bytes) -> Callable[[socket.socket], None]:
    def script(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(start)
        while True:
            connection.sendall(byte)
            time.sleep(0.05)

    return script


@pytest.mark.parametrize(
    ("start", "byte"),
    [
        (b"", b"H"),
        (b"HTTP/1.1 200 OK\r\nX-Long: ", b"x"),
        (b"HTTP/1.1 200 OK\r\n", b"X-A: b\r\n"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4000\r\n\r\n", b"x"),
        (b"HTTP/1.1 200 OK\r\n\r\n", b"x"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"X-Trailer: x\r\n"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    ],
    ids=["status", "header", "headers", "body", "endless", "chunks", "trailers", "continue"],
)
@pytest.mark.rule("DISC-6")
def test_a_server_that_sends_single_bytes_cannot_exceed_the_time_limit(start: bytes, byte: bytes) -> None:
    with scripted(drip(start, byte)) as address:
        began = time.monotonic()
        with pytest.raises(errors.HTTPTimeout):
            lookup(address, http_max_body=1 << 20)
        assert LIMIT * 0.9 <= time.monotonic() - began < LIMIT + SLACK


@pytest.mark.parametrize(
    "part", [b"HTTP/1.1 100 Continue\r\n\r\n", b"X-A: " + b"b" * 60_000 + b"\r\n"], ids=["continue", "headers"]
)
@pytest.mark.rule("DISC-6")
def test_headers_without_end_are_bounded_in_bytes(part: bytes) -> None:
    sent = [0]

    def flood(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(b"" if part.startswith(b"HTTP") else b"HTTP/1.1 200 OK\r\n")
        while True:
            connection.sendall(part * 10)
            sent[0] += 1

    with scripted(flood) as address:
        began = time.thread_time()
        many = "headers have more than|more than 100 interim responses"  # Python 3.15 counts these itself
        with pytest.raises(errors.HTTPResponseError, match=many):
            lookup(address, http_timeout=20.0)
        assert time.thread_time() - began < 5.0


def test_a_call_to_a_silent_server_ends_in_time() -> None:
    with scripted(lambda connection: time.sleep(30)) as address:
        began = time.monotonic()
        with pytest.raises(errors.HTTPTimeout, match="no complete response in time"):
            lookup(address)
        assert time.monotonic() - began < LIMIT + SLACK


def test_a_call_to_a_server_that_reads_nothing_ends_in_time() -> None:
    def stalled(connection: socket.socket) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        time.sleep(30)

    with scripted(stalled) as address, NsqdClient(address, http_timeout=LIMIT) as client:
        began = time.monotonic()
        with pytest.raises(errors.HTTPTimeout):
            client.publish("t", b"x" * (32 << 20))
        assert time.monotonic() - began < LIMIT + SLACK


@pytest.mark.rule("DISC-6")
def test_an_endless_body_is_cut_at_the_limit_and_takes_no_memory() -> None:
    def endless(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            connection.sendall(b"[" * 65536)

    with scripted(endless) as address:
        tracemalloc.start()
        try:
            with pytest.raises(errors.HTTPResponseError, match="more than 1048576 bytes"):
                lookup(address, http_timeout=30.0, http_max_body=1 << 20)
            assert tracemalloc.get_traced_memory()[1] < 6 << 20
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("size", [4096, 4097])
def test_the_limit_is_exact(size: int) -> None:
    body = b'{"producers":[],"pad":"' + b"x" * (size - 25) + b'"}'
    assert len(body) == size
    for head in (f"Content-Length: {size}\r\n\r\n".encode(), b"Connection: close\r\n\r\n"):

        def reply(connection: socket.socket, head: bytes = head) -> None:
            read_request(connection)
            connection.sendall(b"HTTP/1.1 200 OK\r\n" + head + body)

        with scripted(reply) as address:
            if size <= 4096:
                lookup(address)
            else:
                with pytest.raises(errors.HTTPResponseError, match=r"4096|4097"):
                    lookup(address)


def test_a_body_declared_too_long_is_refused_before_a_byte_of_it_is_read() -> None:
    with (
        scripted(replying(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999\r\n\r\n")) as address,
        pytest.raises(errors.HTTPResponseError, match="99999999999999 bytes; at most 4096"),
    ):
        lookup(address)


def test_a_compressed_answer_is_refused_and_never_decoded() -> None:
    bomb = gzip.compress(b"[" * (1 << 22))
    script = replying(answer(bomb, Content_Encoding="gzip"))
    with scripted(script) as address, pytest.raises(errors.HTTPResponseError, match=r"encoded \(gzip\)"):
        lookup(address, http_max_body=1 << 20)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>hello</html>",
        b"\xff\xfe\x00",
        b'{"producers": [',
        b"[" * 100_000,
        b"9" * 10_000,
        b'{"producers": NaN}',
        b"null",
        b"[]",
        b"3",
        b'{"channels": []}',
        b'{"producers": {}}',
        b'{"producers": [null]}',
        b'{"producers": [{}]}',
        b'{"producers": [{"broadcast_address": 5, "tcp_port": 4150}]}',
        b'{"producers": [{"broadcast_address": "h", "tcp_port": "x"}]}',
        b'{"producers": [{"broadcast_address": "h", "tcp_port": true}]}',
        b'{"producers": [], "channels": ["a b"]}',
        b'{"producers": [], "channels": ["a\\u001b[2J"]}',
        b'{"producers": [], "partitions": {"x": {}}}',
        b'{"status_code": "200", "data": {"producers": []}}',
        b'{"status_code": 200, "data": null}',
    ],
)
@pytest.mark.rule("DISC-6")
def test_a_body_of_the_wrong_form_is_a_typed_error(body: bytes) -> None:
    with scripted(replying(answer(body))) as address, pytest.raises(errors.HTTPResponseError) as caught:
        lookup(address, http_max_body=1 << 20)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", errors.HTTPResponseError),
        (b"\x00\x00\x00\x0a\x00\x00\x00\x01E_BAD_PROTOCOL\n", errors.HTTPResponseError),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 500 + b"\r\n", errors.HTTPResponseError),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000 + b"\r\n\r\n", errors.HTTPResponseError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", errors.HTTPConnectionLost),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", errors.HTTPError),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n{}", errors.HTTPResponseError),
        (b"HTTP/1.1 500 Oops\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n{}", errors.HTTPResponseError),
        (b"", errors.HTTPConnectionLost),
    ],
    ids=["ssh", "nsq", "headers", "header", "short", "chunks", "negative", "negative500", "nothing"],
)
def test_an_answer_that_is_not_complete_http_is_a_typed_error(reply: bytes, kind: type[errors.HTTPError]) -> None:
    def script(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(reply)

    with scripted(script) as address, pytest.raises(kind):
        lookup(address, http_timeout=5.0)


@pytest.mark.rule("DISC-6")
def test_a_chunk_of_negative_size_does_not_evade_the_limit() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n"
    read: list[int] = []

    def script(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(head)
        try:
            for count in range(300):
                connection.sendall(b"x" * 65536)
                read.append(count)
        except OSError:
            pass  # the client has closed

    with scripted(script) as address, pytest.raises(errors.HTTPError):
        lookup(address, http_timeout=20.0, http_max_body=4096)
    assert len(read) < 300


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary", "308 Permanent"])
@pytest.mark.rule("SEC-1")
def test_a_redirect_is_not_followed_and_the_token_goes_nowhere_else(status: str) -> None:
    asked: list[bytes] = []

    def elsewhere(connection: socket.socket) -> None:
        asked.append(read_request(connection))

    with scripted(elsewhere) as other:
        reply = answer(b"", status, Location=f"http://user:pw@{other}/x?token=s3cret")
        with scripted(replying(reply)) as address, pytest.raises(errors.HTTPStatusError) as caught:
            lookup(address, auth_token="t0ken")
    assert asked == []
    assert "is not followed" in str(caught.value)
    assert not any(secret in str(caught.value) for secret in ("s3cret", "pw", "t0ken"))


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"message":"INTERNAL_ERROR"}', "INTERNAL_ERROR"),
        (b'{"status_code":500,"status_txt":"E_TOPIC_NOT_EXIST","data":null}', "E_TOPIC_NOT_EXIST"),
        (b"oh \x1b[31mno\r\nforged line", "oh \\x1b[31mno\\r\\nforged line"),
        (b"x" * 100_000, "x" * 300 + " [cut: 300 of 65536]"),
        (b"[" * 100_000, "[" * 300 + " [cut: 300 of 65536]"),
        (b"", ""),
        (b"\xff", "\\xff"),
    ],
)
def test_an_error_status_keeps_the_start_of_the_servers_text(body: bytes, text: str) -> None:
    with scripted(replying(answer(body, "500 Oops"))) as address, pytest.raises(errors.HTTPStatusError) as caught:
        lookup(address)
    assert (caught.value.status, caught.value.text) == (500, text)


def test_a_refused_connection_is_a_connect_error() -> None:
    with refusing_port() as port, pytest.raises(errors.HTTPConnectError, match="no connection: Connection refused"):
        lookup(f"127.0.0.1:{port}")


def test_a_name_that_does_not_resolve_is_a_connect_error() -> None:
    with pytest.raises(errors.HTTPConnectError, match="does not resolve"):
        lookup("no-such-host.invalid:4161", http_timeout=20.0)
