"""HTTP of the embedded broker at its edges."""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Iterator

import pytest

from gnsq_lite.broker import Broker
from tests.servers import http_call


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(max_msg_size=1000, max_body_size=5000) as made:
        yield made


def raw_http(address: str, data: bytes) -> bytes:
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), timeout=10) as sock:
        sock.sendall(data)
        found = b""
        while part := sock.recv(65536):
            found += part
    return found


def message_count(broker: Broker, topic: str) -> int:
    return sum(t["message_count"] for t in broker.node.stats()["topics"] if t["topic_name"] == topic)


def test_a_wrong_method_is_named_as_such_with_the_right_ones(broker: Broker) -> None:
    answer = raw_http(broker.http_address, b"GET /pub?topic=t HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 405 ")
    assert b"Allow: OPTIONS, POST" in answer
    assert answer.endswith(b'{"message":"METHOD_NOT_ALLOWED"}')


@pytest.mark.parametrize("noise", [b"\0" * 100 + b"\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"x" * 20_000])
def test_noise_on_the_http_port_ends_with_an_answer_and_hurts_nobody(broker: Broker, noise: bytes) -> None:
    try:
        raw_http(broker.http_address, noise + b"\r\n\r\n")
    except ConnectionResetError:
        pass
    assert http_call(broker.http_address, "GET", "/ping").body == b"OK"


def test_an_answer_on_a_kept_connection_does_not_wait_for_an_acknowledgement(broker: Broker) -> None:
    host, port = broker.http_address.split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    taken = []
    for _ in range(20):
        start = time.monotonic()
        connection.request("GET", "/ping")
        assert connection.getresponse().read() == b"OK"
        taken.append(time.monotonic() - start)
    connection.close()
    assert min(taken[2:]) < 0.03  # the delayed ACK of Linux is 40 ms, and then every answer takes them
