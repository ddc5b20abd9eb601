"""Calls of URLs: answers that break off, never end, or are long."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from gnsq_lite.http.hook import Caller, HookFailed

OK = b"HTTP/1.1 200 OK\r\n"


def short(client: socket.socket) -> None:
    client.sendall(OK + b"Content-Length: 100\r\n\r\nabc")


def broken_chunk(client: socket.socket) -> None:
    client.sendall(OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n")


def slow_body(client: socket.socket) -> None:
    client.sendall(OK + b"Transfer-Encoding: chunked\r\n\r\n")
    for _ in range(40):
        client.sendall(b"1\r\nx\r\n")
        time.sleep(0.1)
    client.sendall(b"0\r\n\r\n")


def slow_head(client: socket.socket) -> None:
    client.sendall(OK)
    for _ in range(40):
        client.sendall(b"X: 1\r\n")
        time.sleep(0.1)
    client.sendall(b"Content-Length: 0\r\n\r\n")


class Server:
    """Answers every request the same way, over connections that may serve several."""

    def __init__(self, answer: Callable[[socket.socket], None]) -> None:
        self._answer, self.connections = answer, 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            try:
                while client.recv(65536):
                    self._answer(client)
                    if self._answer in (short, broken_chunk):
                        return
            except OSError:
                return

    def close(self) -> None:
        self._listener.close()


@contextmanager
def calling(answer: Callable[[socket.socket], None], request_timeout: float = 20.0) -> Iterator[tuple[Caller, Server]]:
    server = Server(answer)
    try:
        yield (
            Caller(
                (),
                (server.url + "?%s",),
                chooser=None,
                sample=1.0,
                headers={"X-Mine": "1"},
                connect_timeout=20.0,
                request_timeout=request_timeout,
                concurrency=2,
            ),
            server,
        )
    finally:
        server.close()


@pytest.mark.parametrize("answer", [short, broken_chunk])
def test_an_answer_that_breaks_off_is_a_failure_of_the_destination(answer: Callable[[socket.socket], None]) -> None:
    with calling(answer) as (caller, _), pytest.raises(HookFailed, match="GET"):
        caller.send(b"1")
    assert caller.sent == 0


@pytest.mark.parametrize("answer", [slow_head, slow_body])
def test_the_time_limit_is_for_the_whole_answer(answer: Callable[[socket.socket], None]) -> None:
    with calling(answer, request_timeout=0.5) as (caller, _), pytest.raises(HookFailed):
        caller.send(b"1")


def test_a_connection_serves_the_next_call_unless_the_answer_is_long() -> None:
    for size, connections in ((0, 1), (1000, 1), (300_000, 3)):
        answer = OK + b"Content-Length: %d\r\n\r\n" % size + b"x" * size
        with calling(lambda client, answer=answer: client.sendall(answer)) as (caller, server):  # type: ignore[misc]
            for _ in range(3):
                caller.send(b"1")
            assert (caller.sent, server.connections) == (3, connections)
