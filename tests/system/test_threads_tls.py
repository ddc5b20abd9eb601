"""TLS while callers' threads publish by themselves: its errors, its end, and AUTH."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from gnsq_lite import Writer, errors
from tests import tls_variants
from tests.certs import Certificates
from tests.conftest import MakeBroker
from tests.contract.authserver import AuthServer
from tests.programs import wait_for
from tests.system.clients import QUICK
from tests.system.publishing_threads import Crowd

OK = b"\0\0\0\6\0\0\0\0OK"


class Peer:
    """An nsqd with TLS that answers publishes until a test changes this."""

    def __init__(self, raw: socket.socket, context: ssl.SSLContext) -> None:
        self._raw = raw
        begin = raw.makefile("rb", buffering=0)
        begin.read(4)
        assert begin.readline() == b"IDENTIFY\n"
        begin.read(*struct.unpack(">I", begin.read(4)))
        granted = b'{"tls_v1": true, "max_rdy_count": 2500}'
        raw.sendall(struct.pack(">II", len(granted) + 4, 0) + granted)
        self._tls = context.wrap_socket(raw.dup(), server_side=True, suppress_ragged_eofs=False)
        self._tls.sendall(OK)
        self.published = 0

    def answer(self, until: Callable[[Peer], bool]) -> str:
        """Answer publishes; return how the client ended."""
        try:
            commands = self._tls.makefile("rb")
            while commands.readline().startswith(b"PUB"):
                commands.read(*struct.unpack(">I", commands.read(4)))
                self.published += 1
                if until(self):
                    return "stopped"
                self._tls.sendall(OK)
            return "goodbye"
        except ssl.SSLEOFError:
            return "no goodbye"

    def babble(self) -> None:
        """Send what is no TLS, and wait for the client to close."""
        self._raw.sendall(b"this is no record at all" * 10)
        with suppress(OSError):
            while self._raw.recv(65536):
                pass

    def close(self) -> None:
        """Close both ends."""
        self._tls.close()
        self._raw.close()


@contextmanager
def peers(certs: Certificates, serve: Callable[[Peer, int], None]) -> Iterator[str]:
    """Have *serve* called with each connection and its number, each in a thread; yield the address."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certs.server.cert, certs.server.key)

    threads: list[threading.Thread] = []

    def run(raw: socket.socket, number: int) -> None:
        with raw, suppress(OSError):
            peer = Peer(raw, context)
            try:
                serve(peer, number)
            finally:
                peer.close()

    def accept(listener: socket.socket) -> None:
        with suppress(OSError):
            for number in range(1000):
                threads.append(threading.Thread(target=run, args=(listener.accept()[0], number)))
                threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepting = threading.Thread(target=accept, args=(listener,))
        accepting.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
    for thread in (accepting, *threads):
        thread.join()


@pytest.mark.rule("SEC-1")
@pytest.mark.rule("PUB-2")
def test_bytes_that_are_no_tls_end_the_connection_and_threads_go_on_with_the_next(certs: Certificates) -> None:
    taken: list[int] = []
    is_first = threading.Lock()

    def serve(peer: Peer, number: int) -> None:
        # Five threads use at most five connections, so one of these gets more than 50 of 300 publishes.
        if peer.answer(lambda peer: peer.published > 50 and is_first.acquire(blocking=False)) == "stopped":
            peer.babble()
        taken.append(peer.published)

    with peers(certs, serve) as address, Writer(address, **tls_variants.options("tls", certs.ca), **QUICK) as writer:
        crowd = Crowd(writer, "t", 5)
        crowd.publishes(300)
        crowd.stop()
        stats = writer.stats()
        writer.close()
    assert 1 <= len(crowd.failed) <= 5  # what was unanswered on that connection, which all threads may share
    assert {type(error) for _, error in crowd.failed} == {errors.OutcomeUnknown}
    assert all("TLS failed" in str(error) for _, error in crowd.failed)
    assert (stats.published, stats.unknown, stats.failed) == (crowd.published(), len(crowd.failed), 0)
    assert sum(taken) <= stats.published + stats.unknown


@pytest.mark.rule("SEC-1")
def test_a_connection_that_threads_used_ends_with_a_goodbye(certs: Certificates) -> None:
    ends: list[str] = []

    def serve(peer: Peer, number: int) -> None:
        ends.append(peer.answer(lambda peer: False))

    with peers(certs, serve) as address:
        with Writer(address, **tls_variants.options("tls", certs.ca), **QUICK) as writer:
            crowd = Crowd(writer, "t", 3)
            crowd.publishes(100)
            crowd.stop()
        wait_for(lambda: ends and set(ends) == {"goodbye"})


@pytest.mark.rule("SEC-4")
@pytest.mark.parametrize("kind", tls_variants.WRAPPED)
def test_a_refusal_meets_the_publish_it_is_for_whichever_thread_reads_it(
    make_broker: MakeBroker, certs: Certificates, kind: str
) -> None:
    options: dict[str, Any] = {**tls_variants.options(kind, certs.ca), **QUICK, "auth_secret": "good"}
    with AuthServer() as auth:
        auth.allow("good", topic="^mine$")
        broker = make_broker(tls_cert=certs.server.cert, tls_key=certs.server.key, auth_http_addresses=(auth.address,))
        with Writer(broker.tcp_address, **options) as writer:
            refused: list[type[BaseException]] = []
            crowd = Crowd(writer, "mine", 4)

            def ask() -> None:
                for _ in range(5):
                    with pytest.raises(errors.NSQError) as caught:
                        writer.publish("theirs", b"x", timeout=20.0)
                    refused.append(caught.type)
                    crowd.publishes(20)

            asks = threading.Thread(target=ask)
            asks.start()
            asks.join()
            crowd.stop()
    # What it was sent behind may be lost with the connection that the other's refusal costs.
    assert set(refused) <= {errors.UnauthorizedError, errors.OutcomeUnknown}
    assert errors.UnauthorizedError in refused
    assert {type(error) for _, error in crowd.failed} <= {errors.OutcomeUnknown}
