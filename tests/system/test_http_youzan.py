"""The HTTP clients with a cluster of Youzan's NSQ: the embedded cluster, and a real cluster."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from gnsq_lite import errors
from gnsq_lite.http import LookupdClient, Node, NsqdClient
from gnsq_lite.net.depths import Place
from gnsq_lite.options import format_address
from gnsq_lite.worker import Handler
from gnsq_lite.worker.depths import depths_of
from gnsq_lite.youzan.lookup import parse_lookupds
from tests.fakes import FakeClock
from tests.youzan_broker import YouzanBroker

#: A real cluster refuses changes while it is "unstable", which can last for its check interval of 60 s.
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(params=["embedded", pytest.param("real", marks=pytest.mark.youzan)])
def lookupd(request: pytest.FixtureRequest) -> Iterator[LookupdClient]:
    if request.param == "real":
        with LookupdClient(request.getfixturevalue("youzan_lookupd"), http_timeout=30.0) as client:
            yield client
        return
    with YouzanBroker(nsqds=2) as broker, LookupdClient(broker.lookupd_http_address) as client:
        yield client


@pytest.fixture
def real(youzan_lookupd: str) -> Iterator[LookupdClient]:
    """Return a client of the real cluster, for endpoints that the embedded cluster does not have."""
    with LookupdClient(youzan_lookupd, http_timeout=30.0) as client:
        yield client


def until(condition: Callable[[], Any], seconds: float = 300.0) -> Any:
    limit = time.monotonic() + seconds
    while True:
        try:
            if result := condition():
                return result
        except errors.HTTPStatusError:  # "the cluster is unstable"
            pass
        assert time.monotonic() < limit, "it did not happen in time"
        time.sleep(0.1)


def make(
    lookupd: LookupdClient, partitions: int = 2, replicator: int = 1, **options: Any
) -> tuple[str, dict[int, Node]]:
    """Make a topic; return its name and its leaders."""
    name = f"http{uuid.uuid4().hex[:12]}"

    def leaders() -> Any:
        # A repeated request changes no topic, but makes the cluster elect the leaders that it sometimes forgets.
        lookupd.create_topic(name, partition_num=partitions, replicator=replicator, **options)
        for _ in range(10):
            found = lookupd.lookup(name, access="w", metainfo=True)
            if len(found.partitions) == partitions:
                return found.partitions
            time.sleep(0.1)
        return None

    return name, dict(until(leaders))


def at(node: Node) -> NsqdClient:
    return NsqdClient(format_address(node.http_address), http_timeout=30.0)


@pytest.mark.rule("YZ-2")
def test_lookup_returns_the_partitions_and_the_configuration_of_a_topic(lookupd: LookupdClient) -> None:
    name, leaders = make(lookupd)
    assert sorted(leaders) == [0, 1]
    found = lookupd.lookup(name, access="w", metainfo=True)
    assert found.meta is not None
    assert (found.meta.partition_num, found.meta.replica, found.meta.ordered) == (2, 1, False)
    one = lookupd.lookup(name, access="r", partition=1)
    assert list(one.partitions) == [1]
    assert one.meta is None
    assert leaders[0].distributed_id
    assert name in lookupd.topics()
    assert name in {meta.topic_name for meta in lookupd.topics_meta()}
    assert {name: (0,)} == {t: p for n in lookupd.nodes() for t, p in n.partitions.items() if t == name and 0 in p}


@pytest.mark.rule("YZ-1")
def test_the_nsqlookupds_of_the_cluster_are_listed(lookupd: LookupdClient) -> None:
    leader, *_ = parse_lookupds(lookupd.get("/listlookup").json())
    assert f"http://{format_address(leader)}" == lookupd.url
    assert lookupd.info().ha_support is True


@pytest.mark.rule("DISC-5")
def test_a_topic_that_does_not_exist_is_an_empty_result_to_readers_and_writers(lookupd: LookupdClient) -> None:
    for access in ("r", "w"):
        result = lookupd.lookup("no_such_topic", access=access, metainfo=True)  # type: ignore[arg-type]
        assert (result.producers, result.partitions) == ((), {})


def test_a_message_goes_to_its_partition_and_is_counted_there(lookupd: LookupdClient) -> None:
    name, leaders = make(lookupd)
    for number, node in leaders.items():
        with at(node) as nsqd:
            assert nsqd.ping() == "OK"
            assert nsqd.info().ha_support is True
            nsqd.create_channel(name, "c", partition=number)
            for _ in range(number + 1):
                nsqd.publish(name, b"x", partition=number)
            stats = nsqd.stats(name, partition=number, leader_only=True)
            (topic,) = [topic for topic in stats.topics if topic.topic_partition == number]
            assert (topic.message_count, topic.is_leader, topic.is_ext) == (number + 1, True, False)
            until(lambda: nsqd.stats(name).channel(name, "c").depth > 0)  # type: ignore[union-attr]
            nsqd.post("/channel/setoffset", {"topic": name, "channel": "c", "partition": number}, b"special:-1")
            nsqd.delete_channel(name, "c", partition=number)
    with at(leaders[0]) as nsqd, pytest.raises(errors.HTTPStatusError) as caught:
        nsqd.publish("no_such_topic", b"x")
    assert "E_TOPIC_NOT_EXIST" in caught.value.text


def looked_at(lookupd: LookupdClient, topic: str, nsqds: Iterable[str]) -> dict[Place, int]:
    """Return the depths that the live page has after a round."""
    worker: Any = SimpleNamespace(
        handlers=[Handler(topic, "c", print)], defaults={"lookupd_http_addresses": lookupd.url}
    )
    started: list[Callable[[], None]] = []
    look = depths_of(worker, start_thread=lambda name, run: started.append(run), clock=FakeClock())
    connections = tuple(SimpleNamespace(address=address) for address in nsqds)
    stats: Any = SimpleNamespace(topic=topic, channel="c", connections=connections)
    look([stats])
    started[0]()
    return look([stats])


def test_the_live_page_adds_the_depths_of_the_partitions_that_an_nsqd_leads(lookupd: LookupdClient) -> None:
    # Two real nodes have no room for so many partitions and replicas of a plain topic.
    name, leaders = make(lookupd, 3, replicator=2, multi_part=True)
    waiting: dict[str, int] = {}
    for number, node in leaders.items():
        with at(node) as nsqd:
            until(lambda nsqd=nsqd, number=number: nsqd.create_channel(name, "c", partition=number) is None)
            for _ in range(number + 1):
                until(lambda nsqd=nsqd, number=number: nsqd.publish(name, b"x", partition=number) is None)
        address = format_address(node.tcp_address)
        waiting[address] = waiting.get(address, 0) + number + 1
    assert len(waiting) == 2, "one of the two nodes leads two partitions"
    expected = {(address, name, "c"): depth for address, depth in waiting.items()}
    until(lambda: looked_at(lookupd, name, waiting) == expected, 60.0)


@pytest.mark.rule("YZ-12")
def test_a_leader_can_be_moved(lookupd: LookupdClient) -> None:
    name, leaders = make(lookupd, 1)
    source = leaders[0].distributed_id or ""
    target = next(n for n in lookupd.nodes() if n.tcp_port != leaders[0].tcp_port)
    to = until(lambda: _distributed_id(lookupd, target))
    move = {"topic": name, "partition": 0, "move_from": source, "move_to": to, "move_leader": True}
    until(lambda: lookupd.post("/topic/partition/move", move))
    until(lambda: target.tcp_port in {node.tcp_port for node in lookupd.lookup(name, access="w").partitions.values()})
    with pytest.raises(errors.HTTPStatusError):
        lookupd.post("/topic/partition/move", {**move, "topic": "no_such_topic"})


def _distributed_id(lookupd: LookupdClient, node: Node) -> str | None:
    """Return the distributed_id of *node*, which only /lookup returns: make topics until the node leads one."""
    _, leaders = make(lookupd)
    return next((found.distributed_id for found in leaders.values() if found.tcp_port == node.tcp_port), None)


# -- endpoints of the real cluster only --------------------------------------------------------------------------------


@pytest.mark.youzan
def test_a_traced_message_can_be_read_back_and_finished(real: LookupdClient) -> None:
    name, leaders = make(real, 1)
    with at(leaders[0]) as nsqd:
        nsqd.create_channel(name, "c", partition=0)
        trace = nsqd.post("/pubtrace", {"topic": name, "trace_id": 123, "partition": 0}, b"traced").json()
        by_id = {"topic": name, "search_mode": "id", "search_pos": trace["id"]}
        message = until(lambda: nsqd.get("/message/get", by_id).json())
        assert (message["id"], message["trace_id"], message["body"]) == (trace["id"], 123, "traced")
        first = {"topic": name, "search_mode": "count", "search_pos": 1, "partition": 0}
        assert nsqd.get("/message/get", first).json()["body"] == "traced"
        nsqd.multipublish(name, [b"a", b"b"], partition=0)
        assert until(lambda: nsqd.stats(name).topics[0].message_count == 3)


@pytest.mark.youzan
def test_a_channel_is_paused_skipped_and_emptied(real: LookupdClient) -> None:
    name, leaders = make(real, 1)
    here: dict[str, Any] = {"partition": 0}
    with at(leaders[0]) as nsqd:
        nsqd.create_channel(name, "c", **here)
        nsqd.publish(name, b"x", **here)
        nsqd.pause_channel(name, "c", **here)
        nsqd.unpause_channel(name, "c", **here)
        nsqd.post("/channel/skip", {"topic": name, "channel": "c", **here})
        assert nsqd.stats(name).channel(name, "c").skipped is True  # type: ignore[union-attr]
        nsqd.empty_channel(name, "c", **here)
        nsqd.delete_channel(name, "c", **here)


@pytest.mark.youzan
def test_a_topic_can_grow_and_be_deleted(real: LookupdClient) -> None:
    name, _ = make(real, 1)
    try:
        real.post("/topic/partition/expand", {"topic": name, "partition_num": 2})
    except errors.HTTPStatusError as refusal:
        if refusal.text != "the cluster is unstable":  # the cluster may be unstable for minutes
            raise
    else:
        until(lambda: real.lookup(name, metainfo=True).meta.partition_num == 2)  # type: ignore[union-attr]
    until(lambda: real.delete_topic(name) is None)
    until(lambda: name not in real.topics())
    registered, _ = make(real, 1, disable_channel_auto_create=True)
    real.create_channel(registered, "c")
    until(lambda: real.channels(registered) == ("c",))
    real.delete_channel(registered, "c")
