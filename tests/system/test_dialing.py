"""A missing descriptor, memory or address family fails only one attempt to connect."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from gnsq_lite.errors import ConnectError
from gnsq_lite.net import dialing
from tests.conftest import MakeBroker
from tests.programs import piped, python
from tests.servers import ServerHandle


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


def resolve_to(monkeypatch: pytest.MonkeyPatch, port: int, *families: int) -> None:
    kind = socket.SOCK_STREAM
    found = [(each, kind, 0, "", ("::1" if each == socket.AF_INET6 else "127.0.0.1", port)) for each in families]
    monkeypatch.setattr(dialing, "_getaddrinfo", lambda *arguments: found)


def fail_sockets(monkeypatch: pytest.MonkeyPatch, error: BaseException, family: int = -1) -> None:
    """Make socket() raise *error*, for *family* or for every family."""

    def fail(asked: int, *arguments: int) -> Any:
        if family in (-1, asked):
            raise error
        return socket.socket(asked, *arguments)

    monkeypatch.setattr(dialing, "_socket", fail)


@pytest.mark.parametrize("blocks", [True, False], ids=["thread", "greenlet"])
def test_a_kernel_without_ipv6_uses_the_next_address_of_the_name(
    monkeypatch: pytest.MonkeyPatch, port: int, blocks: bool
) -> None:
    resolve_to(monkeypatch, port, socket.AF_INET6, socket.AF_INET)
    fail_sockets(monkeypatch, OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT)), socket.AF_INET6)
    with dialing.dial("nsqd", port, 5.0, blocks=blocks) as sock:
        assert sock.getpeername() == ("127.0.0.1", port)


@pytest.mark.parametrize("blocks", [True, False], ids=["thread", "greenlet"])
@pytest.mark.parametrize(
    ("error", "why", "is_local"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "Too many open files", True),
        (OSError(errno.EAFNOSUPPORT, "Address family not supported"), "Address family not supported", False),
        (MemoryError(), "out of memory", True),
    ],
    ids=["EMFILE", "EAFNOSUPPORT", "MemoryError"],
)
def test_an_error_of_socket_is_a_failed_attempt_that_names_the_cause(
    monkeypatch: pytest.MonkeyPatch, port: int, error: BaseException, why: str, is_local: bool, blocks: bool
) -> None:
    fail_sockets(monkeypatch, error)
    with pytest.raises(ConnectError, match=f"^127.0.0.1:{port}: cannot connect: {why}$") as raised:
        dialing.dial("127.0.0.1", port, 5.0, blocks=blocks)
    assert raised.value.__cause__ is error
    assert dialing.is_local(raised.value) is is_local


@pytest.mark.parametrize("error", [TimeoutError("the program's alarm"), KeyboardInterrupt()], ids=repr)
def test_an_exception_of_a_signal_handler_reaches_the_program(
    monkeypatch: pytest.MonkeyPatch, port: int, error: BaseException
) -> None:
    fail_sockets(monkeypatch, error)
    with pytest.raises(type(error)) as raised:
        dialing.dial("127.0.0.1", port, 5.0, blocks=True)
    assert raised.value is error


#: Publishes to one nsqd and reads from two, while no descriptor is left and the second nsqd restarts.
WITHOUT_DESCRIPTORS = """
import sys
mode, healthy, restarting, topic = sys.argv[1:]
if mode == "patched":
    from gevent import monkey
    monkey.patch_all()
import logging, os, resource, time
from gnsq_lite import Reader, Writer, errors
lines = []
class Keep(logging.Handler):
    def emit(self, record):
        lines.append(record.getMessage())
logging.getLogger().addHandler(Keep())
def wait(condition):
    ends = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < ends, (reader.stats(), lines)
        time.sleep(0.01)
handled = {healthy: 0, restarting: 0}
def handle(message):
    handled[message.nsqd_address] += 1
quick = {"reconnect_delay": 0.1, "max_reconnect_delay": 0.3}
reader = Reader(topic, "ch", handle, nsqd_tcp_addresses=[healthy, restarting], max_in_flight=10, **quick)
reader.start(block=False)
writer, other = Writer(healthy, **quick), Writer(healthy, publish_timeout=0.5, **quick)
writer.publish(topic, b"first")
wait(lambda: handled[healthy] == 1 and len(reader.stats().connections) == 2)
resource.setrlimit(resource.RLIMIT_NOFILE, (60, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
taken = []
try:
    while True:
        taken.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
print("full", flush=True)
assert sys.stdin.readline()  # the second nsqd has stopped and runs again
for number in range(100):
    writer.publish(topic, b"%d" % number)
    assert sum(each.ready for each in reader.stats().connections) <= 10
    time.sleep(0.01)
try:
    other.publish(topic, b"needs a new connection")
    sys.exit("published without a descriptor")
except errors.NotSent as error:
    assert "Too many open files" in str(error), error
for descriptor in taken:
    os.close(descriptor)
wait(lambda: len(reader.stats().connections) == 2)
before = handled[restarting]
with Writer(restarting) as last:
    last.publish(topic, b"last")
wait(lambda: handled[restarting] > before and reader.stats().in_flight == 0)
other.publish(topic, b"other")
wait(lambda: handled[healthy] == 102)
assert not [line for line in lines if "interrupted" in line], lines
reader.close()
print("done")
"""


@pytest.mark.rule("CONN-3")
@pytest.mark.parametrize("mode", ["plain", "patched"])
@pytest.mark.program
def test_publishes_to_a_healthy_nsqd_succeed_while_no_descriptor_is_left(
    make_broker: MakeBroker, topic: str, mode: str
) -> None:
    healthy, restarting = make_broker(), make_broker()
    for broker in (healthy, restarting):
        broker.prepare(topic, "ch")
    with piped(["-c", WITHOUT_DESCRIPTORS, mode, healthy.tcp_address, restarting.tcp_address, topic]) as program:
        first = program.read_line()
        restarting.stop()
        restarting.restart()
        out, errors = program.process.communicate(b"restarted\n", timeout=60)
    assert (first, out, program.process.returncode) == (b"full\n", b"done\n", 0), errors.decode()


#: Uses the library for the first time while too few descriptors are left, and again when there is room.
FIRST_USE = """
import sys
mode, use, left, address, topic = sys.argv[1:]
if mode == "patched":
    from gevent import monkey
    monkey.patch_all()
import faulthandler, os, resource, threading
from gnsq_lite import Reader, Writer, errors
from gnsq_lite.net.os_threads import native, start_hub_thread
faulthandler.dump_traceback_later(20, exit=True)
handled = threading.Event()
def run():
    if use == "thread":
        begun = threading.Event()
        start_hub_thread("test", begun.set)
        assert begun.wait(10)
    elif use == "reader":
        reader = Reader(topic, "ch", lambda message: handled.set(), nsqd_tcp_addresses=address)
        reader.start(block=False)
        assert handled.wait(10)
        reader.close()
    else:
        with Writer(address) as writer:
            writer.publish_nowait(topic, b"x").result()
resource.setrlimit(resource.RLIMIT_NOFILE, (60, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
taken = []
try:
    while True:
        taken.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
close = native("os", "close")
for _ in range(int(left)):
    close(taken.pop())
try:
    run()
    sys.exit("ran without descriptors")
except errors.NSQError as error:
    assert "the I/O loop cannot be started: Too many open files" in str(error), error
for descriptor in taken:
    close(descriptor)
run()
print("done")
"""


@pytest.mark.parametrize("left", [0, 1, 3])
@pytest.mark.parametrize(
    ("mode", "use"),
    [("plain", "nowait"), ("plain", "reader"), ("patched", "nowait"), ("patched", "reader"), ("patched", "thread")],
)
@pytest.mark.program
def test_the_first_use_of_the_loop_without_descriptors_raises_at_once_and_the_next_succeeds(
    broker: ServerHandle, topic: str, mode: str, use: str, left: int
) -> None:
    broker.prepare(topic, "ch")
    broker.publish(topic, b"x")
    done = python(FIRST_USE, mode, use, str(left), broker.tcp_address, topic)
    assert (done.returncode, done.stdout) == (0, b"done\n"), done
