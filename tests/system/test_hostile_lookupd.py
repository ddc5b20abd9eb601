"""An nsqlookupd that means harm sends a Reader or Writer nowhere it may not go, and cannot fill or stop it.

What any HTTP server can do is in test_http_hostile.py; here is what the answers themselves say.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import pytest

from gnsq_lite import Reader, Writer, errors
from gnsq_lite.broker import Broker
from tests.programs import wait_for
from tests.resource_watch import bystander, healthy  # noqa: F401 - fixtures
from tests.system.clients import connected
from tests.system.http_stub import Stub, stub
from tests.youzan_broker import YouzanBroker

#: KiB: an answer that lists 100,000 nsqds, and they themselves, which are remembered as listed.
MOST_GROWTH = 200 * 1024

WARY: dict[str, Any] = {
    "connect_timeout": 0.5,
    "handshake_timeout": 0.8,
    "reconnect_delay": 0.05,
    "max_reconnect_delay": 0.2,
    "lookupd_poll_interval": 0.2,
}
METADATA = [
    "169.254.169.254",
    "metadata.google.internal",
    "fd00:ec2::254",
    "127.1",
    "0x7f000001",
    "2130706433",
    "localhost.",
    "::ffff:127.0.0.1",
]


def listing(lookupd: Stub, *nodes: dict[str, Any]) -> None:
    for path in ("/lookup", "/nodes"):
        lookupd.answers[path] = (200, {"channels": [], "producers": list(nodes)})


def partitioned(lookupd: Stub, *nodes: dict[str, Any]) -> None:
    """Answer as Youzan's do: each of *nodes* leads a partition."""
    meta = {"partition_num": len(nodes), "replica": 1}
    leaders = {str(number): each for number, each in enumerate(nodes)}
    lookupd.answers["/info"] = (200, {"version": "0.3.7-HA.1.13.0", "ha_support": True})
    for path in ("/lookup", "/nodes"):
        lookupd.answers[path] = (200, {"channels": [], "producers": list(nodes), "partitions": leaders, "meta": meta})


def node(host: Any, port: Any = 4150) -> dict[str, Any]:
    return {"broadcast_address": host, "hostname": "h", "tcp_port": port, "http_port": 4151, "version": "1.3.0"}


class Gate:
    """An ``allowed_addresses`` that notes its arguments."""

    def __init__(self, *allowed: tuple[str, int]) -> None:
        self.allowed, self.asked = set(allowed), set[tuple[str, int]]()

    def __call__(self, host: str, port: int) -> bool:
        self.asked.add((host, port))
        return (host, port) in self.allowed


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Whom anybody tries to connect to."""
    import gnsq_lite.net.connection as connection

    addresses: list[tuple[str, int]] = []
    real = connection.dial

    def noting(host: str, port: int, timeout: float) -> Any:
        addresses.append((host, port))
        return real(host, port, timeout)

    monkeypatch.setattr(connection, "dial", noting)
    return addresses


@pytest.mark.rule("DISC-6")
@pytest.mark.parametrize("kind", ["reader", "writer"])
def test_only_allowed_addresses_are_connected_to_however_they_are_spelled(
    tried: list[tuple[str, int]], kind: str
) -> None:
    with Broker() as broker, stub() as lookupd:
        host, port = broker.tcp_address
        gate = Gate((host, port))
        listing(lookupd, *(node(name, port) for name in METADATA), node(host, 22), node(host, port))
        seen: list[Any] = []
        if kind == "reader":
            with Reader(
                "t", "ch", seen.append, lookupd_http_addresses=lookupd.address, allowed_addresses=gate, **WARY
            ) as reader:
                wait_for(lambda: reader.stats().connections)
                time.sleep(0.5)
        else:
            with Writer(lookupd_http_addresses=lookupd.address, allowed_addresses=gate, **WARY) as writer:
                writer.publish("t", b"x")
                time.sleep(0.5)
        assert {name for name, _ in gate.asked} >= set(METADATA)
    assert set(tried) == {(host, port)}


@pytest.mark.rule("DISC-6")
@pytest.mark.rule("YZ-4")
@pytest.mark.parametrize("kind", ["reader", "writer"])
def test_leaders_of_partitions_must_be_allowed_as_well(tried: list[tuple[str, int]], kind: str) -> None:
    with YouzanBroker() as broker, stub() as lookupd:
        broker.youzan.create_topic("t", 1)
        host, port = broker.nodes[0].tcp_address
        gate = Gate((host, port))
        partitioned(lookupd, node(host, port), *(node(name, port) for name in METADATA), node(host, 22))
        where: dict[str, Any] = {"lookupd_http_addresses": lookupd.address, "allowed_addresses": gate}
        with Writer(**where, dialect="youzan", **WARY) as writer:
            for _ in range(3):  # without a key, partitions take turns: those that are left
                writer.publish("t", b"x", timeout=10.0)
            if kind == "writer":
                for partition in (1, len(METADATA) + 1):
                    with pytest.raises(errors.PartitionUnavailable, match="allowed_addresses permits"):
                        writer.publish("t", b"x", partition=partition, timeout=0.5)
        if kind == "reader":
            tried.clear()
            with Reader("t", "ch", print, **where, dialect="youzan", **WARY) as reader:
                wait_for(lambda: reader.stats().connections)
                before = len(lookupd.requests)
                wait_for(lambda: len(lookupd.requests) >= before + 3)
        assert {name for name, _ in gate.asked} >= set(METADATA)
    assert set(tried) == {(host, port)}


@pytest.mark.rule("DISC-6")
def test_where_all_leaders_are_refused_nothing_is_connected_to_and_a_publish_fails(
    tried: list[tuple[str, int]],
) -> None:
    with YouzanBroker() as broker, stub() as lookupd:
        broker.youzan.create_topic("t", 1)
        partitioned(lookupd, node(*broker.nodes[0].tcp_address))
        where: dict[str, Any] = {"lookupd_http_addresses": lookupd.address, "allowed_addresses": Gate()}
        with (
            Writer(**where, dialect="youzan", **WARY) as writer,
            Reader("t", "ch", print, **where, dialect="youzan", **WARY),
        ):
            with pytest.raises(errors.NotSent, match="allowed_addresses permits"):
                writer.publish("t", b"x", timeout=2.0)
            with pytest.raises(errors.NotSent):
                writer.publish("t", b"x", partition=0, timeout=0.7)
        assert tried == []


@pytest.mark.rule("DISC-6")
@pytest.mark.rule("YZ-1")
def test_a_nsqlookupd_that_is_named_is_asked_only_where_it_is_allowed() -> None:
    with YouzanBroker() as broker, stub() as lookupd, stub() as refused, stub() as allowed:
        broker.youzan.create_topic("t", 1)
        nsqd = broker.nodes[0].tcp_address
        for each in (lookupd, refused, allowed):
            partitioned(each, node(*nsqd))
        named = [other.address.rpartition(":") for other in (refused, allowed)]
        nodes = [{"ID": "x", "NodeIP": host, "TcpPort": "1", "HttpPort": port} for host, _, port in named]
        lookupd.answers["/listlookup"] = (200, {"lookupdleader": {}, "lookupdnodes": nodes})
        host, _, port = allowed.address.rpartition(":")
        gate = Gate(nsqd, (host, int(port)))
        where: dict[str, Any] = {"lookupd_http_addresses": lookupd.address, "allowed_addresses": gate}
        with Reader("t", "ch", print, **where, dialect="youzan", **WARY):
            wait_for(lambda: allowed.requests)
            before = len(lookupd.requests)
            wait_for(lambda: len(lookupd.requests) >= before + 3)
        assert refused.requests == []


@pytest.mark.rule("DISC-6")
@pytest.mark.parametrize("port", [0, 70000])
@pytest.mark.parametrize("youzan", [False, True])
def test_a_registration_of_no_use_hides_no_nsqd(port: int, youzan: bool) -> None:
    with YouzanBroker() if youzan else Broker() as broker, stub() as lookupd:
        if youzan:
            broker.youzan.create_topic("t", 1)
        good = node(*broker.nodes[0].tcp_address)
        (partitioned if youzan else listing)(lookupd, good, node("h", port))
        where: dict[str, Any] = {
            "lookupd_http_addresses": lookupd.address,
            "dialect": "youzan" if youzan else "nsq",
        }
        with Reader("t", "ch", print, **where, **WARY) as reader, Writer(**where, **WARY) as writer:
            writer.publish("t", b"x", timeout=10.0)
            wait_for(lambda: reader.stats().connections)


@pytest.mark.rule("DISC-6")
def test_a_filter_that_raises_lets_nothing_through() -> None:
    def broken(host: str, port: int) -> bool:
        raise RuntimeError("a bug in the filter")

    with Broker() as broker, stub() as lookupd:
        listing(lookupd, node(*broker.tcp_address))
        where: dict[str, Any] = {"lookupd_http_addresses": lookupd.address, "allowed_addresses": broken}
        with Reader("t", "ch", print, **where, **WARY) as reader:
            wait_for(lambda: len(lookupd.requests) >= 3)
            assert reader.stats().connections == ()
        with Writer(**where, **WARY) as writer, pytest.raises(errors.NotSent):
            writer.publish("t", b"x", timeout=0.7)


@pytest.mark.rule("CONN-4")
def test_a_writer_forgets_an_nsqd_that_is_gone_and_listed_no_more(tried: list[tuple[str, int]]) -> None:
    with Broker() as stays, Broker() as goes, stub() as lookupd:
        listing(lookupd, node(*stays.tcp_address), node(*goes.tcp_address))
        with Writer(lookupd_http_addresses=lookupd.address, **WARY) as writer:
            writer.publish("t", b"x")
            wait_for(lambda: connected(writer) == {stays.nsqd_tcp_address, goes.nsqd_tcp_address})
            gone = goes.tcp_address
            listing(lookupd, node(*stays.tcp_address))
            goes.stop()
            wait_for(lambda: connected(writer) == {stays.nsqd_tcp_address})

            def leaves_it_alone() -> bool:
                tries, asked = tried.count(gone), len(lookupd.requests)
                wait_for(lambda: len(lookupd.requests) > asked + 4)
                return tried.count(gone) == tries

            wait_for(leaves_it_alone)
            for _ in range(4):
                writer.publish("t", b"x")


def test_an_nsqd_that_the_address_map_fails_on_is_left_out_and_the_others_are_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def mapped(host: str, port: int) -> None:
        if host == "nsqd.inside.invalid":
            raise RuntimeError("a bug in the map")

    seen: list[Any] = []
    with Broker() as broker, stub() as lookupd:
        listing(lookupd, node("nsqd.inside.invalid"), node(*broker.tcp_address))
        with Reader(
            "t", "ch", seen.append, lookupd_http_addresses=lookupd.address, address_map=mapped, **WARY
        ) as reader:
            wait_for(lambda: len(reader.stats().connections) == 1)
            with Writer(broker.nsqd_tcp_address) as writer:
                writer.publish("t", b"x")
            wait_for(lambda: seen)
            assert len(reader.stats().connections) == 1
    assert "nsqd.inside.invalid:4150: address_map failed: " in caplog.text


@pytest.mark.rule("DISC-6")
@pytest.mark.parametrize(
    "bad",
    [
        node("h\r\nX: y"),
        node("\x1b[2Jroot"),
        node("a b"),
        node("h\u202e"),
        node("h" * 256),
        node(""),
        node(None),
        node(["h"]),
        node({"h": 1}),
        node("h", 0),
        node("h", -1),
        node("h", 65536),
        node("h", 1e9),
        node("h", True),
        node("h", "4150; rm"),
        node("h", "\u0664\u0661\u0665\u0660"),
        "h:4150",
        None,
        [],
    ],
    ids=repr,
)
def test_an_answer_with_a_mangled_producer_is_refused_and_told_without_control_characters(
    bad: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "gnsq_lite")
    with stub() as lookupd:
        listing(lookupd, bad)
        with Reader("t", "ch", print, lookupd_http_addresses=lookupd.address, **WARY) as reader:
            wait_for(lambda: len(lookupd.requests) >= 2)
            wait_for(lambda: "fails" in caplog.text)
            assert reader.stats().connections == ()
    for record in caplog.records:
        assert record.getMessage().isprintable(), record.getMessage()


@pytest.mark.rule("DISC-6")
@pytest.mark.parametrize("count", [10_000, 100_000])
def test_very_many_producers_neither_hang_it_nor_keep_it_from_a_direct_nsqd(count: int) -> None:
    with Broker() as broker, stub() as lookupd:
        listing(lookupd, *(node(f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}", 1) for n in range(count)))
        threads = threading.active_count()
        seen: list[Any] = []
        where: dict[str, Any] = {
            "lookupd_http_addresses": lookupd.address,
            "nsqd_tcp_addresses": broker.nsqd_tcp_address,
            "allowed_addresses": lambda host, port: not host.startswith("10."),
        }
        with Reader("t", "ch", seen.append, **where, **{**WARY, "lookupd_poll_interval": 5.0}):
            wait_for(lambda: lookupd.requests)
            with Writer(broker.nsqd_tcp_address) as writer:
                writer.publish("t", b"x")
            wait_for(lambda: seen)
            assert threading.active_count() < threads + 20


@pytest.mark.rule("DISC-6")
@pytest.mark.parametrize("reads", [True, False], ids=["reader", "writer"])
def test_ever_new_dead_nsqds_do_not_fill_the_log(reads: bool, caplog: pytest.LogCaptureFixture) -> None:
    def list_others(server: Stub, first: int) -> None:
        hosts = [f"127.1.{(first + n) // 250}.{(first + n) % 250 + 1}" for n in range(50)]
        nodes = [{"broadcast_address": host, "tcp_port": 1, "http_port": 2, "topics": []} for host in hosts]
        server.answers["/lookup"] = server.answers["/nodes"] = (200, {"channels": [], "producers": nodes})

    with stub() as server:
        options: dict[str, Any] = {**WARY, "lookupd_http_addresses": server.address, "lookupd_poll_interval": 0.05}
        list_others(server, 0)
        with Reader("t", "ch", print, **options) if reads else Writer(dialect="nsq", **options) as client:
            if isinstance(client, Writer):
                client.publish_nowait("t", b"x", timeout=2.5)
            for number in range(1, 6):
                asked = len(server.requests)
                list_others(server, 50 * number)
                wait_for(lambda asked=asked: len(server.requests) > asked + 1)
    lines = [record for record in caplog.records if record.levelno >= logging.INFO]
    assert 100 < len(lines) < 110
