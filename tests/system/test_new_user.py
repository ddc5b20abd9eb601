"""Mistakes of a new user, and the hints in the errors."""

from __future__ import annotations

import socketserver
import threading
from typing import Any

import pytest

from gnsq_lite.errors import HTTPConnectionLost, OptionError
from gnsq_lite.http import LookupdClient, NsqdClient


class Closes(socketserver.BaseRequestHandler):
    """Closes the connection of an HTTP client, as nsqlookupd's TCP port does."""

    def handle(self) -> None:
        self.request.recv(4)


def test_a_tcp_port_given_for_http_gets_a_hint() -> None:
    with socketserver.TCPServer(("127.0.0.1", 0), Closes) as server:
        threading.Thread(target=server.serve_forever, args=[0.05], daemon=True).start()
        port = server.server_address[1]
        with pytest.raises(HTTPConnectionLost, match=f"is {port} a TCP port, and the HTTP port {port + 1}[?]"):
            LookupdClient(f"127.0.0.1:{port}", http_retries=0).nodes()
        server.shutdown()


def test_a_port_given_as_a_second_argument_gets_a_hint() -> None:
    port: Any = 4151
    with pytest.raises(OptionError, match="write the address as one text, 'host:4151'"):
        NsqdClient("host", port)
    with pytest.raises(OptionError, match=r"must be HTTPOptions$"):
        NsqdClient("host", "4151")  # type: ignore[arg-type]
