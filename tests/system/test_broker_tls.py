"""TLS and compression of the embedded broker, with a plain client."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gnsq_lite.broker import Broker
from tests.certs import Certificates, Pair
from tests.rawclient import OK, Closed, RawClient, mpub, pub


@contextmanager
def tls_broker(certs: Certificates, **options: Any) -> Iterator[Broker]:
    with Broker(tls_cert=certs.server.cert, tls_key=certs.server.key, **options) as broker:
        yield broker


def secure(client: RawClient, certs: Certificates, pair: Pair | None = None, **fields: Any) -> dict[str, Any]:
    reply = client.identify(tls_v1=True, **fields)
    client.upgrade_tls(certs.client_context(client=pair), "localhost")
    assert client.frame() == OK
    return reply


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("compression", ["none", "snappy", "deflate"])
def test_messages_go_both_ways_in_every_combination(certs: Certificates, tls: bool, compression: str) -> None:
    bodies = [b"small", bytes(range(256)) * 2000, b"x" * 1_000_000]
    fields: dict[str, Any] = {} if compression == "none" else {compression: True}
    with tls_broker(certs) as broker, RawClient(broker.nsqd_tcp_address) as client:
        reply = secure(client, certs, **fields) if tls else client.identify(**fields)
        assert (reply["tls_v1"], reply["snappy"], reply["deflate"]) == (
            tls,
            compression == "snappy",
            compression == "deflate",
        )
        if compression != "none":
            getattr(client, f"upgrade_{compression}")()
            assert client.frame() == OK
        assert client.ask(mpub("t", *bodies)) == b"OK"
        client.subscribe("t", "c", ready=10)
        assert [client.message().body for _ in bodies] == bodies
        (entry,) = broker.node.stats()["topics"][0]["channels"][0]["clients"]
        assert (entry["tls"], entry["snappy"], entry["deflate"]) == (
            tls,
            compression == "snappy",
            compression == "deflate",
        )


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_both_versions_of_tls_are_spoken_and_shown_in_stats(certs: Certificates, version: ssl.TLSVersion) -> None:
    context = certs.client_context()
    context.minimum_version = context.maximum_version = version
    with tls_broker(certs) as broker, RawClient(broker.nsqd_tcp_address) as client:
        client.identify(tls_v1=True)
        client.upgrade_tls(context, "localhost")
        assert client.frame() == OK
        client.subscribe("t", "c")
        (entry,) = broker.node.stats()["topics"][0]["channels"][0]["clients"]
        assert entry["tls_version"] == {"TLSv1_2": "TLS1.2", "TLSv1_3": "TLS1.3"}[version.name]
        assert entry["tls_cipher_suite"].startswith("TLS_")


def test_an_older_tls_than_allowed_is_refused(certs: Certificates) -> None:
    context = certs.client_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with tls_broker(certs, tls_min_version="tls1.3") as broker, RawClient(broker.nsqd_tcp_address) as client:
        client.identify(tls_v1=True)
        with pytest.raises(ssl.SSLError):
            client.upgrade_tls(context, "localhost")


@pytest.mark.parametrize(
    ("policy", "refused"), [("require", "no"), ("require-verify", "no"), ("require-verify", "bad")]
)
def test_a_client_certificate_is_demanded_by_policy(certs: Certificates, policy: str, refused: str) -> None:
    with tls_broker(certs, tls_client_auth_policy=policy, tls_root_ca_file=certs.ca) as broker:
        with RawClient(broker.nsqd_tcp_address) as client:
            secure(client, certs, certs.client)
            assert client.ask(pub("t", b"x")) == b"OK"
        pair = None if refused == "no" else certs.stranger
        with RawClient(broker.nsqd_tcp_address) as client, pytest.raises((ssl.SSLError, ConnectionError, Closed)):
            secure(client, certs, pair)


def test_without_tls_a_broker_that_requires_it_takes_nothing_and_its_http_api_says_where_https_is(
    certs: Certificates,
) -> None:
    with tls_broker(certs, tls_required=True) as broker:
        with RawClient(broker.nsqd_tcp_address) as client:
            client.send(pub("t", b"x"))
            assert client.error() == "E_INVALID cannot PUB in current state (TLS required)"
            assert client.is_closed()
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"http://{broker.http_address}/ping", timeout=10)
        with caught.value as answer:
            port = broker.node.https_address.rpartition(":")[2]
            assert (answer.code, json.load(answer)) == (403, {"message": "TLS_REQUIRED", "https_port": int(port)})


@pytest.mark.parametrize("required", [False, "tcp-https"])
def test_https_answers_beside_http(certs: Certificates, required: Any) -> None:
    with tls_broker(certs, tls_required=required) as broker:
        with urllib.request.urlopen(f"http://{broker.http_address}/ping", timeout=10) as answer:
            assert answer.read() == b"OK"
        context = certs.client_context()
        with urllib.request.urlopen(f"https://{broker.node.https_address}/ping", timeout=10, context=context) as answer:
            assert answer.read() == b"OK"


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
