"""A topic of a real cluster of Youzan's NSQ read as a log: its leaders are killed in the middle of a task."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gnsq_lite import Writer
from gnsq_lite.errors import HTTPError, NSQError
from gnsq_lite.http import LookupdClient
from gnsq_lite.spark.nsq_log.options import LogOptions
from gnsq_lite.spark.nsq_log.source import NsqLogStreamReader
from gnsq_lite.spark.options import parse
from tests import youzan_servers
from tests.youzan_servers import Node

pytestmark = [pytest.mark.slow, pytest.mark.youzan, pytest.mark.timeout(900)]

COUNT = 30_000


class Cluster:
    """Three nodes."""

    def __init__(self, lookupd: str, nodes: dict[str, Node]) -> None:
        self.lookupd, self.nodes = lookupd, nodes
        self.client = LookupdClient(lookupd)

    def topic(self, partitions: int, replicas: int) -> str:
        name = f"log{uuid.uuid4().hex[:10]}"

        def made() -> bool:
            try:
                self.client.create_topic(name, partition_num=partitions, replicator=replicas, multi_part=True)
            except HTTPError:
                pass
            return until(lambda: len(self.client.lookup(name, access="w").partitions) == partitions, 3.0)

        assert until(made, 200.0)
        return name

    def leader(self, topic: str, partition: int) -> str:
        host, port = self.client.lookup(topic, access="r").partitions[partition].http_address
        return f"{host}:{port}"

    def options(self, topic: str, **more: str) -> LogOptions:
        return parse(LogOptions, {"topic": topic, "lookupdHTTPAddresses": self.lookupd, **more})

    def publish(self, topic: str, partition: int, first: int, count: int) -> None:
        with Writer(lookupd_http_addresses=self.lookupd, dialect="youzan") as writer:
            for at in range(first, first + count, 500):
                bodies = [b"%d" % n for n in range(at, min(at + 500, first + count))]
                writer.multipublish(topic, bodies, partition=partition)


def until(done: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if youzan_servers.programs() is None:
        pytest.skip("no Youzan's nsqd, nsqlookupd and etcd: GNSQ_YOUZAN_NSQD, GNSQ_YOUZAN_NSQLOOKUPD")
    with youzan_servers.youzan_cluster(tmp_path_factory.mktemp("youzan"), 3) as real:
        yield Cluster(real.addresses[0], {node.http_address: node for node in real.nsqds})


def rows(reader: Any, partitions: Any) -> list[list[tuple[int, int]]]:
    return [
        [(row["offset"], int(row["body"])) for batch in reader.read(one) for row in batch.to_pylist()]
        for one in partitions
    ]


@pytest.mark.rule("PIPE-3")
@pytest.mark.rule("YZ-12")
def test_leaders_killed_amid_tasks_and_a_stream_cost_nothing(cluster: Cluster) -> None:
    topic = cluster.topic(2, 3)
    for partition in (0, 1):
        cluster.publish(topic, partition, 0, COUNT)
    stream = NsqLogStreamReader(cluster.options(topic, startingOffsets="earliest"))
    begin = stream.initialOffset()
    end = stream.latestOffset(begin, None)
    planned = stream.partitions(begin, end)
    before = rows(stream, planned)
    assert [[body for _, body in task] for task in before] == [list(range(COUNT))] * 2
    for partition in (0, 1):
        victim = cluster.nodes[cluster.leader(topic, partition)]
        killed = threading.Event()
        seen: list[tuple[int, int]] = []
        for batch in stream.read(planned[partition]):
            seen += [(row["offset"], int(row["body"])) for row in batch.to_pylist()]
            if not killed.is_set():
                victim.kill()
                killed.set()
        assert seen == before[partition]
        victim.start()
        assert until(lambda p=partition: _takes(cluster, topic, p), 300.0)  # type: ignore[misc]
        cluster.publish(topic, partition, COUNT, 100)
    last = stream.latestOffset(end, None)
    more = [[body for _, body in task] for task in rows(stream, stream.partitions(end, last))]
    assert more == [list(range(COUNT, COUNT + 100))] * 2
    assert rows(stream, stream.partitions(begin, end)) == before


def _takes(cluster: Cluster, topic: str, partition: int) -> bool:
    try:
        return partition in cluster.client.lookup(topic, access="w").partitions
    except NSQError:
        return False


@pytest.mark.rule("PIPE-3")
def test_a_partition_that_comes_later_is_read_from_its_begin(cluster: Cluster) -> None:
    topic = cluster.topic(1, 2)
    cluster.publish(topic, 0, 0, 10)
    stream = NsqLogStreamReader(cluster.options(topic))
    begin = stream.initialOffset()

    def expanded() -> bool:
        try:
            cluster.client.post("/topic/partition/expand", {"topic": topic, "partition_num": 2})
        except HTTPError:  # a cluster counts as unstable for a minute after a topic was made
            return False
        return True

    assert until(expanded, 200.0)
    assert until(lambda: _takes(cluster, topic, 1), 300.0)
    cluster.publish(topic, 1, 0, 1000)
    end = stream.latestOffset(begin, None)
    assert end[topic].keys() == {"0", "1"}
    planned = stream.partitions(begin, end)
    assert [[body for _, body in task] for task in rows(stream, planned)] == [list(range(1000))]
    cluster.nodes[cluster.leader(topic, 1)].kill()
    assert stream.partitions(begin, end) == planned
