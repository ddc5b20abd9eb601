"""Reader and Writer on a cluster of Youzan's kind: the embedded one, and a real one."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from gnsq_lite import Reader, Writer
from gnsq_lite.errors import (
    ExtNotSupportedError,
    NotSent,
    OptionError,
    PartitionUnavailable,
)
from gnsq_lite.youzan.commands import StartOffset
from gnsq_lite.youzan.dialect import YouzanDialect
from gnsq_lite.youzan.messages import PublishReceipt
from gnsq_lite.youzan.partitions import partition_of
from tests.contract import youzan_clients
from tests.contract.youzan_clients import Cluster, a_reader, a_writer, subscribed
from tests.programs import wait_for
from tests.youzan_broker import YouzanBroker

cluster = youzan_clients.cluster


@pytest.mark.rule("YZ-3")
@pytest.mark.rule("YZ-4")
def test_every_partition_is_written_in_turn_and_read_on_a_connection_of_its_own(cluster: Cluster) -> None:
    topic, got = cluster.topic(2), []
    with a_reader(cluster, topic, lambda m: got.append((m.partition, m.body))) as reader:
        subscribed(reader, 2)
        with a_writer(cluster) as writer:
            for number in range(20):
                writer.publish(topic, b"%d" % number)
        wait_for(lambda: len({body for _, body in got}) == 20)
    written = [sum(1 for p, _ in set(got) if p == n) for n in (0, 1)]
    assert sorted(written) in ([9, 11], [10, 10])  # the first publish goes to the leader that is connected first


@pytest.mark.rule("YZ-3")
def test_the_named_partitions_alone_are_read_of_an_nsqd_that_is_given() -> None:
    got: list[tuple[int, bytes]] = []
    with YouzanBroker(nsqds=1) as broker:
        broker.youzan.create_topic("t", 4)
        reader = Reader(
            "t",
            "c",
            lambda m: got.append((m.partition, m.body)),
            nsqd_tcp_addresses=broker.nsqd_tcp_address,
            dialect="youzan",
            partitions=[1, 2],
            max_in_flight=4,
        )
        with reader, a_writer(Cluster(broker.lookupd_http_address, broker)) as writer:
            subscribed(reader, 2)
            for number in (0, 3, 1, 2):
                writer.publish("t", b"%d" % number, partition=number)
            wait_for(lambda: len(got) >= 2)
    assert sorted(got) == [(1, b"1"), (2, b"2")]


@pytest.mark.rule("YZ-5")
def test_a_key_always_goes_to_the_partition_the_go_client_would_choose(cluster: Cluster) -> None:
    topic, got = cluster.topic(2), []
    keys = [b"a", b"key1", b"order-123", b"12345", "中文".encode()]
    with a_reader(cluster, topic, lambda m: got.append((m.partition, m.body))) as reader:
        subscribed(reader, 2)
        with a_writer(cluster) as writer:
            for key in keys * 3:
                writer.publish(topic, key, key=key)
        wait_for(lambda: len(got) >= 15)
    assert {body: partition for partition, body in got} == {key: partition_of(key, 2) for key in keys}


@pytest.mark.rule("YZ-9")
@pytest.mark.rule("YZ-10")
def test_a_traced_publish_returns_where_it_went_and_the_message_carries_it(cluster: Cluster) -> None:
    topic, got = cluster.topic(2), []
    with a_reader(cluster, topic, got.append, positions=True) as reader:
        subscribed(reader, 2)
        with a_writer(cluster) as writer:
            assert writer.publish(topic, b"plain", partition=1) is None
            receipt = writer.publish(topic, b"traced", partition=1, trace_id=2**63 + 5)
        wait_for(lambda: len(got) == 2)
    assert isinstance(receipt, PublishReceipt)
    assert (receipt.trace_id, receipt.partition) == (2**63 + 5, 1)
    traced = next(m for m in got if m.body == b"traced")
    assert (traced.internal_id, traced.trace_id) == (receipt.internal_id, receipt.trace_id)
    assert (traced.queue_offset, traced.raw_size) == (receipt.queue_offset, receipt.raw_size)


@pytest.mark.rule("YZ-9")
@pytest.mark.rule("WIRE-8")
def test_a_traced_batch_is_split_with_its_trace_ids_counted(cluster: Cluster) -> None:
    topic = cluster.topic(1)
    with a_writer(cluster, trace=True) as writer:
        first = writer.publish(topic, b"first")
        batch = writer.multipublish(topic, [b"x" * 96] * 50_000)  # 5,000,004 bytes, and 400,000 of trace ids
        last = writer.publish(topic, b"last")
    assert batch.internal_id == first.internal_id + 1
    (second,) = batch.rest
    assert first.internal_id + 1 < second.internal_id < last.internal_id
    assert last.internal_id - first.internal_id == 50_001


def test_a_key_that_is_no_utf8_text_is_refused_before_anything_is_sent(cluster: Cluster) -> None:
    with a_writer(cluster) as writer, pytest.raises(OptionError, match="UTF-8"):
        writer.publish("t", b"x", key="\ud800")


@pytest.mark.rule("YZ-15")
def test_headers_of_an_ext_topic_are_on_the_message(cluster: Cluster) -> None:
    topic, got = cluster.topic(1, extend="true"), []
    with a_reader(cluster, topic, lambda m: got.append((m.body, m.headers))) as reader:
        subscribed(reader, 1)
        with a_writer(cluster) as writer:
            writer.publish(topic, b"with", headers={"city": "杭州", "n": 1})
            writer.publish(topic, b"without")
        wait_for(lambda: len(got) == 2)
    assert sorted(got) == [(b"with", {"city": "杭州", "n": 1}), (b"without", None)]


@pytest.mark.rule("YZ-15")
@pytest.mark.rule("YZ-9")
def test_each_message_of_a_batch_has_its_own_headers_and_trace_id(cluster: Cluster) -> None:
    topic, got = cluster.topic(1, extend="true"), []
    with a_reader(cluster, topic, lambda m: got.append((m.body, (m.headers or {}).get("n"), m.trace_id))) as reader:
        subscribed(reader, 1)
        with a_writer(cluster) as writer:
            writer.multipublish(topic, [b"a", b"b", b"c"], headers=[{"n": 1}, None, {"n": 3}], trace_ids=[7, 8, 9])
            receipt = writer.multipublish(topic, [b"d", b"e"], trace_ids=[10, 11])
            long = {"n": "x" * 65498}  # with 80 of them, two MPUBs of 5 MiB
            writer.multipublish(topic, [b"f"] * 81, headers=[long] * 81)
        wait_for(lambda: len(got) >= 86, 60.0)
    assert receipt is not None
    assert sorted(one for one in got if one[0] < b"f") == [
        (b"a", 1, 7),
        (b"b", None, 8),
        (b"c", 3, 9),
        (b"d", None, 10),
        (b"e", None, 11),
    ]
    assert got.count((b"f", "x" * 65498, 0)) == 81


@pytest.mark.rule("YZ-15")
def test_a_batch_with_headers_is_refused_before_a_topic_without_loses_its_place(cluster: Cluster) -> None:
    topic = cluster.topic(1)
    with a_writer(cluster) as writer:
        with pytest.raises(OptionError, match="not an ext topic"):
            writer.multipublish(topic, [b"a"], headers=[{"n": 1}])
        receipt = writer.multipublish(topic, [b"a", b"b"], trace_ids=[5, 6])
    assert receipt is not None


@pytest.mark.rule("YZ-6")
def test_a_failed_ordered_message_is_handled_again_before_any_later_one(cluster: Cluster) -> None:
    topic = cluster.topic(2, orderedmulti="true")
    order: list[tuple[int, bytes, int]] = []
    times: list[float] = []
    busy: dict[int, int] = {0: 0, 1: 0}
    lock = threading.Lock()

    def handle(message: Any) -> None:
        with lock:
            busy[message.partition] += 1
            assert busy[message.partition] == 1
            order.append((message.partition, message.body, message.attempts))
        try:
            if message.body == b"2" and message.attempts == 1:
                times.append(time.monotonic())
                raise ValueError("once")
            if message.body == b"2":
                times.append(time.monotonic())
        finally:
            with lock:
                busy[message.partition] -= 1

    with a_reader(cluster, topic, handle, ordered=True) as reader:
        subscribed(reader, 2)
        with a_writer(cluster) as writer:
            for number in range(6):
                writer.publish(topic, b"%d" % number, partition=0)
        wait_for(lambda: len(order) == 7)
    assert [body for _, body, _ in order] == [b"0", b"1", b"2", b"2", b"3", b"4", b"5"]
    assert 0.25 <= times[1] - times[0] < 5.0  # held here for requeue_delay: the server ignores REQ with a delay


@pytest.mark.rule("YZ-17")
def test_a_new_channel_starts_where_it_is_told_to(cluster: Cluster) -> None:
    topic, got = cluster.topic(1), []
    with a_writer(cluster) as writer:
        for number in range(5):
            writer.publish(topic, b"%d" % number)
    with a_reader(cluster, topic, lambda m: got.append(m.body), start_offset=StartOffset.at_message(3)) as reader:
        subscribed(reader, 1)
        wait_for(lambda: len(got) == 3)
    assert got == [b"2", b"3", b"4"]


@pytest.mark.rule("YZ-7")
def test_an_ordered_topic_read_without_order_is_refused_with_what_to_change(cluster: Cluster) -> None:
    topic, errors = cluster.topic(1, orderedmulti="true"), []
    reader = Reader(
        topic,
        "c",
        lambda m: None,
        lookupd_http_addresses=cluster.lookupd,
        dialect=YouzanDialect(),
        on_error=errors.append,
    )
    with reader:
        wait_for(lambda: errors)
    assert "E_SUB_ORDER_IS_MUST" in str(errors[0])
    assert "ordered=True" in str(errors[0])


def test_a_partition_the_topic_does_not_have_is_refused_before_anything_is_sent(cluster: Cluster) -> None:
    topic = cluster.topic(2)
    with a_writer(cluster) as writer, pytest.raises(OptionError, match="2 partitions"):
        writer.publish(topic, b"x", partition=2)


@pytest.mark.rule("YZ-5")
def test_a_key_whose_partition_takes_no_writes_fails_typed_and_goes_nowhere_else() -> None:
    with YouzanBroker(nsqds=2) as broker:
        broker.youzan.create_topic("t", 2)
        broker.youzan.set_writable("t", partition_of(b"a", 2), False)
        cluster = Cluster(broker.lookupd_http_address, broker)
        with a_writer(cluster) as writer, pytest.raises(PartitionUnavailable):
            writer.publish("t", b"x", key=b"a", timeout=3.0)
        assert [broker.youzan.bodies("t", number) for number in (0, 1)] == [[], []]


@pytest.mark.rule("YZ-13")
def test_an_ordered_partition_continues_with_the_next_message_after_max_attempts() -> None:
    with YouzanBroker(nsqds=2) as broker:
        broker.youzan.create_topic("t", 1, ordered=True)
        broker.youzan.create_channel("t", "c")
        cluster, tried = Cluster(broker.lookupd_http_address, broker), []

        def handle(message: Any) -> None:
            tried.append(message.body)
            if message.body == b"bad":
                raise ValueError("always")

        with a_reader(cluster, "t", handle, ordered=True, max_attempts=2, requeue_delay=0.05) as reader:
            subscribed(reader, 1)
            with a_writer(cluster) as writer:
                for body in (b"0", b"bad", b"1"):
                    writer.publish("t", body, partition=0)
            wait_for(lambda: b"1" in tried)
            wait_for(lambda: broker.youzan.depth("t", 0, "c") == 0)
            assert reader.stats().given_up == 1
        assert tried == [b"0", b"bad", b"bad", b"1"]


@pytest.mark.rule("YZ-1")
@pytest.mark.rule("YZ-2")
def test_other_lookupds_are_found_and_asked_when_the_configured_one_is_gone() -> None:
    with YouzanBroker(nsqds=2, lookupds=2) as broker:
        broker.youzan.create_topic("t", 1)
        cluster = Cluster(broker.lookupd_http_address, broker)
        with a_writer(cluster) as writer:
            writer.publish("t", b"before")
            time.sleep(0.5)  # /listlookup is queried together with the first lookup
            broker.lookupds[0].stop()
            broker.youzan.move_leader("t", 0, 1 - (broker.youzan.leader("t", 0) or 0))
            writer.publish("t", b"after", timeout=20.0)
        assert broker.youzan.bodies("t", 0) == [b"before", b"after"]


@pytest.mark.rule("YZ-15")
@pytest.mark.rule("PUB-1")
def test_a_topic_that_became_ext_takes_headers_before_the_writer_has_looked_again() -> None:
    with YouzanBroker() as broker:
        broker.youzan.create_topic("t", 1)
        with a_writer(Cluster(broker.lookupd_http_address, broker)) as writer:
            with pytest.raises(ExtNotSupportedError):
                writer.publish("t", b"x", headers={"a": 1})
            broker.youzan.upgrade_to_ext("t")
            writer.publish("t", b"y", headers={"a": 1})
        assert broker.youzan.bodies("t", 0) == [b"y"]


@pytest.mark.rule("YZ-3")
@pytest.mark.rule("YZ-15")
def test_a_writer_that_refuses_a_publish_looks_the_topic_up_again() -> None:
    with YouzanBroker() as broker:
        broker.youzan.create_topic("t", 1)
        with Writer(lookupd_http_addresses=broker.lookupd_http_address, dialect="youzan") as writer:
            writer.publish("t", b"first")
            time.sleep(0.5)  # /listlookup is queried together with the first lookup
            broker.youzan.upgrade_to_ext("t")
            with pytest.raises(OptionError, match="not an ext topic"):
                writer.multipublish("t", [b"x"], headers=[{"a": 1}])
            time.sleep(1.0)  # not the 60 seconds between two polls
            writer.multipublish("t", [b"x"], headers=[{"a": 1}])
        assert broker.youzan.bodies("t", 0) == [b"first", b"x"]


def test_a_topic_that_is_not_there_is_named_as_the_reason(cluster: Cluster) -> None:
    def reason() -> bool:
        with pytest.raises(NotSent) as caught:
            writer.publish("nosuch", b"x", timeout=1.0)
        return "nosuch: no nsqlookupd lists a writable partition" in str(caught.value)

    with a_writer(cluster) as writer:
        wait_for(reason)  # on a busy machine the thread may give up before the loop names the reason


@pytest.mark.rule("YZ-15")
def test_a_topic_that_became_ext_is_read_on_after_the_next_lookup() -> None:
    with YouzanBroker(nsqds=1) as broker:
        broker.youzan.create_topic("t", 1)
        cluster, got = Cluster(broker.lookupd_http_address, broker), []
        where: dict[str, Any] = {"lookupd_http_addresses": cluster.lookupd, "lookupd_poll_interval": 1.0}
        with (
            Reader("t", "c", lambda m: got.append((m.body, m.headers)), dialect="youzan", **where) as reader,
            a_writer(cluster) as writer,
        ):
            subscribed(reader, 1)
            broker.youzan.upgrade_to_ext("t")
            writer.publish("t", b"x", headers={"a": 1}, timeout=10.0)
            wait_for(lambda: got, 15.0)  # a missing heartbeat is noticed after a minute
    assert got[0] == (b"x", {"a": 1})


@pytest.mark.rule("YZ-15")
@pytest.mark.rule("YZ-18")
def test_a_reader_notices_within_two_heartbeats_that_its_topic_became_ext() -> None:
    with YouzanBroker(nsqds=1) as broker:
        broker.youzan.create_topic("t", 1)
        got: list[Any] = []
        reader = Reader(
            "t",
            "c",
            lambda m: got.append((m.body, m.headers)),
            lookupd_http_addresses=broker.lookupd_http_address,
            dialect="youzan",
            heartbeat_interval=1.0,
        )
        cluster = Cluster(broker.lookupd_http_address, broker)
        with reader, a_writer(cluster) as writer:
            subscribed(reader, 1)
            limit = 2 * reader.stats().connections[0].negotiated.heartbeat_interval + 4.0
            broker.youzan.upgrade_to_ext("t")  # from here on the Reader reconnects, and may have no connection
            writer.publish("t", b"x", headers={"a": 1}, timeout=10.0)
            wait_for(lambda: got, limit)
    assert got[0] == (b"x", {"a": 1})


@pytest.mark.rule("YZ-15")
def test_the_longest_headers_are_delivered_and_longer_ones_are_not_sent(cluster: Cluster) -> None:
    # Of one byte more a real nsqd panics when it delivers the message, and again after each restart.
    topic, got = cluster.topic(1, extend="true"), []
    most, longer = {"a": "x" * 65498}, {"a": "x" * 65499}
    with (
        a_reader(cluster, topic, lambda m: got.append((m.body, m.headers))) as reader,
        a_writer(cluster) as writer,
    ):
        subscribed(reader, 1)
        with pytest.raises(OptionError, match="65506"):
            writer.publish(topic, b"longer", headers=longer, partition=0)
        writer.publish(topic, b"most", headers=most, partition=0)
        writer.publish(topic, b"after", partition=0)
        wait_for(lambda: len(got) >= 2)
    assert dict(got) == {b"most": most, b"after": None}
