"""Every endpoint of NsqdClient and LookupdClient against the embedded servers and the real ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gnsq_lite import errors
from gnsq_lite.http import LookupdClient, NsqdClient
from tests.conftest import Connect
from tests.programs import wait_for
from tests.rawclient import RawClient
from tests.servers import Cluster, ServerHandle


@pytest.fixture
def nsqd(broker: ServerHandle) -> Iterator[NsqdClient]:
    with NsqdClient(broker.http_address) as client:
        yield client


@pytest.fixture
def lookupd(cluster: Cluster) -> Iterator[LookupdClient]:
    with LookupdClient(cluster.lookupd_http_address) as client:
        yield client


def refused(status: int, text: str, call: Callable[..., Any], *args: Any, **options: Any) -> None:
    with pytest.raises(errors.HTTPStatusError) as caught:
        call(*args, **options)
    assert (caught.value.status, caught.value.text) == (status, text)


# -- nsqd -------------------------------------------------------------------------------------------------------------


def test_ping_and_info(nsqd: NsqdClient, broker: ServerHandle) -> None:
    assert nsqd.ping() == "OK"
    info = nsqd.info()
    assert (info.version, info.tcp_port, info.http_port) == ("1.3.0", broker.tcp_port, broker.http_port)
    assert info.broadcast_address == "127.0.0.1"
    assert abs(info.start_time - time.time()) < 300
    assert info.raw["max_deflate_level"] == 6


def test_a_published_message_is_delivered_and_counted(
    nsqd: NsqdClient, broker: ServerHandle, connect: Connect, topic: str
) -> None:
    client: RawClient = connect(broker)
    nsqd.create_topic(topic)
    nsqd.create_channel(topic, "c")
    nsqd.publish(topic, b"one \x00\xff")
    nsqd.multipublish(topic, [b"two\n", b"three"])
    nsqd.multipublish(topic, [b"four", b"five"])
    nsqd.publish(topic, b"later", defer=0.0004)
    channel = wait_for(
        lambda: (found := nsqd.stats(topic, "c").channel(topic, "c")) and found.message_count == 6 and found
    )
    assert (channel.paused, channel.client_count, channel.clients) == (False, 0, ())
    entry = nsqd.stats(topic).topic(topic)
    assert entry is not None
    assert (entry.message_count, entry.message_bytes) == (6, 6 + 4 + 5 + 4 + 4 + 5)
    client.send(b"SUB %s c\n" % topic.encode(), b"RDY 10\n")
    assert client.frame()[1] == b"OK"
    bodies = sorted(client.frame()[1][26:] for _ in range(6))
    assert bodies == sorted([b"one \x00\xff", b"two\n", b"three", b"four", b"five", b"later"])
    (consumer,) = nsqd.stats(topic).channel(topic, "c").clients  # type: ignore[union-attr]
    assert (consumer.in_flight_count, consumer.ready_count, consumer.message_count) == (6, 10, 6)
    assert consumer.remote_address.startswith("127.0.0.1:")
    (bare,) = nsqd.stats(topic, include_clients=False).topics
    assert bare.channels[0].clients == ()


def test_a_deferred_message_is_held_back(nsqd: NsqdClient, topic: str) -> None:
    nsqd.create_topic(topic)
    nsqd.create_channel(topic, "c")
    nsqd.publish(topic, b"later", defer=30.0)
    channel = wait_for(lambda: (c := nsqd.stats(topic).channel(topic, "c")) and c.deferred_count and c)
    assert (channel.deferred_count, channel.depth) == (1, 0)
    with pytest.raises(errors.OptionError, match="between 0"):
        nsqd.publish(topic, b"x", defer=10_000_000.0)


def test_topics_and_channels_are_created_paused_emptied_and_deleted(nsqd: NsqdClient, topic: str) -> None:
    nsqd.create_topic(topic)
    nsqd.create_topic(topic)
    nsqd.pause_topic(topic)
    nsqd.create_channel(topic, "c")
    nsqd.pause_channel(topic, "c")
    nsqd.publish(topic, b"x")
    stats = nsqd.stats(topic)
    assert stats.topic(topic).paused  # type: ignore[union-attr]
    assert stats.channel(topic, "c").paused  # type: ignore[union-attr]
    nsqd.empty_topic(topic)
    assert nsqd.stats(topic).topic(topic).depth == 0  # type: ignore[union-attr]
    nsqd.unpause_topic(topic)
    nsqd.publish(topic, b"y")
    wait_for(lambda: nsqd.stats(topic).channel(topic, "c").depth == 1)  # type: ignore[union-attr]
    nsqd.empty_channel(topic, "c")
    nsqd.unpause_channel(topic, "c")
    channel = nsqd.stats(topic).channel(topic, "c")
    assert channel is not None
    assert (channel.depth, channel.paused) == (0, False)
    nsqd.delete_channel(topic, "c")
    assert nsqd.stats(topic).channel(topic, "c") is None
    nsqd.delete_topic(topic)
    assert nsqd.stats().topic(topic) is None
    assert nsqd.stats(topic).topics == ()


def test_an_unknown_name_is_a_404_and_a_large_message_a_413(nsqd: NsqdClient, topic: str) -> None:
    for act in (nsqd.empty_topic, nsqd.delete_topic, nsqd.pause_topic, nsqd.unpause_topic):
        refused(404, "TOPIC_NOT_FOUND", act, topic)
    refused(404, "TOPIC_NOT_FOUND", nsqd.create_channel, topic, "c")
    nsqd.create_topic(topic)
    for act2 in (nsqd.empty_channel, nsqd.delete_channel, nsqd.pause_channel, nsqd.unpause_channel):
        refused(404, "CHANNEL_NOT_FOUND", act2, topic, "c")
    refused(413, "MSG_TOO_BIG", nsqd.publish, topic, b"x" * (1024 * 1024 + 1))
    refused(413, "BAD_MESSAGE", nsqd.multipublish, topic, [b"x" * (1024 * 1024 + 1)])
    assert nsqd.ping() == "OK"


def test_ephemeral_names_are_quoted_in_the_url(nsqd: NsqdClient, topic: str) -> None:
    name = f"{topic}#ephemeral"
    nsqd.create_topic(name)
    nsqd.create_channel(name, "c#ephemeral")
    assert nsqd.stats(name).channel(name, "c#ephemeral") is not None


def test_stats_with_and_without_memory(nsqd: NsqdClient) -> None:
    stats = nsqd.stats()
    assert (stats.health, stats.version) == ("OK", "1.3.0")
    assert "heap_in_use_bytes" in stats.raw["memory"]
    assert not nsqd.stats(include_mem=False).raw.get("memory")


# -- nsqlookupd -------------------------------------------------------------------------------------------------------


@pytest.mark.rule("DISC-1")
def test_lookup_returns_the_nsqds_of_a_topic(cluster: Cluster, lookupd: LookupdClient, topic: str) -> None:
    node = cluster.nodes[0]
    with NsqdClient(node.http_address) as nsqd:
        nsqd.create_topic(topic)
        nsqd.create_channel(topic, "c")
    cluster.wait_registered(topic)
    found = wait_for(lambda: (result := lookupd.lookup(topic)).channels and result)
    (producer,) = found.producers
    assert found.found
    assert found.channels == ("c",)
    assert producer.tcp_address == ("127.0.0.1", node.tcp_port)
    assert producer.http_address == ("127.0.0.1", node.http_port)
    assert (found.partitions, found.meta) == ({}, None)
    assert topic in lookupd.topics()
    assert lookupd.channels(topic) == ("c",)
    (listed,) = lookupd.nodes()
    assert (listed.topics, listed.tombstones, listed.version) == ((topic,), {topic: False}, "1.3.0")


@pytest.mark.rule("DISC-5")
def test_an_unknown_topic_is_an_empty_result(lookupd: LookupdClient) -> None:
    result = lookupd.lookup("never_seen")
    assert (result.found, result.producers, result.channels) == (False, (), ())
    assert lookupd.channels("never_seen") == ()


def test_a_tombstone_hides_a_node_from_lookup(cluster: Cluster, lookupd: LookupdClient, topic: str) -> None:
    node = cluster.nodes[0]
    node.publish(topic, b"x")
    cluster.wait_registered(topic)
    lookupd.tombstone_topic(topic, node.http_address)
    assert lookupd.lookup(topic).producers == ()
    assert lookupd.nodes()[0].tombstones == {topic: True}


def test_registrations_are_created_and_deleted(lookupd: LookupdClient) -> None:
    assert lookupd.ping() == "OK"
    assert lookupd.info().version == "1.3.0"
    lookupd.create_topic("t1")
    lookupd.create_channel("t2", "c")
    assert sorted(lookupd.topics()) == ["t1", "t2"]
    assert lookupd.channels("t2") == ("c",)
    lookupd.delete_channel("t2", "c")
    refused(404, "CHANNEL_NOT_FOUND", lookupd.delete_channel, "t2", "c")
    lookupd.delete_topic("t1")
    lookupd.delete_topic("t2")
    assert lookupd.topics() == ()


def test_a_lookup_at_the_port_of_nsqd_is_an_error(cluster: Cluster) -> None:
    with LookupdClient(cluster.nodes[0].http_address) as wrong:
        refused(404, "NOT_FOUND", wrong.lookup, "t")
