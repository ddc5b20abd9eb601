"""Clients that mean harm to the embedded broker: it stays up, small, and open to others, so that CI can share it.

Limits on connections and memory, noise on every port and slow readers are in test_broker_lifecycle.py.
"""

from __future__ import annotations

import os
import socket
import struct
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from gnsq_lite import Writer
from gnsq_lite.broker import Broker
from tests.rawclient import RawClient


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(max_connections=200, max_memory=8 << 20) as running:
        yield running


def rss_kib() -> int:
    with open("/proc/self/statm") as pages:
        return int(pages.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def connected(broker: Broker) -> socket.socket:
    sock = socket.create_connection(broker.tcp_address, timeout=10)
    sock.sendall(b"  V2")
    return sock


def still_serves(broker: Broker) -> None:
    with Writer(broker.nsqd_tcp_address, publish_timeout=10.0) as writer:
        writer.publish("others", b"x")


def closes(sock: socket.socket) -> bool:
    """Whether the broker hangs up within 10 s."""
    sock.settimeout(10.0)
    try:
        while sock.recv(65536):
            pass
    except ConnectionResetError:
        pass
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize("command", [b"PUB t\n", b"MPUB t\n", b"IDENTIFY\n", b"AUTH\n"])
def test_bodies_that_are_announced_and_never_come_take_no_memory(broker: Broker, command: bytes) -> None:
    before = rss_kib()
    with ExitStack() as stack:
        for _ in range(100):
            sock = stack.enter_context(connected(broker))
            sock.sendall(command + struct.pack(">I", 1 << 20) + b"x")
        still_serves(broker)
        assert rss_kib() - before < 30 * 1024


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"PUB " + b"t" * 200_000, id="a line without end"),
        pytest.param(b"PUB t\n" + struct.pack(">i", -1), id="a negative size"),
        pytest.param(b"PUB t\n" + struct.pack(">I", 2**31 - 1), id="two GiB"),
        pytest.param(b"MPUB t\n" + struct.pack(">II", 8, 2**31 - 1) + b"xxxx", id="two billion messages"),
        pytest.param(b"IDENTIFY\n" + struct.pack(">I", 100_000) + b"[" * 100_000, id="deep json"),
        pytest.param(b"IDENTIFY\n" + struct.pack(">I", 26) + b'{"heartbeat_interval":1e9}', id="an absurd interval"),
        pytest.param(b"\0" * 1000 + b"\n", id="zeros"),
        pytest.param(b"SUB t ch\nRDY 99999999999999999999\n", id="an absurd RDY"),
    ],
)
def test_an_abuse_ends_its_own_connection_only(broker: Broker, data: bytes) -> None:
    with connected(broker) as victim, connected(broker) as sock:
        try:
            sock.sendall(data)
        except ConnectionError:
            pass
        assert closes(sock)
        victim.sendall(b"PUB t\n\0\0\0\1x")
        assert victim.recv(100)[8:] == b"OK"
    still_serves(broker)


def test_a_bomb_from_a_client_takes_no_memory(broker: Broker) -> None:
    stream = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    bomb = stream.compress(b"NOP\n" + b"a" * 100)
    bomb += b"".join(stream.compress(bytes(1 << 20)) for _ in range(128)) + stream.flush()
    before = rss_kib()
    with connected(broker) as sock:
        body = b'{"feature_negotiation":true,"deflate":true}'
        sock.sendall(b"IDENTIFY\n" + struct.pack(">I", len(body)) + body)
        time.sleep(0.2)
        try:
            sock.sendall(bomb)
        except ConnectionError:
            pass
        assert closes(sock)
    assert rss_kib() - before < 60 * 1024
    still_serves(broker)


def test_topics_and_subscriptions_without_end_do_not_stop_others(broker: Broker) -> None:
    with RawClient(broker.nsqd_tcp_address) as client:
        for number in range(3000):
            client.send(b"PUB t%d\n\0\0\0\1x" % number)
        for _ in range(3000):
            client.frame()
    still_serves(broker)


def test_names_with_escape_sequences_reach_no_stats_page_and_no_log(broker: Broker, caplog: Any) -> None:
    with connected(broker) as sock:
        sock.sendall(b"PUB \x1b[2J\n\0\0\0\1x")
        assert closes(sock)
    assert "\x1b" not in str(broker.node.stats())
    assert "\x1b" not in caplog.text
