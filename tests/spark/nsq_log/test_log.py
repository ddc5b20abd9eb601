"""A topic of Youzan's NSQ read as a log: plans, replays, retention, leaders that go; no Spark session."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from gnsq_lite import Reader, Writer
from gnsq_lite.errors import HTTPError, NSQError, OptionError
from gnsq_lite.http import NsqdClient
from gnsq_lite.recording.errors import DataLoss, RecordingError
from gnsq_lite.spark.nsq_log.cluster import Extent, Leader, LogUnavailable, Mark
from gnsq_lite.spark.nsq_log.options import LogOptions
from gnsq_lite.spark.nsq_log.plan import Range, as_offset, batch_ends, parse_places, ranges, resolved
from gnsq_lite.spark.nsq_log.source import NsqLogBatchReader, NsqLogStreamReader
from gnsq_lite.spark.nsq_log.task import MOST_WAITING, RangeTask
from gnsq_lite.spark.options import parse
from tests.programs import wait_for
from tests.spark.nsq_log.fake_logs import FakeLogs, options
from tests.youzan_broker import YouzanBroker

#: Bytes that a body of 10 takes in the embedded broker's log.
SIZE = 40


@pytest.mark.parametrize(
    ("given", "places"),
    [
        ({}, {0: 100, 1: 50}),
        ({"startingOffsets": "earliest"}, {0: 20, 1: 20}),
        ({"startingOffsets": "Latest"}, {0: 100, 1: 50}),
        ({"startingOffsets": '{"t": {"0": 70, "1": -1}}'}, {0: 70, 1: 50}),
        ({"startingOffsets": '{"t": {"0": 71}}'}, {0: 80, 1: 20}),
        ({"startingOffsets": '{"t": {"0": 3, "1": 99}}'}, {0: 3, 1: 99}),
        ({"startingTimestamp": "3500"}, {0: 40, 1: 40}),
        ({"startingTimestamp": "4000"}, {0: 40, 1: 40}),
        ({"startingTimestamp": "0"}, {0: 20, 1: 20}),
        ({"startingTimestamp": "7000"}, {0: 70, 1: 50}),
    ],
)
def test_starting_offsets_mean_places(given: dict[str, str], places: dict[int, int]) -> None:
    logs = FakeLogs(p0=10, p1=5)
    logs.begin = 20
    assert resolved(options(**given).starting(batch=False), logs.extents(), logs) == places


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("startingOffsets", "newest"),
        ("startingOffsets", '{"other": {"0": 1}}'),
        ("startingOffsets", '{"t": {"0": -3}}'),
        ("startingOffsets", '{"t": {"x": 1}}'),
        ("startingOffsets", '{"t": {"0": true}}'),
        ("endingOffsets", "earliest"),
        ("endingOffsets", '{"t": {"0": -2}}'),
        ("maxTriggerDelay", "soon"),
        ("maxTriggerDelay", "0s"),
        ("partition", "999"),
        ("channel", "a#ephemeral"),
        ("recording", "/tmp/x"),
        ("nsqdTCPAddresses", "127.0.0.1:4150"),
    ],
)
def test_a_bad_option_is_refused_at_load(name: str, text: str) -> None:
    with pytest.raises(OptionError, match=name):
        options(**{"partitions" if name == "partition" else name: text})


def test_topic_and_lookupds_are_required() -> None:
    for lacking in ("topic", "lookupdHTTPAddresses"):
        with pytest.raises(OptionError, match=lacking):
            options(**{lacking: ""})


def test_the_earliest_is_what_nsqd_finds_and_not_what_its_files_hold() -> None:
    class Forgetful(FakeLogs):
        def at(self, partition: int, place: int) -> Mark | None:
            return super().at(partition, max(place, 70))

    logs = Forgetful(p0=10, p1=0)
    logs.begin = 20
    extents = {0: logs.extents()[0], 1: Extent(0, 0, 0)}
    assert resolved(options().starting(batch=True), extents, logs) == {0: 70, 1: 0}


def test_limits_are_shared_out_by_what_waits_and_end_between_messages() -> None:
    logs = FakeLogs(p0=90, p1=10, p2=5)
    ends = {0: 900, 1: 100, 2: 50}
    assert batch_ends({0: 0, 1: 0, 2: 50}, ends, 10, logs) == {0: 90, 1: 10, 2: 50}
    assert batch_ends({0: 0, 1: 0, 2: 50}, ends, 1, logs) == {0: 10, 1: 10, 2: 50}
    assert batch_ends({0: 0, 1: 0, 2: 0}, ends, 1000, logs) == ends


def test_an_offset_is_as_kafkas_and_another_topics_is_refused() -> None:
    assert json.dumps(as_offset("t", {10: 1, 2: 3})) == '{"t": {"2": 3, "10": 1}}'
    assert parse_places({"t": {"2": 3, "10": 1}}, "t") == {2: 3, 10: 1}
    for raw in ({"u": {"0": 1}}, {"t": {"0": 1}, "u": {}}, {"v": 1, "seg": 3}):
        with pytest.raises(RecordingError):
            parse_places(raw, "t")
    assert ranges({0: 5, 1: 7}, {0: 9, 1: 7, 2: 4}) == [Range(0, 5, 9), Range(2, 0, 4)]


# -- a task, without a network ----------------------------------------------------------------------------------------


class Held:
    """A message of a log."""

    headers = None
    internal_id = trace_id = 0

    def __init__(self, place: int, size: int = 10) -> None:
        self.queue_offset, self.raw_size, self.body = place, size, b"%d" % place
        self.id, self.timestamp_ns = b"\0" * 16, place


class FakeChannel:
    """Delivers what it was made with."""

    def __init__(self, places: list[int], lost: str = "gone") -> None:
        from collections import deque
        from threading import Event

        self.arrived = deque(Held(place) for place in places)
        self.fresh, self.lost, self.is_open = Event(), lost, False

    def open(self) -> None:
        self.is_open = True

    def resume_if_room(self) -> None:
        pass

    def close(self) -> None:
        self.is_open = False


class FakeCluster(FakeLogs):
    """Its clock goes on by a second a call."""

    now_ = 0.0
    node: Any = None

    def leader(self, partition: int) -> Leader:
        return Leader(self.node, ext=False, ordered=False, registered_only=False)

    def now(self) -> float:
        self.now_ += 1.0
        return self.now_


def task(cluster: FakeCluster, wanted: Range, *channels: list[int], **more: str) -> tuple[RangeTask, list[int]]:
    begins: list[int] = []
    left = [FakeChannel(places) for places in channels]

    def opened(options: Any, leader: Any, partition: int, begin: int, end: int) -> FakeChannel:
        begins.append(begin)
        return left.pop(0) if left else FakeChannel([])

    clock: Any = cluster
    logs: Any = cluster
    return RangeTask(options(**more), wanted, logs, opened, clock, lambda seconds: None), begins  # type: ignore[arg-type]


def places_of(one: RangeTask) -> list[int]:
    return [place for batch in one.rows() for place in batch.column("offset").to_pylist()]


@pytest.mark.rule("PIPE-3")
def test_a_range_is_complete_in_order_and_once_whatever_comes() -> None:
    cluster = FakeCluster(p0=10)
    one, begins = task(cluster, Range(0, 20, 80), [10, 30, 20, 20], [40, 60, 90, 40], [60, 50, 70, 80])
    assert places_of(one) == [20, 30, 40, 50, 60, 70]
    assert begins == [20, 40, 50]


def test_what_retention_removed_ends_the_query_or_is_gone_without() -> None:
    cluster = FakeCluster(p0=10)
    cluster.begin = 40
    one, _ = task(cluster, Range(0, 20, 80), [40, 50])
    with pytest.raises(DataLoss, match="begins at 40"):
        places_of(one)
    one, begins = task(cluster, Range(0, 20, 80), [40, 50], [40, 50, 60, 70], failOnDataLoss="false")
    assert places_of(one) == [40, 50, 60, 70]
    assert begins == [20, 40]


def test_a_gap_amid_the_log_is_told_of_only_where_nsqd_has_nothing_there() -> None:
    cluster = FakeCluster(p0=10)
    one, begins = task(cluster, Range(0, 20, 50), [20, 40], [30, 40])  # under way, or another's
    assert (places_of(one), begins) == ([20, 30, 40], [20, 30])

    class Holed(FakeCluster):
        def at(self, partition: int, place: int) -> Mark | None:
            return super().at(partition, 40 if place == 30 else place)

    one, _ = task(Holed(p0=10), Range(0, 20, 50), [20, 40])
    with pytest.raises(DataLoss, match="next message is at 40"):
        places_of(one)
    one, _ = task(Holed(p0=10), Range(0, 20, 50), [20, 40], [40], failOnDataLoss="false")
    assert places_of(one) == [20, 40]


def test_a_log_that_ends_too_early_is_waited_for_and_then_told_of() -> None:
    one, begins = task(FakeCluster(p0=4), Range(0, 20, 50), [20, 30])
    with pytest.raises(DataLoss, match="ends at 40, before 50"):
        places_of(one)
    assert len(begins) > 10  # 120 s of its clock
    one, _ = task(FakeCluster(p0=4), Range(0, 20, 50), [20, 30], failOnDataLoss="false")
    assert places_of(one) == [20, 30]


def test_a_message_that_does_not_come_is_no_loss() -> None:
    one, _ = task(FakeCluster(p0=10), Range(0, 20, 50), [20], pollTimeoutMs="3000")
    with pytest.raises(LogUnavailable, match=r"no message at 30 within 3 s .gone."):
        places_of(one)


# -- on the embedded cluster ------------------------------------------------------------------------------------------


@pytest.fixture
def cluster() -> Iterator[YouzanBroker]:
    with YouzanBroker(nsqds=2) as broker:
        yield broker


@pytest.fixture
def with_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have any PySpark pass for one whose streams can have limits: these tests ask for batches as it does."""
    monkeypatch.setattr("gnsq_lite.spark.nsq_log.source.supports_available_now", lambda: True)


def source(cluster: YouzanBroker, topic: str, **more: str) -> LogOptions:
    return parse(LogOptions, {"topic": topic, "lookupdHTTPAddresses": cluster.lookupd_http_address, **more})


def publish(cluster: YouzanBroker, topic: str, partition: int, first: int, count: int) -> None:
    with Writer(lookupd_http_addresses=cluster.lookupd_http_address, dialect="youzan") as writer:
        for at in range(first, first + count, 500):
            bodies = [b"%d:%08d" % (partition, n) for n in range(at, min(at + 500, first + count))]
            writer.multipublish(topic, bodies, partition=partition)


def rows(reader: Any, partitions: Any) -> list[list[dict[str, Any]]]:
    return [[row for batch in reader.read(p) for row in batch.to_pylist()] for p in partitions]


def bodies(found: list[list[dict[str, Any]]]) -> list[list[bytes]]:
    return [[bytes(row["body"]) for row in task] for task in found]


def wanted(partition: int, count: int, first: int = 0) -> list[bytes]:
    return [b"%d:%08d" % (partition, n) for n in range(first, first + count)]


@pytest.mark.rule("PIPE-3")
@pytest.mark.parametrize("kind", [{}, {"ordered": True}, {"ext": True}], ids=["plain", "ordered", "ext"])
def test_what_was_published_before_anybody_read_is_read_twice_alike(
    cluster: YouzanBroker, kind: dict[str, bool]
) -> None:
    count = 200 if kind.get("ordered") else 6000  # an ordered one gives out a message at a time
    cluster.youzan.create_topic("clicks", 2, **kind)
    for partition in (0, 1):
        publish(cluster, "clicks", partition, 0, count)
    found = []
    for _ in range(2):
        reader = NsqLogBatchReader(source(cluster, "clicks"))
        found.append(rows(reader, reader.partitions()))
    assert found[0] == found[1]
    assert bodies(found[0]) == [wanted(0, count), wanted(1, count)]
    wait_for(lambda: not cluster.youzan._cluster.topics["clicks"].channels())


@pytest.mark.parametrize("breaks", ["post", "start"])
def test_a_channel_that_is_never_subscribed_to_is_deleted(
    cluster: YouzanBroker, monkeypatch: pytest.MonkeyPatch, breaks: str
) -> None:
    """nsqd ends an ephemeral channel with its last consumer; one that never had any would keep the log for good."""
    cluster.youzan.create_topic("clicks", 1)
    publish(cluster, "clicks", 0, 0, 10)
    owner: Any = {"post": NsqdClient, "start": Reader}[breaks]
    works, failures = getattr(owner, breaks), [1, 2]

    def broken(*args: Any, **more: Any) -> None:
        if not failures or (breaks == "post" and args[1] != "/channel/setoffset"):
            works(*args, **more)
        elif failures.pop() and breaks != "start":
            raise HTTPError("http://n", "it broke")

    monkeypatch.setattr(owner, breaks, broken)
    monkeypatch.setattr("gnsq_lite.spark.nsq_log.task.STALLED", 0.1)
    reader = NsqLogBatchReader(source(cluster, "clicks"))
    assert bodies(rows(reader, reader.partitions())) == [wanted(0, 10)]
    assert not failures
    wait_for(lambda: not cluster.youzan._cluster.topics["clicks"].channels())


def streamed(reader: NsqLogStreamReader, offset: dict[str, Any], batches: int) -> tuple[list[Any], dict[str, Any]]:
    """Run micro-batches as Spark does."""
    found = []
    for _ in range(batches):
        end = reader.latestOffset(offset, None)
        if end == offset:
            break
        found.append((offset, end, rows(reader, reader.partitions(offset, end))))
        offset = end
    return found, offset


@pytest.mark.rule("PIPE-3")
@pytest.mark.parametrize("name", ["maxOffsetsPerTrigger", "minOffsetsPerTrigger"])
def test_a_limit_is_refused_by_its_name_where_no_batch_begin_is_told(
    name: str, cluster: YouzanBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gnsq_lite.spark.nsq_log.source.supports_available_now", lambda: False)
    with pytest.raises(OptionError, match=f"^{name}=10: this PySpark does not"):
        NsqLogStreamReader(source(cluster, "clicks", **{name: "10"}))


@pytest.mark.usefixtures("with_limits")
def test_a_stream_keeps_its_limits_goes_on_and_replays(cluster: YouzanBroker) -> None:
    cluster.youzan.create_topic("clicks", 2)
    publish(cluster, "clicks", 0, 0, 300)
    publish(cluster, "clicks", 1, 0, 100)
    reader = NsqLogStreamReader(source(cluster, "clicks", startingOffsets="earliest", maxOffsetsPerTrigger="40"))
    found, offset = streamed(reader, reader.initialOffset(), 100)
    assert [[len(task) for task in tasks] for _, _, tasks in found] == [[30, 10]] * 10
    assert offset == {"clicks": {"0": 300 * SIZE, "1": 100 * SIZE}} == reader.reportLatestOffset()
    publish(cluster, "clicks", 1, 100, 5)
    again = NsqLogStreamReader(source(cluster, "clicks", startingOffsets="earliest"))
    more, _ = streamed(again, offset, 3)
    assert [bodies(tasks) for _, _, tasks in more] == [[wanted(1, 5, 100)]]
    for start, end, tasks in found:
        assert rows(again, again.partitions(start, end)) == tasks


@pytest.mark.parametrize("starting", ["latest", "earliest"])
def test_a_new_query_starts_before_the_end_that_pyspark_requested_first(cluster: YouzanBroker, starting: str) -> None:
    """Before 4.2, PySpark calls latestOffset() of a new query first, and messages may arrive before initialOffset()."""
    cluster.youzan.create_topic("first", 1)
    publish(cluster, "first", 0, 0, 5)
    reader = NsqLogStreamReader(source(cluster, "first", startingOffsets=starting))
    end = reader.latestOffset()
    publish(cluster, "first", 0, 5, 5)
    start = reader.initialOffset()
    expected = [] if starting == "latest" else wanted(0, 5)
    assert [body for part in bodies(rows(reader, reader.partitions(start, end))) for body in part] == expected
    later = reader.latestOffset()
    assert [body for part in bodies(rows(reader, reader.partitions(end, later))) for body in part] == wanted(0, 5, 5)
    assert reader.initialOffset() == start


@pytest.mark.usefixtures("with_limits")
def test_available_now_ends_where_the_logs_ended_when_it_began(cluster: YouzanBroker) -> None:
    cluster.youzan.create_topic("clicks", 1)
    publish(cluster, "clicks", 0, 0, 50)
    reader = NsqLogStreamReader(source(cluster, "clicks", startingOffsets="earliest", maxOffsetsPerTrigger="20"))
    offset = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    publish(cluster, "clicks", 0, 50, 50)
    found, _ = streamed(reader, offset, 100)
    assert [bodies(tasks)[0] for _, _, tasks in found] == [wanted(0, 20), wanted(0, 20, 20), wanted(0, 10, 40)]


@pytest.mark.usefixtures("with_limits")
def test_a_run_for_some_partitions_keeps_where_the_others_are(
    cluster: YouzanBroker, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.youzan.create_topic("clicks", 2)
    for partition in (0, 1):
        publish(cluster, "clicks", partition, 0, 10)
    whole = NsqLogStreamReader(source(cluster, "clicks", startingOffsets="earliest"))
    _, offset = streamed(whole, whole.initialOffset(), 2)
    publish(cluster, "clicks", 0, 10, 5)
    for now in (True, False):
        reader = NsqLogStreamReader(source(cluster, "clicks", partitions="0"))
        if now:
            reader.prepareForTriggerAvailableNow()
        assert reader.latestOffset(offset, None) == {"clicks": {"0": 15 * SIZE, "1": 10 * SIZE}}
    assert "no leader" not in caplog.text


@pytest.mark.usefixtures("with_limits")
def test_a_batch_waits_for_min_offsets_no_longer_than_max_trigger_delay(cluster: YouzanBroker) -> None:
    cluster.youzan.create_topic("clicks", 1)
    more = {"startingOffsets": "earliest", "minOffsetsPerTrigger": "10"}
    reader = NsqLogStreamReader(source(cluster, "clicks", maxTriggerDelay="1h", **more))
    offset = reader.initialOffset()
    publish(cluster, "clicks", 0, 0, 9)
    assert reader.latestOffset(offset, None) == offset
    publish(cluster, "clicks", 0, 9, 1)
    assert reader.latestOffset(offset, None) == {"clicks": {"0": 10 * SIZE}}
    impatient = NsqLogStreamReader(source(cluster, "clicks", maxTriggerDelay="50ms", **more))
    offset = {"clicks": {"0": 8 * SIZE}}
    assert impatient.latestOffset(offset, None) == offset
    wait_for(lambda: impatient.latestOffset(offset, None) == {"clicks": {"0": 10 * SIZE}})


def test_retention_that_was_faster_ends_the_query_or_is_told_of(cluster: YouzanBroker) -> None:
    cluster.youzan.create_topic("clicks", 1)
    publish(cluster, "clicks", 0, 0, 100)
    reader = NsqLogStreamReader(source(cluster, "clicks", startingOffsets="earliest"))
    begin = reader.initialOffset()
    end = reader.latestOffset(begin, None)
    planned = reader.partitions(begin, end)
    cluster.youzan.trim("clicks", 0, 30 * SIZE)
    with pytest.raises(DataLoss, match="begins at 1200"):
        reader.partitions(begin, end)
    with pytest.raises(DataLoss, match="begins at 1200"):
        rows(reader, planned)  # between the plan and the task
    lenient = NsqLogStreamReader(source(cluster, "clicks", failOnDataLoss="false"))
    for partitions in (planned, lenient.partitions(begin, end)):
        assert bodies(rows(lenient, partitions)) == [wanted(0, 70, 30)]
    batch = NsqLogBatchReader(source(cluster, "clicks"))
    assert bodies(rows(batch, batch.partitions())) == [wanted(0, 70, 30)]


def test_a_topic_made_anew_under_a_checkpoint_is_a_loss(cluster: YouzanBroker) -> None:
    cluster.youzan.create_topic("clicks", 1)
    publish(cluster, "clicks", 0, 0, 3)
    offset = {"clicks": {"0": 50 * SIZE}}
    reader = NsqLogStreamReader(source(cluster, "clicks"))
    with pytest.raises(DataLoss, match="created again"):
        reader.latestOffset(offset, None)
    with pytest.raises(DataLoss, match="created again"):  # PySpark before 4.2: first there where a batch begins
        reader.partitions(offset, reader.latestOffset())
    lenient = NsqLogStreamReader(source(cluster, "clicks", failOnDataLoss="false"))
    end = lenient.latestOffset(offset, None)
    assert (end, lenient.partitions(offset, end)) == ({"clicks": {"0": 3 * SIZE}}, [])


@pytest.mark.rule("YZ-12")
def test_a_leader_that_moves_or_dies_amid_a_task_costs_nothing(cluster: YouzanBroker) -> None:
    cluster.youzan.create_topic("clicks", 1, replicas=2)
    count = 3 * MOST_WAITING
    publish(cluster, "clicks", 0, 0, count)
    reader = NsqLogBatchReader(source(cluster, "clicks"))
    (partition,) = reader.partitions()
    seen: list[bytes] = []
    for number, batch in enumerate(reader.read(partition)):
        seen += batch.column("body").to_pylist()
        if number == 3:
            cluster.youzan.move_leader("clicks", 0, 1 - (cluster.youzan.leader("clicks", 0) or 0))
    assert seen == wanted(0, count)


def test_a_partition_without_a_leader_waits_in_a_stream_and_fails_a_batch(cluster: YouzanBroker) -> None:
    cluster.youzan.create_topic("clicks", 2)
    for partition in (0, 1):
        publish(cluster, "clicks", partition, 0, 10)
    reader = NsqLogStreamReader(source(cluster, "clicks", startingOffsets="earliest"))
    offset = reader.initialOffset()
    cluster.nodes[cluster.youzan.leader("clicks", 1) or 0].kill()
    assert reader.latestOffset(offset, None) == {"clicks": {"0": 10 * SIZE, "1": 0}}
    batch = NsqLogBatchReader(source(cluster, "clicks", connectTimeoutMs="100"))
    with pytest.raises(LogUnavailable, match=r"partitions \[1\] of clicks have no leader"):
        batch.partitions()


def test_a_topic_that_only_takes_registered_channels_is_read_through_one(cluster: YouzanBroker) -> None:
    cluster.youzan.create_topic("clicks", 1, disable_channel_auto_create=True)
    publish(cluster, "clicks", 0, 0, 100)
    reader = NsqLogBatchReader(source(cluster, "clicks", pollTimeoutMs="500"))
    with pytest.raises(NSQError, match="CHANNEL_NOT_FOUND"):
        rows(reader, reader.partitions())
    cluster.youzan.create_channel("clicks", "spark")
    for _ in range(2):
        assert bodies(rows(reader, reader.partitions())) == [wanted(0, 100)]


def test_a_topic_nobody_knows_is_told_of(cluster: YouzanBroker) -> None:
    for reader in (NsqLogBatchReader(source(cluster, "nobody", connectTimeoutMs="50")),):
        with pytest.raises(LogUnavailable, match="lists no topic nobody"):
            reader.partitions()
    reader = NsqLogBatchReader(source(cluster, "nobody", startingOffsets='{"nobody": {"7": 1}}'))
    cluster.youzan.create_topic("nobody", 2)
    with pytest.raises(OptionError, match=r"not partitions \[7\]"):
        reader.partitions()
