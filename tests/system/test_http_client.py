"""TLS, tokens, idle connections, threads and forks of the HTTP clients."""

from __future__ import annotations

import logging
import os
import pickle
import socket
import threading
from base64 import b64encode
from typing import Any

import pytest
import urllib3

from gnsq_lite import errors
from gnsq_lite.http import LookupdClient, NsqdClient
from gnsq_lite.options import HTTPOptions, TLSOptions
from tests.certs import Certificates, server_context
from tests.servers import refusing_port
from tests.system.http_stub import answer, read_request, scripted, stub

PING = {"/ping": (200, b"OK")}


def ping_fails(kind: type[errors.HTTPError], match: str | None, address: str, **settings: Any) -> None:
    with NsqdClient(address, **settings) as client, pytest.raises(kind, match=match):
        client.ping()


# -- TLS --------------------------------------------------------------------------------------------------------------


@pytest.mark.rule("SEC-1")
def test_https_works_with_a_private_ca_and_verifies_by_default(certs: Certificates) -> None:
    with stub(server_context(certs)) as server:
        server.answers.update(PING)
        for tls in (TLSOptions(ca_file=certs.ca), certs.client_context()):
            for address in (f"https://{server.address}", server.address):
                with NsqdClient(address, tls=tls) as client:
                    assert client.ping() == "OK"
        for trusting_the_system in (None, True):
            ping_fails(
                errors.HTTPConnectError,
                r"does not verify.*TLSOptions\(ca_file=",
                f"https://{server.address}",
                tls=trusting_the_system,
            )
    assert len(server.requests) == 4


@pytest.mark.parametrize(
    ("pair", "why"),
    [("wrong_host", r"not valid for '127.0.0.1'.*TLSOptions\(server_hostname="), ("expired", "has expired$")],
)
@pytest.mark.rule("SEC-1")
def test_a_certificate_for_another_host_or_another_day_is_refused(certs: Certificates, pair: str, why: str) -> None:
    with stub(server_context(certs, getattr(certs, pair))) as server:
        server.answers.update(PING)
        ping_fails(errors.HTTPConnectError, why, server.address, tls=TLSOptions(ca_file=certs.ca))
    assert server.requests == []


def test_verification_can_be_turned_off_and_urllib3_warns(certs: Certificates) -> None:
    with stub(server_context(certs, certs.wrong_host)) as server:
        server.answers.update(PING)
        client = NsqdClient(server.address, tls=TLSOptions(verify=False))
        with client, pytest.warns(urllib3.exceptions.InsecureRequestWarning):
            assert client.ping() == "OK"


def test_a_client_certificate_is_sent_and_its_absence_is_an_error(certs: Certificates) -> None:
    with stub(server_context(certs, client_ca=certs.ca)) as server:
        server.answers.update(PING)
        tls = TLSOptions(ca_file=certs.ca, cert_file=certs.client.cert, key_file=certs.client.key)
        with NsqdClient(server.address, tls=tls) as client:
            assert client.ping() == "OK"
        # With TLS 1.3 the server refuses the client after the client has sent its request.
        ping_fails(errors.HTTPConnectionLost, None, server.address, tls=TLSOptions(ca_file=certs.ca))
    assert len(server.requests) == 1


# -- secrets ----------------------------------------------------------------------------------------------------------


def test_a_token_is_in_the_header_but_in_no_repr_error_or_pickle(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with stub() as server:
        server.answers["/info"] = (500, {"message": "no"})
        options = HTTPOptions(auth_token="s3cret-token")
        with LookupdClient(server.address, options) as client, pytest.raises(errors.HTTPStatusError) as caught:
            client.info()
        assert server.requests[0].headers["authorization"] == "Bearer s3cret-token"
    shown = [repr(client), repr(options), str(caught.value), repr(caught.value), caplog.text]
    assert not any("s3cret" in text for text in shown)
    assert b"s3cret" not in pickle.dumps(caught.value)


def test_user_and_password_of_a_url_become_basic_auth_and_are_not_shown() -> None:
    with stub() as server:
        with LookupdClient(f"http://user:p%40ss@{server.address}/nsq/") as client:
            assert client.url == f"http://{server.address}/nsq"
            with pytest.raises(errors.HTTPStatusError) as caught:
                client.ping()
        assert server.requests[0].headers["authorization"] == "Basic dXNlcjpwQHNz"
        assert server.requests[0].path == "/nsq/ping"
    assert "p@ss" not in f"{caught.value!r}{client!r}"
    assert "p%40ss" not in f"{caught.value!r}{client!r}"


@pytest.mark.parametrize(
    ("userinfo", "sent"),
    [
        ("j%C3%BCrgen:p%E2%82%ACss", "jürgen:p€ss".encode()),
        ("jürgen:p€ss", "jürgen:p€ss".encode()),
        ("joe:%FC", b"joe:\xfc"),
        ("joe", b"joe:"),
        ("joe:a:b%2Fc", b"joe:a:b/c"),
    ],
)
def test_credentials_of_any_characters_are_sent_as_utf8(userinfo: str, sent: bytes) -> None:
    with stub() as server:
        server.answers.update(PING)
        with LookupdClient(f"http://{userinfo}@{server.address}") as client:
            assert client.ping() == "OK"
        (request,) = server.requests
    assert request.headers["authorization"] == f"Basic {b64encode(sent).decode()}"


def test_credentials_over_plain_http_to_another_host_log_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    LookupdClient("127.0.0.1", auth_token="x")
    LookupdClient("https://lookup.example", auth_token="x")
    assert caplog.text == ""
    LookupdClient("lookup.example", auth_token="x")
    assert "http://lookup.example:4161: the credentials are sent unencrypted" in caplog.text


def test_no_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    ping_fails(errors.HTTPConnectError, "does not resolve", "proxied.invalid")


# -- kept connections -------------------------------------------------------------------------------------


def test_a_call_is_made_once() -> None:
    seen: list[bytes] = []

    def lose(connection: socket.socket) -> None:
        seen.append(read_request(connection))

    with scripted(lose) as address, NsqdClient(address) as client:
        for count, call in enumerate((client.ping, lambda: client.create_topic("t")), 1):
            with pytest.raises(errors.HTTPConnectionLost):
                call()
            assert len(seen) == count


def test_one_connection_serves_many_calls_and_error_answers() -> None:
    with stub() as server:
        server.answers.update(PING)
        with NsqdClient(server.address) as client:
            for _ in range(5):
                client.ping()
                with pytest.raises(errors.HTTPStatusError):
                    client.info()
        assert len({request.port for request in server.requests}) == 1
        client.close()


def test_an_idle_connection_gets_the_whole_time_limit_of_the_next_call() -> None:
    def slow(connection: socket.socket) -> None:
        while request := read_request(connection):
            if b"/ping" not in request:
                threading.Event().wait(1.5)
            connection.sendall(answer(b"OK"))

    with scripted(slow) as address, NsqdClient(address, http_timeout=2.5) as client:
        client.create_topic("t")
        client.create_topic("t")
        assert client.ping() == "OK"


def take_slowly(connection: socket.socket, seconds: float) -> None:
    """Read a request.  Before a large body, wait for *seconds*, so that the sender must wait too."""
    head = read_request(connection)
    size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0] or 0)
    got = len(head.partition(b"\r\n\r\n")[2])
    threading.Event().wait(seconds if size else 0)
    while got < size:
        got += len(connection.recv(1 << 20))
    connection.sendall(answer(b"OK"))


def test_sending_may_take_longer_than_the_connect_timeout() -> None:
    def script(connection: socket.socket) -> None:
        take_slowly(connection, 1.2)
        read_request(connection)
        threading.Event().wait(3.2)  # 0.8 of the 4 seconds are left
        connection.sendall(answer(b"OK"))
        take_slowly(connection, 1.2)

    large = b"x" * (16 << 20)
    with scripted(script) as address:
        options = {"http_timeout": 4.0, "http_connect_timeout": 0.3}
        with NsqdClient(address, **options) as client:
            client.publish("t", large)
            client.ping()
            client.publish("t", large)


def test_the_error_names_its_cause_and_not_an_exception_of_the_caller() -> None:
    with refusing_port() as port:
        try:
            raise ValueError("the caller's own trouble")
        except ValueError:
            ping_fails(errors.HTTPConnectError, "Connection refused$", f"127.0.0.1:{port}")


def test_an_idle_connection_that_the_server_closed_is_replaced_without_an_error() -> None:
    def once(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(answer(b"OK"))

    with scripted(once) as address, NsqdClient(address) as client:
        for _ in range(3):
            client.create_topic("t")
            threading.Event().wait(0.05)


def test_an_answer_of_http_max_body_is_read_and_one_byte_more_is_refused() -> None:
    assert HTTPOptions().http_max_body == 64 * 1024 * 1024
    with stub() as server, NsqdClient(server.address, http_max_body=4096) as client:
        server.answers["/ping"] = (200, b"x" * 4096)
        assert client.ping() == "x" * 4096
        server.answers["/ping"] = (200, b"x" * 4097)
        with pytest.raises(errors.HTTPResponseError, match="4097 bytes; at most 4096"):
            client.ping()


def test_the_rest_of_a_cut_answer_is_not_read_as_the_next_answer() -> None:
    with stub() as server:
        server.answers["/info"] = (200, b"x" * 5000)
        server.answers["/stats"] = (500, b"x" * 50_000)
        server.answers.update(PING)
        with NsqdClient(server.address, http_max_body=4096) as client:
            with pytest.raises(errors.HTTPResponseError):
                client.info()
            assert client.ping() == "OK"
            with pytest.raises(errors.HTTPStatusError):
                client.stats()
            assert client.ping() == "OK"


def test_the_rest_of_a_refused_answer_does_not_disturb_the_next_call() -> None:
    def late(connection: socket.socket) -> None:
        if b"/info" in read_request(connection):
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 9\r\n\r\n")
            threading.Event().wait(0.5)
            connection.sendall(b"x" * 9)
        else:
            connection.sendall(answer(b"OK"))

    with scripted(late) as address, NsqdClient(address) as client:
        with pytest.raises(errors.HTTPResponseError, match="encoded"):
            client.info()
        assert client.ping() == "OK"


def test_threads_may_share_a_client() -> None:
    with stub() as server:
        server.answers.update(PING)
        with NsqdClient(server.address) as client:
            results: list[str] = []
            threads = [threading.Thread(target=lambda: results.append(client.ping())) for _ in range(20)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(20)
        assert results == ["OK"] * 20


def test_a_forked_child_opens_its_own_connection() -> None:
    with stub() as server:
        server.answers.update(PING)
        with NsqdClient(server.address) as client:
            client.ping()
            pid = os.fork()
            if pid == 0:
                os._exit(0 if client.ping() == "OK" else 1)
            assert os.waitpid(pid, 0)[1] == 0
            client.ping()
        ports = [request.port for request in server.requests]
        assert ports[0] == ports[2]
        assert ports[1] != ports[0]


def test_ipv6_works() -> None:
    try:
        server = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 here")
    with server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                read_request(connection)
                connection.sendall(answer(b"OK"))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with NsqdClient(f"[::1]:{server.getsockname()[1]}") as client:
            assert client.ping() == "OK"
        thread.join(5)
