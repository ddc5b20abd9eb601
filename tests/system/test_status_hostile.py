"""Clients that dawdle do not keep the status pages from those that ask."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import ExitStack
from typing import Any
from urllib.request import urlopen

import pytest

from gnsq_lite.supervise import status
from gnsq_lite.supervise.status import MOST, StatusServer, Verdict
from tests.programs import wait_for


class Pages:
    def metrics(self) -> tuple[str, bytes]:
        return "text/plain", b"up 1\n"

    def health(self) -> Verdict:
        return True, {}

    ready = health


#: Threads that other tests' servers in this process may have left.
earlier: set[threading.Thread] = set()


@pytest.fixture(scope="module")
def port() -> int:
    earlier.update(threading.enumerate())
    return StatusServer(Pages(), ("127.0.0.1", 0)).start().port


def serving() -> int:
    """Return how many threads serve a request of this server."""
    return sum("process_request_thread" in thread.name for thread in {*threading.enumerate()} - earlier)


def dawdle(stack: ExitStack, port: int, count: int) -> list[socket.socket]:
    found = []
    for _ in range(count):
        client = stack.enter_context(socket.create_connection(("127.0.0.1", port), 10))
        client.sendall(b"GET /metrics HTTP/1.1\r\nX-Slow: ")
        found.append(client)
    return found


def is_healthy(port: int) -> bool:
    began = time.monotonic()
    with urlopen(f"http://127.0.0.1:{port}/healthz", timeout=20) as answer:
        body: Any = answer.read()
    assert time.monotonic() - began < 5.0
    return b'"ok": true' in body


def test_clients_that_drip_hold_few_threads_and_health_is_answered_meanwhile(port: int) -> None:
    with ExitStack() as stack:
        clients = dawdle(stack, port, 3 * MOST)
        assert is_healthy(port)
        wait_for(lambda: serving() <= MOST)
        for client in clients:
            try:
                client.sendall(b"x")
            except OSError:
                pass  # it was one of the oldest
        assert is_healthy(port)
    wait_for(lambda: serving() == 0)


def test_a_request_that_is_not_done_in_time_is_dropped_however_it_drips(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "TIMEOUT", 0.3)
    with ExitStack() as stack:
        clients = dawdle(stack, port, 5)

        def drip() -> bool:
            for client in tuple(clients):
                try:
                    client.sendall(b"x")
                except OSError:
                    clients.remove(client)
            return not clients

        wait_for(drip)
        assert is_healthy(port)


class SlowPages(Pages):
    """Makes no page before it is told to."""

    def __init__(self) -> None:
        self.begun, self.may_end, self.made = threading.Event(), threading.Event(), 0

    def live(self, brief: bool) -> dict[str, Any]:
        self.begun.set()
        assert self.may_end.wait(60)
        self.made += 1
        return {"made": self.made}


def test_a_page_that_is_made_slowly_holds_few_threads_and_no_probe() -> None:
    pages = SlowPages()
    port = StatusServer(pages, ("127.0.0.1", 0)).start().port
    before = serving()
    with ExitStack() as stack:
        clients: list[socket.socket] = []

        def ask() -> None:
            clients.append(stack.enter_context(socket.create_connection(("127.0.0.1", port), 30)))
            clients[-1].sendall(b"GET /api/status HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            clients[-1].setblocking(False)

        def some_are_refused() -> bool:
            ask()  # one more: a slow machine may have taken some of the first for dawdlers
            return sum(says(client, b" 503 ") for client in clients) >= MOST

        for _ in range(4 * MOST):
            ask()
        assert pages.begun.wait(30)
        assert is_healthy(port)
        wait_for(lambda: serving() - before <= 2 * MOST)
        wait_for(some_are_refused)
        pages.may_end.set()
        wait_for(lambda: any(says(client, b" 200 ") for client in clients))
    assert pages.made < 10


def says(client: socket.socket, text: bytes) -> bool:
    """Whether its answer has come and has *text*; it stays to be read."""
    try:
        return text in client.recv(4096, socket.MSG_PEEK)
    except OSError:
        return False
