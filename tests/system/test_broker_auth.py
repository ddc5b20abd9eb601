"""AUTH of the embedded broker against an auth server."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from gnsq_lite.broker import AuthRequest, Broker
from tests.contract.authserver import AuthServer
from tests.rawclient import RawClient, pub, sized, sub

pytestmark = pytest.mark.rule("SEC-4")


def authorize(client: RawClient, secret: bytes) -> dict[str, Any]:
    reply: dict[str, Any] = json.loads(client.ask(b"AUTH\n", sized(secret)))
    return reply


def test_the_auth_server_may_be_given_as_a_url() -> None:
    with AuthServer() as auth:
        auth.allow("s")
        url = f"http://{auth.address}/other/path"
        with Broker(auth=url) as broker, RawClient(broker.nsqd_tcp_address) as client:
            authorize(client, b"s")
        assert [asked["path"] for asked in auth.asked] == ["/other/path"]


def test_auth_may_be_a_function_that_allows_everything_nothing_or_what_an_auth_server_would() -> None:
    requests: list[AuthRequest] = []
    only_publish = {"topic": "^t$", "channels": [""], "permissions": ["publish"]}
    some = {"ttl": 60, "identity": "tester", "authorizations": [only_publish]}

    def decide(request: AuthRequest) -> Any:
        requests.append(request)
        return {"all": True, "some": some}.get(request.secret)

    with Broker(auth=decide) as broker:
        with RawClient(broker.nsqd_tcp_address) as client:
            assert authorize(client, b"all") == {"identity": "", "identity_url": "", "permission_count": 1}
            assert client.ask(pub("u", b"1")) == b"OK"
            client.subscribe("u", "c")
        with RawClient(broker.nsqd_tcp_address) as client:
            assert authorize(client, b"some")["identity"] == "tester"
            assert client.ask(pub("t", b"1")) == b"OK"
            client.send(sub("t", "c"))
            assert client.error() == 'E_UNAUTHORIZED AUTH failed for SUB on "t" "c"'
        with RawClient(broker.nsqd_tcp_address) as client:
            client.send(b"AUTH\n", sized(b"none"))
            assert client.error() == "E_AUTH_FAILED AUTH failed"
    assert requests[0] == AuthRequest("all", "127.0.0.1", False, "")


def test_an_auth_server_that_says_nothing_stops_only_who_asks() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with (
            Broker(auth=address) as broker,
            RawClient(broker.nsqd_tcp_address) as waiting,
            RawClient(broker.nsqd_tcp_address) as other,
        ):
            waiting.send(b"AUTH\n", sized(b"s"))
            other.send(b"FOO\n")
            assert other.error() == "E_INVALID invalid command FOO"
            assert waiting.is_silent(0.05)  # for 5 s, the time limit of the auth server
            assert waiting.error() == "E_AUTH_FAILED AUTH failed"
