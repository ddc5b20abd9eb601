"""TLS and compression of the embedded broker, with a plain client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gnsq_lite.broker import Broker
from tests.certs import Certificates, Pair
from tests.rawclient import OK, RawClient, pub


@contextmanager
def tls_broker(certs: Certificates, **options: Any) -> Iterator[Broker]:
    with Broker(tls_cert=certs.server.cert, tls_key=certs.server.key, **options) as broker:
        yield broker


def secure(client: RawClient, certs: Certificates, pair: Pair | None = None, **fields: Any) -> dict[str, Any]:
    reply = client.identify(tls_v1=True, **fields)
    client.upgrade_tls(certs.client_context(client=pair), "localhost")
    assert client.frame() == OK
    return reply


def test_commands_sent_with_the_last_bytes_of_the_handshake_are_carried_out(certs: Certificates) -> None:
    with tls_broker(certs) as broker, RawClient(broker.nsqd_tcp_address) as client:
        client.identify(tls_v1=True)
        client.upgrade_tls(certs.client_context(), "localhost")
        client.send(pub("t", b"x"), pub("t", b"y"))
        assert [client.frame() for _ in range(3)] == [OK, OK, OK]


@pytest.mark.parametrize("kind", ["snappy", "deflate"])
def test_bytes_that_are_not_compressed_as_agreed_end_the_connection(kind: str) -> None:
    with Broker() as broker, RawClient(broker.nsqd_tcp_address) as client:
        client.identify(**{kind: True})
        client.socket.sendall(b"\xff\xff\xff\xff not compressed at all\n" * 10)
        getattr(client, f"upgrade_{kind}")()
        assert client.frame() == OK
        assert client.is_closed()


def test_one_byte_at_a_time_is_enough(certs: Certificates) -> None:
    with tls_broker(certs) as broker, RawClient(broker.nsqd_tcp_address) as client:
        secure(client, certs, deflate=True)
        client.upgrade_deflate()
        assert client.frame() == OK
        data = client._deflate(pub("t", b"dribble"))
        for n in range(len(data)):
            client.socket.sendall(data[n : n + 1])
        assert client.frame() == OK
