"""AUTH of the embedded broker against an auth server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from gnsq_lite.broker import AuthRequest, Broker
from tests.rawclient import RawClient, pub, sized, sub

pytestmark = pytest.mark.rule("SEC-4")


class AuthServer:
    """Knows secrets and what they allow; keeps what it was asked."""

    def __init__(self) -> None:
        self.grants: dict[str, dict[str, Any]] = {}
        self.asked: list[tuple[str, dict[str, list[str]]]] = []
        self.status = 200
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                url = urlsplit(self.path)
                query = parse_qs(url.query, keep_blank_values=True)
                outer.asked.append((url.path, query))
                grant = outer.grants.get(query["secret"][0])
                body = json.dumps(grant).encode() if grant else b"{}"
                self.send_response(outer.status if grant else 403)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def allow(topic: str, *permissions: str, ttl: int = 60, channels: tuple[str, ...] = (".*",)) -> dict[str, Any]:
    return {
        "ttl": ttl,
        "identity": "tester",
        "identity_url": "http://id.example",
        "authorizations": [{"topic": topic, "channels": list(channels), "permissions": list(permissions)}],
    }


@pytest.fixture
def auth() -> Iterator[AuthServer]:
    server = AuthServer()
    yield server
    server.close()


@pytest.fixture
def broker(auth: AuthServer) -> Iterator[Broker]:
    with Broker(auth=auth.address) as made:
        yield made


def authorize(client: RawClient, secret: bytes) -> dict[str, Any]:
    reply: dict[str, Any] = json.loads(client.ask(b"AUTH\n", sized(secret)))
    return reply


def test_the_auth_server_may_be_given_as_a_url(auth: AuthServer) -> None:
    auth.grants["s"] = allow("t", "publish")
    url = f"http://{auth.address}/other/path"
    with Broker(auth=url) as broker, RawClient(broker.nsqd_tcp_address) as client:
        authorize(client, b"s")
    assert {path for path, _ in auth.asked} == {"/other/path"}


def test_auth_may_be_a_function_that_allows_everything_nothing_or_what_an_auth_server_would() -> None:
    requests: list[AuthRequest] = []

    def decide(request: AuthRequest) -> Any:
        requests.append(request)
        return {"all": True, "some": allow("^t$", "publish", channels=("",))}.get(request.secret)

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


def test_an_auth_server_that_says_nothing_stops_only_who_asks(auth: AuthServer) -> None:
    import socket

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
            assert other.error(timeout=0.9) == "E_INVALID invalid command FOO"
            assert waiting.error() == "E_AUTH_FAILED AUTH failed"


def test_auth_without_auth_servers_is_refused() -> None:
    with Broker() as broker, RawClient(broker.nsqd_tcp_address) as client:
        client.send(b"AUTH\n", sized(b"s"))
        assert client.error() == "E_AUTH_DISABLED AUTH disabled"
        assert client.is_closed()
