"""nsqlookupd's TCP protocol, by which nsqds register: magic ``"  V1"``, answers are a size and a text."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.conftest import MakeCluster
from tests.rawclient import sized
from tests.servers import Cluster

NSQD = {
    "broadcast_address": "nsqd.example",
    "hostname": "here.example",
    "tcp_port": 4150,
    "http_port": 4151,
    "version": "9.9.9",
}


class Peer:
    """An nsqd as nsqlookupd sees it."""

    def __init__(self, address: str, magic: bytes = b"  V1") -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=15.0)
        self.socket.sendall(magic)

    def ask(self, *parts: bytes) -> bytes:
        """Send, and return the next answer."""
        self.socket.sendall(b"".join(parts))
        (size,) = struct.unpack(">i", self._read(4))
        return self._read(size)

    def identify(self, **fields: Any) -> dict[str, Any]:
        """IDENTIFY as ``NSQD``, with *fields* in place of its own."""
        reply: dict[str, Any] = json.loads(self.ask(b"IDENTIFY\n", sized(json.dumps({**NSQD, **fields}).encode())))
        return reply

    def is_closed(self) -> bool:
        """Whether the other side ends the connection without a further byte."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self.socket.recv(count - len(data))
            assert more, f"the connection ended after {data!r}"
            data += more
        return data


@pytest.fixture
def peers(cluster: Cluster) -> Iterator[list[Peer]]:
    """Two connections to nsqlookupd, not yet identified."""
    with ExitStack() as stack:
        made = [Peer(cluster.lookupd_tcp_address) for _ in range(2)]
        for peer in made:
            stack.enter_context(peer.socket)
        yield made


def _lookup(cluster: Cluster, topic: str) -> dict[str, Any]:
    found: dict[str, Any] = cluster.lookupd_http("GET", f"/lookup?topic={topic}").json()
    return found


def test_identify_is_answered_with_who_lookupd_is(cluster: Cluster, peers: list[Peer]) -> None:
    reply = peers[0].identify()
    assert reply.pop("hostname")
    assert reply == {
        "broadcast_address": "127.0.0.1",
        "http_port": int(cluster.lookupd_http_address.rpartition(":")[2]),
        "tcp_port": int(cluster.lookupd_tcp_address.rpartition(":")[2]),
        "version": "1.3.0",
    }


def test_what_is_registered_is_listed_and_what_is_unregistered_is_not(
    cluster: Cluster, peers: list[Peer], topic: str
) -> None:
    peer = peers[0]
    peer.identify()
    assert peer.ask(b"REGISTER %s c\n" % topic.encode()) == b"OK"
    found = _lookup(cluster, topic)
    host, port = peer.socket.getsockname()[:2]
    assert found == {"channels": ["c"], "producers": [{"remote_address": f"{host}:{port}", **NSQD}]}
    assert peer.ask(b"UNREGISTER %s c\n" % topic.encode()) == b"OK"
    assert _lookup(cluster, topic)["producers"] == found["producers"]
    assert peer.ask(b"UNREGISTER %s\n" % topic.encode()) == b"OK"
    assert _lookup(cluster, topic) == {"channels": ["c"], "producers": []}  # the names stay


def test_an_ephemeral_topic_goes_with_its_last_producer(cluster: Cluster, peers: list[Peer], topic: str) -> None:
    for peer in peers:
        peer.identify()
        peer.ask(b"REGISTER %s#ephemeral c#ephemeral\n" % topic.encode())
    for peer, status in zip(peers, (200, 404), strict=True):
        peer.ask(b"UNREGISTER %s#ephemeral c#ephemeral\n" % topic.encode())
        peer.ask(b"UNREGISTER %s#ephemeral\n" % topic.encode())
        assert cluster.lookupd_http("GET", f"/lookup?topic={topic}%23ephemeral").status == status


def test_two_nsqds_of_a_topic_are_both_listed_until_one_goes(cluster: Cluster, peers: list[Peer], topic: str) -> None:
    for number, peer in enumerate(peers):
        peer.identify(tcp_port=5000 + number)
        assert peer.ask(b"REGISTER %s\n" % topic.encode()) == b"OK"
    assert sorted(part["tcp_port"] for part in _lookup(cluster, topic)["producers"]) == [5000, 5001]
    peers[0].socket.close()
    limit = time.monotonic() + 10
    while len(_lookup(cluster, topic)["producers"]) == 2:
        assert time.monotonic() < limit
        time.sleep(0.01)
    assert [part["tcp_port"] for part in _lookup(cluster, topic)["producers"]] == [5001]


@pytest.mark.rule("CONN-4")
def test_an_nsqd_that_does_not_ping_is_hidden_until_it_does(make_cluster: MakeCluster, topic: str) -> None:
    cluster = make_cluster(inactive_producer_timeout=0.6)
    peer = Peer(cluster.lookupd_tcp_address)
    with peer.socket:
        peer.identify()
        peer.ask(b"REGISTER %s\n" % topic.encode())
        assert len(_lookup(cluster, topic)["producers"]) == 1
        time.sleep(0.7)
        assert _lookup(cluster, topic)["producers"] == []
        shown = cluster.lookupd_http("GET", "/nodes").json()["producers"]
        assert "nsqd.example" not in [part["broadcast_address"] for part in shown]
        assert peer.ask(b"PING\n") == b"OK"
        assert len(_lookup(cluster, topic)["producers"]) == 1


def test_ping_is_answered_before_identify_too(peers: list[Peer]) -> None:
    assert peers[0].ask(b"PING\n") == b"OK"


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (b"FOO bar\n", b"E_INVALID invalid command FOO"),
        (b"REGISTER t\n", b"E_INVALID client must IDENTIFY"),
        (b"UNREGISTER t\n", b"E_INVALID client must IDENTIFY"),
        (b"IDENTIFY\n" + sized(b"{"), b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (b"IDENTIFY\n" + sized(b"{}"), b"E_BAD_BODY IDENTIFY missing fields"),
        (b"IDENTIFY\n" + sized(json.dumps({**NSQD, "tcp_port": 0}).encode()), b"E_BAD_BODY IDENTIFY missing fields"),
    ],
)
def test_a_bad_command_before_identify_closes_the_connection(peers: list[Peer], sent: bytes, text: bytes) -> None:
    assert peers[0].ask(sent) == text
    assert peers[0].is_closed()


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (b"IDENTIFY\n", b"E_INVALID cannot IDENTIFY again"),
        (b"REGISTER\n", b"E_INVALID REGISTER insufficient number of params"),
        (b"UNREGISTER\n", b"E_INVALID UNREGISTER insufficient number of params"),
        (b"REGISTER a!b\n", b"E_BAD_TOPIC REGISTER topic name 'a!b' is not valid"),
        (b"REGISTER t a!b\n", b"E_BAD_CHANNEL REGISTER channel name 'a!b' is not valid"),
        (b"UNREGISTER a!b c\n", b"E_BAD_TOPIC UNREGISTER topic name 'a!b' is not valid"),
    ],
)
def test_a_bad_command_after_identify_closes_the_connection(peers: list[Peer], sent: bytes, text: bytes) -> None:
    peers[0].identify()
    assert peers[0].ask(sent) == text
    assert peers[0].is_closed()


def test_other_magic_bytes_are_refused(cluster: Cluster) -> None:
    peer = Peer(cluster.lookupd_tcp_address, b"  V2")
    with peer.socket:
        assert peer.ask() == b"E_BAD_PROTOCOL"
        assert peer.is_closed()
