"""TLS, snappy and DEFLATE: handshakes, combinations, policies."""

from __future__ import annotations

import contextlib
import ssl
from typing import Any

import pytest

from tests.certs import Certificates
from tests.conftest import Connect, MakeBroker
from tests.contract.authserver import AuthServer
from tests.rawclient import OK, Closed, RawClient, identify, mpub, pub, sized
from tests.servers import ServerHandle, http_call

COMPRESSIONS = ["none", "snappy", "deflate"]


def _tls_broker(make_broker: MakeBroker, certs: Certificates, **options: Any) -> ServerHandle:
    return make_broker(tls_cert=certs.server.cert, tls_key=certs.server.key, **options)


def _upgrade(client: RawClient, tls: ssl.SSLContext | None, compression: str, **fields: Any) -> dict[str, Any]:
    wanted = {compression: True} if compression != "none" else {}
    reply = client.identify(tls_v1=tls is not None, **wanted, **fields)
    if tls is not None:
        assert reply["tls_v1"] is True
        client.upgrade_tls(tls, "localhost")
        assert client.frame() == OK
    if compression == "snappy":
        assert reply["snappy"] is True
        client.upgrade_snappy()
        assert client.frame() == OK
    elif compression == "deflate":
        assert reply["deflate"] is True
        client.upgrade_deflate()
        assert client.frame() == OK
    return reply


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.rule("SEC-1")
@pytest.mark.rule("SEC-2")
@pytest.mark.rule("SEC-3")
def test_each_combination_carries_messages_both_ways(
    make_broker: MakeBroker, certs: Certificates, connect: Connect, topic: str, tls: bool, compression: str
) -> None:
    server = _tls_broker(make_broker, certs)
    client = connect(server)
    _upgrade(client, certs.client_context() if tls else None, compression)
    bodies = [b"x", b"compressible " * 20_000, bytes(range(256)) * 300, b"last"]
    assert client.ask(mpub(topic, *bodies)) == b"OK"
    for body in bodies:
        assert client.ask(pub(topic, body)) == b"OK"
    client.subscribe(topic, "c", ready=10)
    messages = [client.message() for _ in range(8)]
    assert sorted(message.body for message in messages) == sorted(bodies * 2)
    for message in messages:
        client.finish(message)
    client.sync()
    found = server.stats(topic, "c")
    assert (found["in_flight_count"], found["depth"]) == (0, 0)
    me = found["clients"][0]
    assert (me["tls"], me["snappy"], me["deflate"]) == (tls, compression == "snappy", compression == "deflate")
    if tls:
        assert me["tls_version"] in ("TLS1.2", "TLS1.3")
        assert me["tls_cipher_suite"]


@pytest.mark.rule("SEC-2")
def test_snappy_and_deflate_together_are_refused(broker: ServerHandle, connect: Connect) -> None:
    client = connect(broker)
    client.send(identify(feature_negotiation=True, snappy=True, deflate=True))
    assert client.error() == "E_IDENTIFY_FAILED cannot enable both deflate and snappy compression"
    assert client.is_closed()


@pytest.mark.parametrize(("asked", "granted"), [(0, 6), (1, 1), (3, 3), (6, 6), (9, 6)])
@pytest.mark.rule("SEC-2")
@pytest.mark.rule("NEG-3")
def test_the_deflate_level_is_capped(broker: ServerHandle, connect: Connect, asked: int, granted: int) -> None:
    client = connect(broker)
    reply = _upgrade(client, None, "deflate", deflate_level=asked)
    assert (reply["deflate_level"], reply["max_deflate_level"]) == (granted, 6)
    client.sync()


@pytest.mark.rule("NEG-4")
def test_where_tls_is_required_only_identify_is_taken_before(
    make_broker: MakeBroker, certs: Certificates, connect: Connect, topic: str
) -> None:
    server = _tls_broker(make_broker, certs, tls_required=True)
    for command, verb in ((pub(topic, b"x"), "PUB"), (b"SUB t c\n", "SUB"), (b"NOP\n", "NOP"), (b"AUTH\n", "AUTH")):
        client = connect(server)
        client.send(command)
        assert client.error() == f"E_INVALID cannot {verb} in current state (TLS required)"
        assert client.is_closed()
    client = connect(server)
    _upgrade(client, certs.client_context(), "none")
    client.sync()


@pytest.mark.rule("SEC-1")
def test_a_client_certificate_can_be_required(make_broker: MakeBroker, certs: Certificates, connect: Connect) -> None:
    server = _tls_broker(make_broker, certs, tls_client_auth_policy="require-verify", tls_root_ca_file=certs.ca)
    client = connect(server)
    _upgrade(client, certs.client_context(client=certs.client), "none")
    client.sync()
    for context in (certs.client_context(), certs.client_context(client=certs.stranger)):
        client = connect(server)
        assert client.identify(tls_v1=True)["tls_v1"] is True
        with pytest.raises((OSError, Closed)):  # TLS 1.3 reports it at the first read
            _hear(client, context)


@pytest.mark.rule("SEC-3")
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("kind", ["client", "stranger", "expired"])
def test_policy_require_takes_any_certificate_but_not_none(
    make_broker: MakeBroker, certs: Certificates, connect: Connect, kind: str, version: ssl.TLSVersion
) -> None:
    server = _tls_broker(make_broker, certs, tls_client_auth_policy="require", tls_root_ca_file=certs.ca)
    context = certs.client_context(client=getattr(certs, kind))
    context.minimum_version = context.maximum_version = version
    for _ in range(2):
        client = connect(server)
        _upgrade(client, context, "none")
        assert client.ask(pub("t", b"x")) == b"OK"
    client = connect(server)
    with pytest.raises((ssl.SSLError, ConnectionError, Closed)):
        _upgrade(client, certs.client_context(), "none")


def test_plain_bytes_after_tls_was_granted_end_the_connection(
    make_broker: MakeBroker, certs: Certificates, connect: Connect, topic: str
) -> None:
    server = _tls_broker(make_broker, certs)
    client = connect(server)
    assert client.identify(tls_v1=True)["tls_v1"] is True
    client.send(pub(topic, b"x"))
    with contextlib.suppress(ConnectionResetError):
        while client.socket.recv(4096):  # an alert; nsqd sends an error frame in plain text, too
            pass
    assert server.stats(topic) == {}


@pytest.mark.parametrize(("required", "plain_is_open"), [(False, True), ("tcp-https", True), (True, False)])
def test_https_serves_the_api_and_plain_http_only_where_it_may(
    make_broker: MakeBroker, certs: Certificates, required: bool | str, plain_is_open: bool
) -> None:
    server = _tls_broker(make_broker, certs, tls_required=required)
    assert server.https_address is not None
    answer = http_call(server.https_address, "GET", "/ping", tls=certs.client_context())
    assert (answer.status, answer.body) == (200, b"OK")
    plain = server.http("GET", "/ping")
    if plain_is_open:
        assert (plain.status, plain.body) == (200, b"OK")
    else:
        port = int(server.https_address.rpartition(":")[2])
        assert plain.status == 403
        assert plain.body == b'{"message": "TLS_REQUIRED", "https_port": %d}' % port
        assert plain.headers["x-nsq-content-type"] == "nsq; version=1.0"


@pytest.mark.rule("SEC-4")
def test_the_auth_server_learns_of_tls_and_the_client_certificate(
    make_broker: MakeBroker, certs: Certificates, connect: Connect
) -> None:
    with AuthServer() as auth_server:
        auth_server.allow("s")
        server = _tls_broker(
            make_broker,
            certs,
            tls_client_auth_policy="require-verify",
            tls_root_ca_file=certs.ca,
            auth_http_addresses=(auth_server.address,),
        )
        client = connect(server)
        _upgrade(client, certs.client_context(client=certs.client), "snappy")
        client.ask(b"AUTH\n" + sized(b"s"))
        (asked,) = auth_server.asked
        assert (asked["tls"], asked["common_name"]) == ("true", "client")


def _hear(client: RawClient, context: ssl.SSLContext) -> None:
    client.upgrade_tls(context, "localhost")
    client.frame()
