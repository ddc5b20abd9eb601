"""The server of a worker's status pages: an invalid port, clients that disconnect."""

from __future__ import annotations

import os
import socket
from socketserver import BaseRequestHandler

import pytest

from gnsq_lite.supervise.group import GroupPages
from gnsq_lite.supervise.processes import Supervisor
from gnsq_lite.supervise.status import _TCP, StatusServer, _Unix
from tests.native import start_native_thread
from tests.programs import python


def test_an_invalid_port_of_the_status_pages_raises() -> None:
    pages = GroupPages(Supervisor(["x"], 1), lambda pages: ("", b""))
    with pytest.raises(OverflowError):
        StatusServer(pages, ("127.0.0.1", 99999), start_native_thread).start()


def test_a_client_that_disconnects_causes_no_traceback(
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


ENDS = """
from gevent import monkey
monkey.patch_all()
import atexit, time

@atexit.register
def runs_last():
    before = len(turns)
    native_sleep(0.5)
    print(before > 0, len(turns) - before)

from gnsq_lite.net.os_threads import native_sleep, start_hub_thread
turns = []
def run():
    while True:
        turns.append(1)
        time.sleep(0.01)
start_hub_thread("t", run)
"""


@pytest.mark.program
def test_a_native_thread_with_a_hub_sleeps_before_a_patched_interpreter_ends() -> None:
    # One that woke while the interpreter was taken down has crashed the process, one exit of some seventy.
    done = python(ENDS + "while not turns: native_sleep(0.01)\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"True 0\n", b"")


@pytest.mark.program
def test_a_patched_interpreter_ends_while_a_native_thread_makes_the_first_hub() -> None:
    done = python(ENDS)
    assert (done.returncode, done.stdout.split()[1:], done.stderr) == (0, [b"0"], b"")
