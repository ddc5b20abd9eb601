"""Backoff of each partition by itself, in order or not, on the embedded cluster and a real one."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import pytest

from gnsq_lite import BackoffOptions, Reader
from gnsq_lite.http import NsqdClient
from gnsq_lite.youzan.dialect import YouzanDialect
from tests.contract import youzan_clients
from tests.contract.youzan_clients import Cluster, a_reader, a_writer, subscribed
from tests.programs import wait_for

cluster = youzan_clients.cluster

__all__ = ["cluster"]

pytestmark = [pytest.mark.rule("YZ-6"), pytest.mark.rule("BACK-1")]


def in_order(cluster: Cluster, topic: str, handle: Callable[[Any], None], **options: Any) -> Reader:
    """Return a Reader of an ordered topic, with the options of any."""
    dialect = YouzanDialect(ordered=True)
    return Reader(topic, "c", handle, lookupd_http_addresses=cluster.lookupd, dialect=dialect, **options)


@pytest.mark.parametrize("max_in_flight", [1, 8])
def test_a_failed_message_pauses_its_partition_alone_and_is_handled_again_after_its_delay(
    cluster: Cluster, max_in_flight: int
) -> None:
    topic = cluster.topic(4, orderedmulti="true")
    pauses: list[float] = []
    flowed: list[float] = []

    def handle(message: Any) -> None:
        now = time.monotonic()
        if message.body == b"bad":
            pauses.append(now)
            if len(pauses) < 4:
                raise ValueError("not yet")
        else:
            flowed.append(now)

    reader = in_order(
        cluster,
        topic,
        handle,
        max_in_flight=max_in_flight,
        max_attempts=10,
        requeue_delay=1.0,
        requeue_growth=0.0,
    )
    with reader, a_writer(cluster) as writer:
        subscribed(reader, 4)
        writer.publish(topic, b"bad", partition=0)
        wait_for(lambda: pauses, 90.0)  # with one RDY for four partitions they take turns
        for number in range(100):
            writer.publish(topic, b"%d" % number, partition=1 + number % (1 if max_in_flight == 1 else 3))
        wait_for(lambda: len(pauses) == 4 and len(flowed) == 100, 90.0)
        assert reader.stats().backoff_level == 0
    between = [later - earlier for earlier, later in itertools.pairwise(pauses)]
    assert all(0.95 <= seconds < 12.0 for seconds in between), between  # its delay and a second; one for a busy machine


@pytest.mark.parametrize("ordered", [True, False])
def test_a_failure_of_a_partition_does_not_slow_the_others_down(cluster: Cluster, ordered: bool) -> None:
    flags = {"orderedmulti" if ordered else "multipart": "true"}
    topic, failed, flowed = cluster.topic(4, **flags), list[bytes](), list[bytes]()

    def handle(message: Any) -> None:
        if message.partition == 0:
            failed.append(message.body)
            raise ValueError("this partition alone")
        flowed.append(message.body)

    options: dict[str, Any] = {"dialect": YouzanDialect(ordered=ordered), "backoff": BackoffOptions(unit=60.0)}
    reader = Reader(
        topic, "c", handle, lookupd_http_addresses=cluster.lookupd, max_in_flight=8, requeue_delay=60.0, **options
    )
    with reader, a_writer(cluster) as writer:
        subscribed(reader, 4)
        writer.publish(topic, b"bad", partition=0)
        wait_for(lambda: reader.stats().backoff_level or (ordered and failed), 30.0)
        for number in range(300):
            writer.publish(topic, b"%d" % number, partition=1 + number % 3)
        wait_for(lambda: len(flowed) == 300, 30.0)  # before the pause of 60 s ends
        assert failed == [b"bad"]


@pytest.mark.parametrize("flags", [{"orderedmulti": "true"}, {}])
def test_a_topic_is_read_in_order_or_not_as_it_says_itself(cluster: Cluster, flags: dict[str, str]) -> None:
    topic, got = cluster.topic(2, **flags), []
    with a_reader(cluster, topic, got.append, ordered=None) as reader, a_writer(cluster) as writer:
        subscribed(reader, 2)
        for number in range(4):
            writer.publish(topic, b"%d" % number, partition=number % 2)
        wait_for(lambda: len(got) >= 4)
    # SUB_ORDERED alone brings each message's place in the queue.
    assert {message.queue_offset is not None for message in got} == {bool(flags)}


def test_threads_go_from_message_to_message_in_order_and_keep_their_connections(cluster: Cluster) -> None:
    topic, lost = cluster.topic(4, orderedmulti="true"), []
    got: dict[int, list[int]] = {number: [] for number in range(4)}
    running = [0] * 4
    together = []

    def handle(message: Any) -> None:
        running[message.partition] += 1
        together.append(running[message.partition])
        number = int(message.body)
        if number == 50 and message.partition == 0:
            time.sleep(3.0)  # three heartbeats: nsqd disconnects after two without an answer
        if number == 70 and message.attempts == 1:
            running[message.partition] -= 1
            raise ValueError("again")
        got[message.partition].append(number)
        running[message.partition] -= 1

    reader = in_order(
        cluster,
        topic,
        handle,
        handler_pool="thread",
        max_in_flight=8,
        requeue_delay=0.1,
        heartbeat_interval=1.0,
        on_disconnected=lambda *what: lost.append(what),
    )
    with reader, a_writer(cluster) as writer:
        subscribed(reader, 4)
        for partition in range(4):
            writer.multipublish(topic, [b"%d" % number for number in range(200)], partition=partition)
        wait_for(lambda: all(len(numbers) == 200 for numbers in got.values()), 60.0)
        wait_for(lambda: reader.stats().in_flight == 0)
        assert (lost, reader.stats().finished, reader.stats().requeued) == ([], 800, 4)
    assert got == {number: list(range(200)) for number in range(4)}
    assert set(together) == {1}


@pytest.mark.parametrize("ordered", [True, False])
def test_the_order_of_a_channel_is_set_and_ended_for_consumers_that_subscribe_later(
    cluster: Cluster, ordered: bool
) -> None:
    topic, running, most = cluster.topic(1), [0], [0]

    def handle(message: Any) -> None:
        running[0] += 1
        most[0] = max(most[0], running[0])
        time.sleep(0.2)
        running[0] -= 1

    (node,) = cluster.call(f"/lookup?topic={topic}&access=w&metainfo=true")["partitions"].values()
    with NsqdClient(f"http://{node['broadcast_address']}:{node['http_port']}") as nsqd, a_writer(cluster) as writer:
        nsqd.create_channel(topic, "c", partition=0)
        for value in dict.fromkeys([True, ordered]):
            nsqd.set_channel_order(topic, "c", ordered=value, partition=0)
        writer.multipublish(topic, [b"%d" % number for number in range(8)])
        with a_reader(cluster, topic, handle) as reader:
            wait_for(lambda: reader.stats().finished == 8, 60.0)
    assert (most[0] == 1) == ordered
