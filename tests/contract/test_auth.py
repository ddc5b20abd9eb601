"""AUTH against an HTTP auth server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import Connect, MakeBroker
from tests.contract.authserver import AuthServer
from tests.rawclient import dpub, mpub, pub, sized, sub
from tests.servers import ServerHandle, refusing_port


@pytest.fixture
def auth_server() -> Iterator[AuthServer]:
    with AuthServer() as server:
        yield server


@pytest.fixture
def guarded(make_broker: MakeBroker, auth_server: AuthServer) -> ServerHandle:
    """An nsqd that requires AUTH."""
    return make_broker(auth_http_addresses=(auth_server.address,))


def auth(secret: bytes) -> bytes:
    """AUTH."""
    return b"AUTH\n" + sized(secret)


@pytest.mark.rule("SEC-4")
def test_the_reply_says_who_one_is(
    guarded: ServerHandle, auth_server: AuthServer, connect: Connect, topic: str
) -> None:
    auth_server.allow("s3cret")
    client = connect(guarded)
    assert client.identify()["auth_required"] is True
    reply = client.ask(auth(b"s3cret"))
    assert reply == b'{"identity":"me","identity_url":"http://me.example","permission_count":1}'
    assert client.ask(pub(topic, b"x")) == b"OK"
    client.subscribe(topic, "c", ready=1)
    assert client.message().body == b"x"
    assert auth_server.asked == [
        {"path": "/auth", "remote_ip": "127.0.0.1", "tls": "false", "secret": "s3cret", "common_name": ""}
    ]
    me = guarded.stats(topic, "c")["clients"][0]
    assert (me["authed"], me["auth_identity"], me["auth_identity_url"]) == (True, "me", "http://me.example")


@pytest.mark.parametrize(
    ("command", "verb"),
    [(pub("t", b"x"), "PUB"), (mpub("t", b"x"), "MPUB"), (dpub("t", 0, b"x"), "DPUB"), (sub("t", "c"), "SUB")],
)
@pytest.mark.rule("SEC-4")
@pytest.mark.rule("ERR-2")
def test_without_auth_nothing_is_allowed(guarded: ServerHandle, connect: Connect, command: bytes, verb: str) -> None:
    client = connect(guarded)
    client.send(command)
    assert client.error() == f"E_AUTH_FIRST AUTH required before {verb}"
    assert client.is_closed()


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (pub("other", b"x"), 'PUB on "other" ""'),
        (mpub("other", b"x"), 'MPUB on "other" ""'),
        (dpub("other", 0, b"x"), 'DPUB on "other" ""'),
        (sub("other", "c"), 'SUB on "other" "c"'),
        (sub("mine", "bad"), 'SUB on "mine" "bad"'),
    ],
)
@pytest.mark.rule("SEC-4")
def test_what_the_secret_does_not_cover_is_refused(
    guarded: ServerHandle, auth_server: AuthServer, connect: Connect, command: bytes, text: str
) -> None:
    auth_server.allow("s", topic="^mine$", channels=("^good$", "^$"))
    client = connect(guarded)
    client.ask(auth(b"s"))
    client.send(command)
    assert client.error() == f"E_UNAUTHORIZED AUTH failed for {text}"
    assert client.is_closed()


@pytest.mark.parametrize(
    ("permission", "allowed", "refused"),
    [("publish", pub("t", b"x"), sub("t", "c")), ("subscribe", sub("t", "c"), pub("t", b"x"))],
)
@pytest.mark.rule("SEC-4")
def test_publishing_and_subscribing_are_permissions_of_their_own(
    guarded: ServerHandle, auth_server: AuthServer, connect: Connect, permission: str, allowed: bytes, refused: bytes
) -> None:
    auth_server.allow("s", permissions=(permission,))
    for command, good in ((allowed, True), (refused, False)):
        client = connect(guarded)
        client.ask(auth(b"s"))
        client.send(command)
        if good:
            assert client.frame() == (0, b"OK")
        else:
            assert client.error().startswith("E_UNAUTHORIZED AUTH failed for ")


@pytest.mark.parametrize(
    "reply",
    [
        (403, {"message": "NO"}),
        (500, {}),
        (200, b"no json"),
        (200, {"ttl": 0, "identity": "me", "authorizations": []}),
        (200, {"ttl": 60, "authorizations": [{"topic": "(", "channels": [".*"], "permissions": ["publish"]}]}),
        (200, {"ttl": 60, "authorizations": [{"topic": ".*", "channels": ["("], "permissions": ["publish"]}]}),
        (200, {"ttl": 60, "authorizations": [{"topic": ".*", "channels": [".*"], "permissions": ["eat"]}]}),
    ],
    ids=["403", "500", "no-json", "ttl-0", "bad-topic", "bad-channel", "bad-permission"],
)
@pytest.mark.rule("SEC-4")
def test_an_auth_server_that_refuses_or_talks_nonsense_fails_the_auth(
    guarded: ServerHandle, auth_server: AuthServer, connect: Connect, reply: tuple[int, Any]
) -> None:
    auth_server.answers["s"] = reply
    client = connect(guarded)
    client.send(auth(b"s"))
    assert client.error() == "E_AUTH_FAILED AUTH failed"
    assert client.is_closed()


@pytest.mark.rule("SEC-4")
def test_a_secret_that_allows_nothing_is_unauthorized(
    guarded: ServerHandle, auth_server: AuthServer, connect: Connect
) -> None:
    auth_server.answers["s"] = (200, {"ttl": 60, "identity": "me", "authorizations": []})
    client = connect(guarded)
    client.send(auth(b"s"))
    assert client.error() == "E_UNAUTHORIZED AUTH no authorizations found"
    assert client.is_closed()


def test_an_auth_server_that_is_down_fails_the_auth(make_broker: MakeBroker, connect: Connect) -> None:
    with refusing_port() as port:
        client = connect(make_broker(auth_http_addresses=(f"127.0.0.1:{port}",)))
        client.send(auth(b"s"))
        assert client.error() == "E_AUTH_FAILED AUTH failed"


@pytest.mark.rule("SEC-4")
def test_what_was_allowed_is_asked_again_after_its_time(
    guarded: ServerHandle, auth_server: AuthServer, connect: Connect
) -> None:
    auth_server.allow("s", ttl=1)
    client = connect(guarded)
    client.ask(auth(b"s"))
    assert client.ask(pub("t", b"x")) == b"OK"
    assert len(auth_server.asked) == 1
    time.sleep(1.1)
    assert client.ask(pub("t", b"x")) == b"OK"
    assert len(auth_server.asked) == 2
    auth_server.allow("s", topic="^other$", ttl=1)
    time.sleep(1.1)
    client.send(pub("t", b"x"))
    assert client.error() == 'E_UNAUTHORIZED AUTH failed for PUB on "t" ""'
    assert client.is_closed()


@pytest.mark.rule("ERR-3")
def test_auth_is_refused_where_it_is_not_configured(broker: ServerHandle, connect: Connect) -> None:
    client = connect(broker)
    assert client.identify()["auth_required"] is False
    client.send(auth(b"s"))
    assert client.error() == "E_AUTH_DISABLED AUTH disabled"
    assert client.is_closed()


def test_auth_twice_is_refused(guarded: ServerHandle, auth_server: AuthServer, connect: Connect) -> None:
    auth_server.allow("s")
    client = connect(guarded)
    client.ask(auth(b"s"))
    client.send(auth(b"s"))
    assert client.error() == "E_INVALID AUTH already set"
    assert client.is_closed()


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (b"AUTH now\n", "E_INVALID AUTH invalid number of parameters"),
        (b"AUTH\n\0\0\0\0", "E_BAD_BODY AUTH invalid body size 0"),
        (b"AUTH\n\xff\xff\xff\xff", "E_BAD_BODY AUTH invalid body size -1"),
        (b"AUTH\n\x7f\xff\xff\xff", "E_BAD_BODY AUTH body too big 2147483647 > 5242880"),
    ],
)
def test_a_malformed_auth_is_refused(guarded: ServerHandle, connect: Connect, sent: bytes, text: str) -> None:
    client = connect(guarded)
    client.send(sent)
    assert client.error() == text
    assert client.is_closed()
