"""HTTP of the embedded broker at its edges."""

from __future__ import annotations

import http.client
import json
import socket
import struct
import time
from collections.abc import Iterator

import pytest

from gnsq_lite.broker import Broker
from tests.rawclient import RawClient, pub
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


@pytest.mark.parametrize(("size", "status"), [(0, 400), (1, 200), (1000, 200), (1001, 413)])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_is_taken_up_to_its_limit(broker: Broker, size: int, status: int, chunked: bool) -> None:
    body = b"x" * size
    head = b"POST /pub?topic=t HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    if chunked:
        coded = b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in (body[:300], body[300:]) if p) + b"0\r\n\r\n"
        request = head + b"Transfer-Encoding: chunked\r\n\r\n" + coded
    else:
        request = head + b"Content-Length: %d\r\n\r\n" % size + body
    assert raw_http(broker.http_address, request).startswith(b"HTTP/1.1 %d " % status)
    assert message_count(broker, "t") == (1 if status == 200 else 0)


def test_a_batch_of_lines_leaves_empty_lines_out(broker: Broker) -> None:
    assert http_call(broker.http_address, "POST", "/mpub?topic=t", b"a\n\nb\n").body == b"OK"
    assert message_count(broker, "t") == 2


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (struct.pack(">i", 0), "BAD_BODY"),
        (struct.pack(">ii", 1, 0), "BAD_MESSAGE"),
        (struct.pack(">ii", 2, 1) + b"x", "BAD_MESSAGE"),
        (b"", "BAD_BODY"),
    ],
)
def test_a_bad_binary_batch_is_refused_whole(broker: Broker, body: bytes, word: str) -> None:
    answer = http_call(broker.http_address, "POST", "/mpub?topic=t&binary=true", body)
    assert (answer.status, json.loads(answer.body)) == (413, {"message": word})
    assert message_count(broker, "t") == 0


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


def test_stats_are_filtered_by_topic_and_channel(broker: Broker) -> None:
    with RawClient(broker.nsqd_tcp_address) as client:
        for topic in ("t", "u"):
            client.ask(pub(topic, b"x"))
    for channel in ("c", "d"):
        http_call(broker.http_address, "POST", f"/channel/create?topic=t&channel={channel}")
    found = http_call(broker.http_address, "GET", "/stats?format=json&topic=t&channel=d").json()
    assert [(t["topic_name"], [c["channel_name"] for c in t["channels"]]) for t in found["topics"]] == [("t", ["d"])]


# -- nsqlookupd -----------------------------------------------------------------------------------------------------


def test_a_new_topic_has_the_channels_that_nsqlookupd_knows() -> None:
    with Broker(nsqds=2) as broker:
        http_call(broker.lookupd_http_address, "POST", "/channel/create?topic=t&channel=c")
        with RawClient(broker.nodes[1].nsqd_tcp_address) as client:
            client.ask(pub("t", b"x"))
            client.subscribe("t", "c", ready=1)
            assert client.message().body == b"x"
        (topic,) = broker.nodes[1].stats()["topics"]
        assert [c["channel_name"] for c in topic["channels"]] == ["c"]
