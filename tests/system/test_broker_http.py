"""HTTP of the embedded broker at its edges, and nsqlookupd's TCP protocol."""

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


class Registrar:
    """An nsqd as nsqlookupd's TCP port sees it."""

    def __init__(self, address: str, magic: bytes = b"  V1") -> None:
        host, port = address.split(":")
        self.socket = socket.create_connection((host, int(port)), timeout=10)
        self.socket.sendall(magic)

    def ask(self, data: bytes) -> bytes:
        self.socket.sendall(data)
        return self.answer()

    def answer(self) -> bytes:
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            part = self.socket.recv(size - len(found))
            assert part
            found += part
        return found

    def introduce(self, **fields: object) -> bytes:
        told = {
            "broadcast_address": "node",
            "hostname": "h",
            "tcp_port": 1,
            "http_port": 2,
            "version": "1.3.0",
            **fields,
        }
        body = json.dumps(told).encode()
        return self.ask(b"IDENTIFY\n" + struct.pack(">i", len(body)) + body)


def test_an_nsqd_elsewhere_can_register_and_is_forgotten_when_it_goes(broker: Broker) -> None:
    nsqd = Registrar(broker.lookupd_tcp_address)
    answer = json.loads(nsqd.introduce())
    assert answer["version"] == "1.3.0"
    assert f":{answer['http_port']}" in broker.lookupd_http_address
    assert nsqd.ask(b"REGISTER far c\n") == b"OK"
    assert nsqd.ask(b"PING\n") == b"OK"

    def lookup() -> tuple[list[str], list[str]]:
        found = http_call(broker.lookupd_http_address, "GET", "/lookup?topic=far").json()
        return found["channels"], [p["broadcast_address"] for p in found["producers"]]

    assert lookup() == (["c"], ["node"])
    assert nsqd.ask(b"UNREGISTER far c\n") == b"OK"
    assert lookup() == (["c"], ["node"])
    nsqd.socket.close()
    for _ in range(500):
        if lookup() == (["c"], []):
            break
    assert lookup() == (["c"], [])


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (b"FOO\n", b"E_INVALID invalid command FOO"),
        (b"REGISTER t\n", b"E_INVALID client must IDENTIFY"),
        (b"IDENTIFY\n\0\0\0\1{", b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (b"IDENTIFY\n\0\0\0\2{}", b"E_BAD_BODY IDENTIFY missing fields"),
        (b"IDENTIFY\n\xff\xff\xff\xff", b"E_BAD_BODY IDENTIFY failed to read body"),
    ],
)
def test_nsqlookupd_refuses_what_it_does_not_know(broker: Broker, command: bytes, error: bytes) -> None:
    nsqd = Registrar(broker.lookupd_tcp_address)
    assert nsqd.ask(command) == error
    assert nsqd.socket.recv(1) == b""
    nsqd.socket.close()


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (b"REGISTER\n", b"E_INVALID REGISTER insufficient number of params"),
        (b"REGISTER t!\n", b"E_BAD_TOPIC REGISTER topic name 't!' is not valid"),
        (b"UNREGISTER t c!\n", b"E_BAD_CHANNEL UNREGISTER channel name 'c!' is not valid"),
        (b"IDENTIFY\n", b"E_INVALID cannot IDENTIFY again"),
    ],
)
def test_nsqlookupd_checks_registrations(broker: Broker, command: bytes, error: bytes) -> None:
    nsqd = Registrar(broker.lookupd_tcp_address)
    nsqd.introduce()
    assert nsqd.ask(command) == error
    nsqd.socket.close()


@pytest.mark.parametrize(("sent", "what"), [(b"\0\0", b"body size"), (b"\0\0\0\5ab", b"body")])
def test_nsqlookupd_says_what_is_missing_when_a_peer_stops_within_identify(
    broker: Broker, sent: bytes, what: bytes
) -> None:
    nsqd = Registrar(broker.lookupd_tcp_address)
    nsqd.socket.sendall(b"IDENTIFY\n" + sent)
    nsqd.socket.shutdown(socket.SHUT_WR)
    assert nsqd.answer() == b"E_BAD_BODY IDENTIFY failed to read " + what
    nsqd.socket.close()


def test_a_wrong_magic_is_refused(broker: Broker) -> None:
    nsqd = Registrar(broker.lookupd_tcp_address, magic=b"  V2")
    assert nsqd.answer() == b"E_BAD_PROTOCOL"
    nsqd.socket.close()


def test_a_new_topic_has_the_channels_that_nsqlookupd_knows() -> None:
    with Broker(nsqds=2) as broker:
        http_call(broker.lookupd_http_address, "POST", "/channel/create?topic=t&channel=c")
        with RawClient(broker.nodes[1].nsqd_tcp_address) as client:
            client.ask(pub("t", b"x"))
            client.subscribe("t", "c", ready=1)
            assert client.message().body == b"x"
        (topic,) = broker.nodes[1].stats()["topics"]
        assert [c["channel_name"] for c in topic["channels"]] == ["c"]


def test_nodes_register_with_an_nsqlookupd_elsewhere() -> None:
    with Broker(nsqds=0) as far, Broker(lookupd=False, lookupd_tcp_addresses=[far.lookupd_tcp_address]) as broker:
        with RawClient(broker.nsqd_tcp_address) as client:
            client.ask(pub("t", b"x"))
            client.subscribe("t", "c")
        for _ in range(500):
            answer = http_call(far.lookupd_http_address, "GET", "/lookup?topic=t")
            if answer.status == 200 and answer.json()["channels"] == ["c"]:
                break
        assert [p["tcp_port"] for p in answer.json()["producers"]] == [broker.tcp_address[1]]
        broker.node.stop()
        for _ in range(500):
            if not http_call(far.lookupd_http_address, "GET", "/lookup?topic=t").json()["producers"]:
                break
        else:
            pytest.fail("it is still registered")


def test_nsqlookupd_names_the_ports_a_node_is_told_to_broadcast() -> None:
    with Broker(broadcast_tcp_port=1234, broadcast_http_port=1235) as broker:
        (node,) = http_call(broker.lookupd_http_address, "GET", "/nodes").json()["producers"]
        assert (node["tcp_port"], node["http_port"]) == (1234, 1235)
