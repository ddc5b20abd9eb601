"""The nsqds to which a Reader connects, when it connects again, and what it logs."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest

from gnsq_lite import Reader, errors
from gnsq_lite.broker import Broker
from tests.conftest import MakeCluster
from tests.programs import wait_for
from tests.servers import ServerHandle
from tests.system.clients import QUICK, channel, reader_on

# -- connecting


@pytest.mark.rule("CONN-3")
def test_a_direct_nsqd_is_reconnected_after_a_restart(broker: ServerHandle, topic: str) -> None:
    seen: list[bytes] = []
    with reader_on(broker, topic, lambda m: seen.append(m.body)) as reader:
        broker.publish(topic, b"before")
        wait_for(lambda: seen == [b"before"])
        wait_for(lambda: channel(broker, topic)["in_flight_count"] == 0)  # nsqd has read the FIN
        broker.stop()
        broker.restart()
        broker.publish(topic, b"after")
        wait_for(lambda: seen == [b"before", b"after"])
        assert reader.stats().reconnects >= 1
        assert reader.stats().received == 2


@pytest.mark.rule("CFG-2")
@pytest.mark.rule("CONN-1")
def test_a_direct_nsqd_that_lookupd_lists_too_gets_one_connection(make_cluster: MakeCluster, topic: str) -> None:
    cluster = make_cluster()
    node = cluster.nodes[0]
    node.publish(topic, b"x")
    cluster.wait_registered(topic)
    seen: list[bytes] = []
    reader = Reader(
        topic,
        "ch",
        lambda m: seen.append(m.body),
        nsqd_tcp_addresses=node.tcp_address,
        lookupd_http_addresses=cluster.lookupd_http_address,
        lookupd_poll_interval=0.1,
        **QUICK,
    )
    with reader:
        wait_for(lambda: seen == [b"x"])
        time.sleep(0.5)
        assert len(reader.stats().connections) == 1
        assert len(channel(node, topic)["clients"]) == 1


@pytest.mark.rule("DISC-4")
@pytest.mark.rule("CONN-4")
def test_nsqds_are_found_through_lookupd_and_found_again_after_a_restart(make_cluster: MakeCluster, topic: str) -> None:
    cluster = make_cluster(nodes=2)
    seen: list[bytes] = []
    cluster.nodes[0].publish(topic, b"one")
    cluster.wait_registered(topic)
    with Reader(
        topic,
        "ch",
        lambda m: seen.append(m.body),
        lookupd_http_addresses=[cluster.lookupd_http_address],
        lookupd_poll_interval=0.2,
        max_in_flight=10,
        **QUICK,
    ) as reader:
        wait_for(lambda: seen == [b"one"])
        cluster.nodes[1].publish(topic, b"two")  # a new nsqd, without a restart of the Reader
        wait_for(lambda: sorted(seen) == [b"one", b"two"])
        wait_for(lambda: channel(cluster.nodes[1], topic)["in_flight_count"] == 0)  # nsqd has read the FIN
        cluster.nodes[1].stop()
        wait_for(lambda: len(reader.stats().connections) == 1)
        cluster.nodes[1].restart()
        cluster.nodes[1].publish(topic, b"three")
        wait_for(lambda: len(seen) == 3)
        assert seen[2] == b"three"
        assert next(iter(reader.stats().lookupds.values())).ok


@pytest.mark.rule("CONN-3")
def test_a_direct_nsqd_is_tried_again_with_lookupds_configured_too(make_cluster: MakeCluster, topic: str) -> None:
    # lessons: with lookupd configured, a lost direct nsqd was never tried again
    cluster = make_cluster(nodes=1)
    node, seen = cluster.nodes[0], []
    with Reader(
        topic,
        "ch",
        lambda m: seen.append(m.body),
        nsqd_tcp_addresses=node.tcp_address,
        lookupd_http_addresses=cluster.lookupd_http_address,
        lookupd_poll_interval=60.0,
        **QUICK,
    ) as reader:
        wait_for(lambda: reader.stats().connections)
        node.stop()
        wait_for(lambda: not reader.stats().connections)
        node.restart()
        node.publish(topic, b"x")
        wait_for(lambda: seen == [b"x"])


def test_a_closed_reader_cannot_be_entered_again(broker: ServerHandle, topic: str) -> None:
    reader = reader_on(broker, topic, print)
    with reader:
        with reader:  # the Reader runs
            pass
        with pytest.raises(errors.ClosedError, match="create a new Reader"), reader:
            pass
    never = reader_on(broker, topic, print)
    never.close()
    with pytest.raises(errors.ClosedError), never:
        pass


def test_nothing_reconnects_after_close(broker: ServerHandle, topic: str) -> None:
    reader = reader_on(broker, topic, print)
    reader.start(block=False)
    wait_for(lambda: reader.stats().connections)
    reader.close()
    time.sleep(0.5)
    assert not channel(broker, topic).get("clients")
    assert reader.stats().state == "closed"


@pytest.mark.rule("DISC-5")
def test_lookupd_is_polled_again_for_an_unknown_topic(make_cluster: MakeCluster, topic: str) -> None:
    cluster = make_cluster()
    seen: list[bytes] = []
    with Reader(
        topic,
        "ch",
        lambda m: seen.append(m.body),
        lookupd_http_addresses=cluster.lookupd_http_address,
        lookupd_poll_interval=0.1,
        **QUICK,
    ):
        time.sleep(0.3)
        cluster.nodes[0].publish(topic, b"now")
        wait_for(lambda: seen == [b"now"])


def test_an_address_map_replaces_the_address_of_an_nsqd(broker: ServerHandle, topic: str) -> None:
    broker.publish(topic, b"x")
    for address_map in (
        {"nsqd.inside.invalid:4150": broker.tcp_address},
        lambda host, port: (broker.host, broker.tcp_port),
    ):
        seen: list[bytes] = []
        with Reader(
            topic,
            f"ch{id(address_map)}",
            lambda m, seen=seen: seen.append(m.body),  # type: ignore[misc]
            nsqd_tcp_addresses="nsqd.inside.invalid:4150",
            address_map=address_map,
            **QUICK,
        ) as reader:
            wait_for(lambda: reader.stats().connections)


def test_a_refused_sub_is_retried_after_growing_delays(embedded: Broker) -> None:
    lost: list[Any] = []
    embedded.faults.answer("SUB", b"E_SUB_FAILED too many", times=None)
    with Reader(
        "t",
        "ch",
        print,
        nsqd_tcp_addresses=embedded.nsqd_tcp_address,
        reconnect_delay=0.2,
        max_reconnect_delay=10.0,
        reconnect_jitter=0.0,
        on_disconnected=lambda address, error: lost.append(error),
    ):
        time.sleep(1.0)
    assert 1 <= len(lost) <= 3  # after 0, 0.2 and 0.6 s: the delay grows, because nsqd never accepted SUB
    assert isinstance(lost[0], errors.SubFailedError)


@pytest.mark.rule("ERR-2")
def test_a_fatal_error_frame_closes_the_connection_and_keeps_the_servers_text(embedded: Broker) -> None:
    lost: list[Any] = []
    with Reader(
        "t",
        "ch",
        print,
        nsqd_tcp_addresses=embedded.nsqd_tcp_address,
        on_error=lost.append,
        **QUICK,
    ) as reader:
        wait_for(lambda: reader.stats().connections)
        embedded.faults.send_frame(1, b"E_INVALID something went wrong")
        wait_for(lambda: lost)
        assert isinstance(lost[0], errors.InvalidError)
        assert "something went wrong" in str(lost[0])
        wait_for(lambda: reader.stats().connections)


def test_errors_name_an_http_port_and_a_refusal_of_tls_ends_a_reader_of_one_nsqd(
    broker: ServerHandle, topic: str
) -> None:
    found: list[errors.NSQError] = []
    with Reader(topic, "ch", print, nsqd_tcp_addresses=broker.http_address, on_error=found.append):
        wait_for(lambda: found)
    assert "not its HTTP port" in str(found[0])
    with pytest.raises(errors.TLSNotGranted, match=broker.tcp_address):
        Reader(topic, "ch", print, nsqd_tcp_addresses=broker.tcp_address, tls=True).start()


def test_ipv6_and_host_names_work() -> None:
    if not socket.has_ipv6:
        return
    with Broker(host="::1", lookupd=False) as broker:
        port = broker.tcp_address[1]
        seen: list[bytes] = []
        with Reader("t", "ch", lambda m: seen.append(m.body), nsqd_tcp_addresses=f"[::1]:{port}") as reader:
            wait_for(lambda: reader.stats().connections)
            assert reader.stats().connections[0].address == f"[::1]:{port}"
