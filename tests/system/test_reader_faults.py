"""No error ends a Reader that was subscribed.  A permanent error ends a Reader that was never subscribed."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from gnsq_lite import Reader, TLSOptions, Writer, errors
from tests.certs import Certificates
from tests.conftest import MakeBroker
from tests.contract.authserver import AuthServer
from tests.frames import frame
from tests.programs import wait_for
from tests.proxy import Proxy
from tests.servers import ServerHandle
from tests.stub_nsqd import Speak, granting, shake_hands, steps
from tests.system.clients import QUICK


def at_once(data: bytes) -> Speak:
    """Return a script that sends *data* instead of an answer to IDENTIFY."""
    return steps(lambda client: client.recv(4096), data)


def in_handshake(data: bytes, *then: Speak) -> Speak:
    """Return a script that grants TLS, and sends *data* after the client's first byte of the handshake."""
    return steps(granting(tls_v1=True), lambda client: client.recv(1), data, *then)


def reset(client: socket.socket) -> None:
    """Let the close send a reset."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def wrong_certificate(certs: Certificates) -> Speak:
    def speak(client: Any) -> None:
        shake_hands(client, tls_v1=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certs.expired.cert, certs.expired.key)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        server = context.wrap_bio(incoming, outgoing, server_side=True)
        while True:
            try:
                server.do_handshake()
                return
            except ssl.SSLWantReadError:
                client.sendall(outgoing.read())
                incoming.write(client.recv(65536))
            except ssl.SSLError:
                return

    return speak


PASSING = {
    "an end in the TLS handshake": in_handshake(b""),
    "a reset in the TLS handshake": in_handshake(b"", reset),
    "a garbage record": in_handshake(bytes(range(256))),
    "an HTTP answer": at_once(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"),
    "an unknown frame": at_once(frame(7, b"x")),
    "no auth server": at_once(frame(1, b"E_AUTH_FAILED AUTH failed")),
}
#: Errors that end a Reader that was never subscribed, and no other Reader.
PROOFS = {
    "TLS is not granted any more": granting(tls_v1=False),
    "no permission": at_once(frame(1, b'E_UNAUTHORIZED AUTH failed for SUB on "t" "ch" false "" ""')),
    "a name that is refused": at_once(frame(1, b'E_BAD_TOPIC SUB topic name "t" is not valid')),
}


@pytest.fixture
def secured(make_broker: MakeBroker, certs: Certificates) -> Iterator[tuple[ServerHandle, Proxy]]:
    broker = make_broker(tls_cert=certs.server.cert, tls_key=certs.server.key)
    with Proxy(broker.tcp_address) as proxy:
        yield broker, proxy


def secure(certs: Certificates, **options: Any) -> dict[str, Any]:
    return {**QUICK, "tls": TLSOptions(ca_file=certs.ca), **options}


@pytest.mark.rule("CONN-3")
@pytest.mark.parametrize("fault", [*PASSING, *PROOFS, "a certificate that has run out"])
def test_no_error_of_nsqd_ends_a_reader_that_was_subscribed(
    secured: tuple[ServerHandle, Proxy], certs: Certificates, topic: str, fault: str
) -> None:
    broker, proxy = secured
    speak = (PASSING | PROOFS | {"a certificate that has run out": wrong_certificate(certs)})[fault]
    seen: list[bytes] = []
    told: list[errors.NSQError] = []
    reader = Reader(
        topic,
        "ch",
        lambda m: seen.append(m.body),
        nsqd_tcp_addresses=proxy.address,
        on_error=told.append,
        **secure(certs),
    )
    with reader:
        wait_for(lambda: reader.stats().connections)
        assert reader.stats().unavailable == {}
        proxy.instead = speak
        proxy.reset()
        before = proxy.connections
        wait_for(lambda: proxy.connections >= before + 4)  # the Reader connects again and again
        stats = reader.stats()
        assert (stats.state, stats.error, list(stats.unavailable)) == ("connecting", None, [proxy.address])
        assert len(told) >= 3
        proxy.clear()
        wait_for(lambda: reader.stats().connections)
        broker.publish(topic, b"x")
        wait_for(lambda: seen == [b"x"])
        assert (reader.stats().state, reader.stats().unavailable) == ("connected", {})


@pytest.mark.rule("CONN-3")
@pytest.mark.parametrize("fault", PASSING)
def test_no_transient_error_at_the_start_ends_a_reader(
    secured: tuple[ServerHandle, Proxy], certs: Certificates, topic: str, fault: str
) -> None:
    broker, proxy = secured
    proxy.instead = PASSING[fault]
    seen: list[bytes] = []
    with Reader(
        topic, "ch", lambda m: seen.append(m.body), nsqd_tcp_addresses=proxy.address, **secure(certs)
    ) as reader:
        wait_for(lambda: proxy.connections >= 3)
        proxy.clear()
        wait_for(lambda: reader.stats().connections)
        broker.publish(topic, b"x")
        wait_for(lambda: seen == [b"x"])


@pytest.mark.rule("CONN-3")
@pytest.mark.parametrize("fault", PROOFS)
def test_a_permanent_error_ends_a_reader_that_was_never_subscribed_and_start_raises_it(
    secured: tuple[ServerHandle, Proxy], certs: Certificates, topic: str, fault: str
) -> None:
    _, proxy = secured
    proxy.instead = PROOFS[fault]
    told: list[errors.NSQError] = []
    reader = Reader(topic, "ch", print, nsqd_tcp_addresses=proxy.address, on_error=told.append, **secure(certs))
    reader.start(block=False)
    with pytest.raises(errors.NSQError) as caught:
        reader.join(20)
    stats = reader.stats()
    assert (stats.state, stats.error) == ("closed", str(caught.value))
    assert stats.unavailable == {proxy.address: str(caught.value)}
    assert told == [caught.value]


@pytest.mark.rule("CONN-3")
def test_a_reader_continues_while_one_of_several_nsqds_may_become_available(
    secured: tuple[ServerHandle, Proxy], certs: Certificates, topic: str
) -> None:
    broker, proxy = secured
    with Proxy(broker.tcp_address) as other:
        proxy.instead = PROOFS["TLS is not granted any more"]
        other.refusing = True
        both = [proxy.address, other.address]
        with Reader(topic, "ch", print, nsqd_tcp_addresses=both, **secure(certs)) as reader:
            wait_for(lambda: len(reader.stats().unavailable) == 2 and proxy.connections >= 3)
            other.clear()
            wait_for(lambda: reader.stats().connections)
            assert list(reader.stats().unavailable) == [proxy.address]


@pytest.mark.rule("SEC-4")
def test_a_permission_that_is_revoked_and_granted_again_leaves_the_reader_running(
    make_broker: MakeBroker, topic: str
) -> None:
    with AuthServer() as auth:
        broker = make_broker(auth_http_addresses=(auth.address,))
        auth.allow("secret")
        seen: list[bytes] = []
        told: list[errors.NSQError] = []
        with (
            Proxy(broker.tcp_address) as proxy,
            Reader(
                topic,
                "ch",
                lambda m: seen.append(m.body),
                nsqd_tcp_addresses=proxy.address,
                auth_secret="secret",
                on_error=told.append,
                **QUICK,
            ) as reader,
        ):
            for turn in range(3):
                wait_for(lambda: reader.stats().connections)
                auth.answers.clear()  # E_AUTH_FAILED
                if turn:
                    auth.allow("secret", topic="^another$")  # E_UNAUTHORIZED
                proxy.reset()
                wait_for(lambda: any(isinstance(error, errors.NsqdError) for error in told))
                auth.allow("secret")
                wait_for(lambda: reader.stats().connections)
                broker.http("POST", f"/pub?topic={topic}", b"%d" % turn)
                wait_for(lambda turn=turn: len(seen) == turn + 1)
                told.clear()


@pytest.mark.rule("CONN-3")
def test_readers_survive_restarts_of_nsqd_in_the_middle_of_their_tls_handshakes(
    make_broker: MakeBroker, certs: Certificates, topic: str
) -> None:
    broker = make_broker(tls_cert=certs.server.cert, tls_key=certs.server.key)
    broker.publish(topic, b"x")
    options = secure(certs, nsqd_tcp_addresses=broker.tcp_address, reconnect_delay=0.01, max_reconnect_delay=0.02)
    readers = [Reader(topic, f"ch{number}#ephemeral", lambda m: None, **options) for number in range(8)]
    try:
        for reader in readers:
            reader.start(block=False)
        for _ in range(5):
            wait_for(lambda: any(reader.stats().connections for reader in readers))
            broker.kill()
            broker.restart()
        for reader in readers:
            wait_for(lambda reader=reader: reader.stats().state == "connected")
    finally:
        for reader in readers:
            reader.close(0)


@pytest.mark.rule("ERR-2")
def test_the_error_for_an_nsqd_that_requires_tls_names_the_option(
    make_broker: MakeBroker, certs: Certificates, topic: str
) -> None:
    broker = make_broker(tls_cert=certs.server.cert, tls_key=certs.server.key, tls_required=True)
    with pytest.raises(errors.TLSRequiredError, match=r"TLS required.*tls="):
        Reader(topic, "ch", print, nsqd_tcp_addresses=broker.tcp_address, **QUICK).start()
    with Writer(broker.tcp_address, **QUICK) as writer, pytest.raises(errors.TLSRequiredError, match="set tls="):
        writer.publish(topic, b"x")
