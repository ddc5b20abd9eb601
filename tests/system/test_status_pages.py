"""The server of a worker's status pages: a port that is none, clients that go."""

from __future__ import annotations

import os
import socket
from socketserver import BaseRequestHandler

import pytest

from gnsq_lite.net.os_threads import start_native_thread
from gnsq_lite.supervise.group import GroupPages
from gnsq_lite.supervise.processes import Supervisor
from gnsq_lite.supervise.status import _TCP, StatusServer, _Unix


def test_status_pages_at_a_port_that_there_is_not_do_not_hang() -> None:
    pages = GroupPages(Supervisor(["x"], 1), lambda pages: ("", b""))
    with pytest.raises(OverflowError):
        StatusServer(pages, ("127.0.0.1", 99999), start_native_thread).start()


def test_a_client_of_the_status_pages_that_goes_leaves_no_traceback(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    class Faulty(BaseRequestHandler):
        def handle(self) -> None:
            raise error

    for kind, address in ((_TCP, ("127.0.0.1", 0)), (_Unix, b"\0gnsq-test-%d" % os.getpid())):
        with kind(address, Faulty) as server:  # type: ignore[arg-type]
            for error in (ConnectionResetError(104, "Connection reset by peer"), ValueError("a fault of ours")):
                caplog.clear()
                one, other = socket.socketpair()
                server.process_request_thread(one, "client")  # type: ignore[arg-type]
                other.close()
                assert ("a fault of ours" in caplog.text) == isinstance(error, ValueError)
    assert capsys.readouterr().err == ""
