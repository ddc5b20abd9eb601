"""Slow clients of the status pages do not delay other clients."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack
from typing import Any
from urllib.request import urlopen

import pytest

from gnsq_lite.supervise import status
from gnsq_lite.supervise.status import StatusServer, Verdict
from tests.programs import wait_for


class Pages:
    def metrics(self) -> tuple[str, bytes]:
        return "text/plain", b"up 1\n"

    def health(self) -> Verdict:
        return True, {}

    ready = health


def is_healthy(port: int) -> bool:
    with urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5) as answer:
        body: Any = answer.read()
    return b'"ok": true' in body


def test_a_client_that_sends_no_whole_request_delays_no_other_and_is_disconnected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(status._Handler, "timeout", 0.5)
    port = StatusServer(Pages(), ("127.0.0.1", 0)).start().port
    with ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection(("127.0.0.1", port), 10)) for _ in range(100)]
        for client in clients:
            client.sendall(b"GET /metrics HTTP/1.1\r\nX-Slow: ")
        assert is_healthy(port)
        assert [client.recv(1) for client in clients] == [b""] * 100


class SlowPages(Pages):
    """Renders the live page's document only after *may_end* is set."""

    def __init__(self) -> None:
        self.begun, self.may_end, self.made = threading.Event(), threading.Event(), 0

    def live(self, brief: bool) -> dict[str, Any]:
        self.begun.set()
        assert self.may_end.wait(60)
        self.made += 1
        return {"made": self.made}


def test_a_page_that_is_rendered_slowly_delays_no_probe_and_is_rendered_once_for_all_clients() -> None:
    pages = SlowPages()
    port = StatusServer(pages, ("127.0.0.1", 0)).start().port
    with ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection(("127.0.0.1", port), 30)) for _ in range(100)]
        for client in clients:
            client.sendall(b"GET /api/status HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert pages.begun.wait(30)
        assert is_healthy(port)
        wait_for(lambda: sum("process_request_thread" in thread.name for thread in threading.enumerate()) >= 100)
        pages.may_end.set()
        assert all(b" 200 " in client.recv(4096) for client in clients)
    assert pages.made < 10
