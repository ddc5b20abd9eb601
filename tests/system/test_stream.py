"""What a stream sees of its peer, and how it comes to be where a name has several addresses."""

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
def test_an_end_is_seen_behind_bytes_that_nobody_has_read() -> None:
    """Else a publish goes out to an nsqd that is gone, and its outcome is unknown."""
    here, there = socket.socketpair()
    here.setblocking(False)
    stream = Stream(Loop(gevent.get_hub()), here, "nsqd:4150")
    assert not stream.has_ended()
    there.sendall(HEARTBEAT)
    assert not stream.has_ended()
    there.close()
    assert stream.has_ended()
    assert stream.read() == HEARTBEAT  # it is still the reader's
    with pytest.raises(ConnectionLost, match="closed by nsqd") as lost:
        stream.read()
    stream.close(lost.value)
    assert stream.has_ended()


@contextmanager
def reset_behind(data: bytes) -> Iterator[Stream]:
    """A stream whose peer has said *data* and then, without having read all, closed: the next write fails."""
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
def test_what_nsqd_has_said_before_it_closed_is_read_although_a_write_fails_first() -> None:
    with reset_behind(b"error") as stream:
        stream.reads_after_write_error = True
        for _ in range(3):
            stream.write(b"PUB")
        gevent.sleep(0)
        assert (stream.closed, stream.unsent) == (None, 9)  # nothing is tried again and again
        assert stream.read() == b"error"
        with pytest.raises(ConnectionLost):
            stream.read()


def test_a_reader_has_a_lost_connection_closed_at_once() -> None:
    """What it still could read would be messages that nsqd sends to another."""
    with reset_behind(b"message") as stream:
        stream.write(b"FIN")
        assert stream.closed is not None
        with pytest.raises(ConnectionLost, match=r"reset|pipe"):
            stream.read()


# -- connecting -------------------------------------------------------------------------------------------------------

Dial = Callable[..., Stream]


@pytest.fixture
def hole() -> Iterator[int]:
    """A port that drops what is sent to it, as a firewall does: its listener's backlog is full."""
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
    """Connect to a name whose addresses are these ports of this host."""

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
def test_an_address_that_never_answers_leaves_time_for_those_behind_it(dial: Dial, hole: int, server: int) -> None:
    stream = dial(hole, server, timeout=5.0)
    assert stream._sock.getpeername()[1] == server
    stream.close(ConnectionLost("nsqd", "done"))


@pytest.mark.rule("CONN-5")
def test_the_time_of_all_addresses_is_that_of_the_whole(dial: Dial, hole: int, closed: int) -> None:
    for ports in ((hole,), (hole, hole), (closed, hole)):
        with pytest.raises(ConnectError, match=r"nsqd.example:4150: no connection within 0.2 s"):
            dial(*ports, timeout=0.2)
    with pytest.raises(ConnectError, match="cannot connect: Connection refused"):
        dial(hole, closed, timeout=2.0)
    with pytest.raises(ConnectError, match="cannot connect: no address"):
        dial(timeout=2.0)


def test_a_time_limit_of_the_callers_is_the_callers(dial: Dial, hole: int, server: int) -> None:
    own = gevent.Timeout(0.05)
    with pytest.raises(gevent.Timeout) as caught, own:
        dial(hole, server, timeout=20.0)
    assert caught.value is own
