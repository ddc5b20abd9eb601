"""Topics of Youzan's NSQ: each topic partition keeps its order."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gnsq_lite import Writer
from gnsq_lite.spark.options import SinkOptions, SourceOptions, parse
from gnsq_lite.spark.publisher import PayloadWriter, Sink
from gnsq_lite.spark.stream import NsqStreamReader
from tests.youzan_broker import YouzanBroker


@pytest.fixture
def cluster() -> Iterator[YouzanBroker]:
    with YouzanBroker(nsqds=2) as broker:
        yield broker


def make(cluster: YouzanBroker, topic: str, partitions: int, **kinds: bool) -> None:
    cluster.youzan.create_topic(topic, partitions=partitions, **kinds)
    cluster.youzan.create_channel(topic, "c")


def source(cluster: YouzanBroker, directory: Path, topic: str, **more: str) -> SourceOptions:
    base = {
        "topic": topic,
        "channel": "c",
        "recording": str(directory / "spool"),
        "lookupdHTTPAddresses": cluster.lookupd_http_address,
        "dialect": "youzan",
        "includeYouzan": "true",
    }
    return parse(SourceOptions, {**base, **more})


def publish(cluster: YouzanBroker, topic: str, partitions: int, each: int) -> None:
    with Writer(lookupd_http_addresses=cluster.lookupd_http_address, dialect="youzan") as writer:
        for number in range(each):
            for partition in range(partitions):
                writer.publish(topic, b"%d:%d" % (partition, number), partition=partition)


def tasks(reader: Any, start: Any, end: Any) -> list[list[dict[str, Any]]]:
    return [[row for batch in reader.read(p) for row in batch.to_pylist()] for p in reader.partitions(start, end)]


def collected(reader: NsqStreamReader, wanted: int) -> list[list[dict[str, Any]]]:
    end = reader.initialOffset()
    found: list[list[dict[str, Any]]] = []
    deadline = time.monotonic() + 30
    while sum(map(len, found)) < wanted and time.monotonic() < deadline:
        start, end = end, reader.latestOffset(end, None)
        found += tasks(reader, start, end)
        time.sleep(0.02)
    return found


@pytest.mark.rule("PIPE-4")
def test_each_topic_partition_keeps_its_order(cluster: YouzanBroker, tmp_path: Path) -> None:
    make(cluster, "plain", 3)
    publish(cluster, "plain", 3, 40)
    reader = NsqStreamReader(source(cluster, tmp_path, "plain"))
    try:
        found = collected(reader, 120)
    finally:
        reader.stop()
    assert order_of(found) == {partition: list(range(40)) for partition in range(3)}


def test_an_ordered_topic_keeps_its_order(cluster: YouzanBroker, tmp_path: Path) -> None:
    make(cluster, "ordered", 2, ordered=True)
    publish(cluster, "ordered", 2, 15)
    reader = NsqStreamReader(source(cluster, tmp_path, "ordered", ordered="true"))
    try:
        found = collected(reader, 30)
    finally:
        reader.stop()
    assert order_of(found) == {0: list(range(15)), 1: list(range(15))}


def order_of(found: list[list[dict[str, Any]]]) -> dict[int, list[int]]:
    orders: dict[int, list[int]] = {}
    for row in (row for rows in found for row in rows):
        partition, number = map(int, row["body"].split(b":"))
        assert partition == row["partition"]
        orders.setdefault(partition, []).append(number)
    return orders


def test_trace_ids_and_headers_are_columns(cluster: YouzanBroker, tmp_path: Path) -> None:
    make(cluster, "ext", 1, ext=True)
    with Writer(lookupd_http_addresses=cluster.lookupd_http_address, dialect="youzan") as writer:
        writer.publish("ext", b"with", headers={"k": "v"}, trace_id=77)
        writer.publish("ext", b"without")
    reader = NsqStreamReader(source(cluster, tmp_path, "ext"))
    try:
        rows = [row for rows in collected(reader, 2) for row in rows]
    finally:
        reader.stop()
    with_header, without = sorted(rows, key=lambda row: bytes(row["body"]))
    assert with_header["traceId"] == 77
    assert '"k": "v"' in with_header["ext"]
    assert len(with_header["id"]) == 32
    assert without["ext"] is None
    assert without["internalId"] > 0


def test_the_sink_publishes_to_partitions(cluster: YouzanBroker) -> None:
    import pyarrow as pa

    make(cluster, "out", 2)
    options = parse(
        SinkOptions, {"lookupdHTTPAddresses": cluster.lookupd_http_address, "dialect": "youzan", "topic": "out"}
    )
    arguments = options.client_arguments()
    arguments.pop("nsqd_tcp_addresses")
    with PayloadWriter(**arguments) as writer:
        bodies = [b"%d" % n for n in range(100)]
        Sink(writer, options).write([pa.RecordBatch.from_pydict({"body": pa.array(bodies, pa.binary())})])
    stored = [body for partition in range(2) for body in cluster.youzan.bodies("out", partition)]
    assert sorted(stored) == sorted(bodies)
