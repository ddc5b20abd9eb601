"""A stream notices the end of its peer, and connects to a name with several addresses."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import gevent
import pytest

from gnsq_lite.errors import ConnectError, ConnectionLost
from gnsq_lite.net import dialing
from gnsq_lite.net.loop import Loop
from gnsq_lite.net.stream import Stream
from tests.servers import refusing_port

HEARTBEAT = b"\0\0\0\x0f\0\0\0\0_heartbeat_"


@pytest.mark.rule("PUB-3")
def test_has_ended_detects_eof_behind_unread_bytes() -> None:
    """Otherwise a publish would be sent to a closed connection, and its outcome would be unknown."""
    here, there = socket.socketpair()
    here.setblocking(False)
    stream = Stream(Loop(gevent.get_hub()), here, "nsqd:4150")
    assert not stream.has_ended()
    there.sendall(HEARTBEAT)
    assert not stream.has_ended()
    there.close()
    assert stream.has_ended()
    assert stream.read() == HEARTBEAT  # read() still returns it
    with pytest.raises(ConnectionLost, match="closed by nsqd") as lost:
        stream.read()
    stream.close(lost.value)
    assert stream.has_ended()


@contextmanager
def reset_behind(data: bytes) -> Iterator[Stream]:
    """Return a stream whose peer has sent *data* and closed with unread bytes, so that the next write fails."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = socket.create_connection(server.getsockname())
        there, _ = server.accept()
    here.setblocking(False)
    here.send(b"not read")
    there.sendall(data)
    there.close()
    stream = Stream(Loop(gevent.get_hub()), here, "nsqd:4150")
    yield stream
    stream.close(ConnectionLost("nsqd:4150", "the end of the test"))


@pytest.mark.rule("PUB-2")
def test_nsqds_last_bytes_are_read_after_a_write_error() -> None:
    with reset_behind(b"error") as stream:
        stream.reads_after_write_error = True
        for _ in range(3):
            stream.write(b"PUB")
        gevent.sleep(0)
        assert (stream.closed, stream.unsent) == (None, 9)  # the stream does not try again
        assert stream.read() == b"error"
        with pytest.raises(ConnectionLost):
            stream.read()


def test_without_reads_after_write_error_a_write_error_closes_the_stream() -> None:
    """Messages that a Reader could still read are sent to another consumer too."""
    with reset_behind(b"message") as stream:
        stream.write(b"FIN")
        assert stream.closed is not None
        with pytest.raises(ConnectionLost, match=r"reset|pipe"):
            stream.read()


# -- connecting -------------------------------------------------------------------------------------------------------

Dial = Callable[..., Stream]


@pytest.fixture
def hole() -> Iterator[int]:
    """A port that drops packets, as a firewall does, because the backlog of its listener is full."""
    with ExitStack() as opened:
        listener = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            sock = opened.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


@pytest.fixture
def server() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.fixture
def closed() -> Iterator[int]:
    with refusing_port() as port:
        yield port


@pytest.fixture
def dial(monkeypatch: pytest.MonkeyPatch) -> Dial:
    """Connect to a name whose addresses are the given ports of this host."""

    def to(*ports: int, timeout: float) -> Stream:
        class Resolver:
            def getaddrinfo(self, *_: Any) -> list[Any]:
                return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)) for port in ports]

        hub = gevent.get_hub()
        monkeypatch.setattr(hub, "resolver", Resolver())
        loop = Loop(hub)
        return Stream(loop, dialing.dial("nsqd.example", 4150, timeout), "nsqd.example:4150")

    return to


@pytest.mark.rule("CONN-5")
def test_an_address_that_never_answers_leaves_time_for_the_next_addresses(dial: Dial, hole: int, server: int) -> None:
    stream = dial(hole, server, timeout=5.0)
    assert stream._sock.getpeername()[1] == server
    stream.close(ConnectionLost("nsqd", "done"))


@pytest.mark.rule("CONN-5")
def test_connect_timeout_limits_all_addresses_together(dial: Dial, hole: int, closed: int) -> None:
    for ports in ((hole,), (hole, hole), (closed, hole)):
        with pytest.raises(ConnectError, match=r"nsqd.example:4150: no connection within 0.2 s"):
            dial(*ports, timeout=0.2)
    with pytest.raises(ConnectError, match="cannot connect: Connection refused"):
        dial(hole, closed, timeout=2.0)
    with pytest.raises(ConnectError, match="cannot connect: no address"):
        dial(timeout=2.0)


def test_a_timeout_of_the_caller_propagates(dial: Dial, hole: int, server: int) -> None:
    own = gevent.Timeout(0.05)
    with pytest.raises(gevent.Timeout) as caught, own:
        dial(hole, server, timeout=20.0)
    assert caught.value is own
