"""Mistakes of a new user, and the hints in the errors."""

from __future__ import annotations

import socketserver
import threading
from pathlib import Path
from typing import Any

import pytest

from gnsq_lite.errors import HTTPConnectionLost, OptionError
from gnsq_lite.http import LookupdClient, NsqdClient
from tests.programs import running
from tests.servers import ServerHandle


class Closes(socketserver.BaseRequestHandler):
    """Closes the connection of an HTTP client, as nsqlookupd's TCP port does."""

    def handle(self) -> None:
        self.request.recv(4)


def test_a_tcp_port_given_for_http_gets_a_hint() -> None:
    with socketserver.TCPServer(("127.0.0.1", 0), Closes) as server:
        threading.Thread(target=server.serve_forever, args=[0.05], daemon=True).start()
        port = server.server_address[1]
        with pytest.raises(HTTPConnectionLost, match=f"is {port} a TCP port, and the HTTP port {port + 1}[?]"):
            LookupdClient(f"127.0.0.1:{port}").nodes()
        server.shutdown()


def test_a_port_given_as_a_second_argument_gets_a_hint() -> None:
    port: Any = 4151
    with pytest.raises(OptionError, match="write the address as one string, 'host:4151'"):
        NsqdClient("host", port)
    with pytest.raises(OptionError, match=r"must be HTTPOptions$"):
        NsqdClient("host", "4151")  # type: ignore[arg-type]


ASYNCIO = """
import asyncio, sys, warnings
from gnsq_lite import Writer

async def main(writer):
    for _ in range(3):
        writer.publish("t", b"x")

async def in_thread(writer):
    await asyncio.to_thread(writer.publish, "t", b"x")

warnings.simplefilter("always")
with Writer(sys.argv[1]) as writer:
    asyncio.run(in_thread(writer))
with Writer(sys.argv[1]) as writer:
    writer.publish("t", b"x")
print("no warning until here", file=sys.stderr, flush=True)
with Writer(sys.argv[1]) as writer:
    asyncio.run(main(writer))
"""


@pytest.mark.program
def test_a_publish_in_an_asyncio_event_loop_warns_once(broker: ServerHandle, tmp_path: Path) -> None:
    with running(["-c", ASYNCIO, broker.tcp_address], tmp_path) as program:
        assert program.ends() == 0
    before, _, after = program.output.partition("no warning until here")
    assert before == ""
    assert after.count("RuntimeWarning: a publish blocks the asyncio event loop") == 1
    assert "asyncio.to_thread(writer.publish, ...)" in after
