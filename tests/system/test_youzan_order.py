"""The order of one partition's publishes while its leader moves and the answers of the old leader are late (YZ-5)."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from gnsq_lite import Publication, Writer
from tests.native import native_lock
from tests.programs import wait_for
from tests.proxy import Proxy
from tests.system.clients import QUICK
from tests.youzan_broker import YouzanBroker


class Answers:
    """A tap that delays what nsqd answers while ``hold()`` is in force."""

    def __init__(self) -> None:
        self._gate, self._seen = native_lock(), native_lock()
        self.sent = b""

    def up(self, data: bytes) -> None:
        with self._seen:
            self.sent += data

    def down(self, data: bytes) -> None:
        pass

    def passed(self, count: int) -> None:
        with self._gate:
            pass

    def hold(self) -> None:
        self._gate.acquire()

    def release(self) -> None:
        self._gate.release()


class Moving:
    """Topic "t" with partitions 0 and 1 on nodes 0 and 1 of three, and a proxy that can delay the answers of node 1."""

    def __init__(self, broker: YouzanBroker) -> None:
        self.broker, self.answers = broker, Answers()
        broker.youzan.create_topic("t", partitions=2, replicas=2)
        assert [broker.youzan.leader("t", number) for number in (0, 1)] == [0, 1]
        self.proxy = Proxy(broker.nsqd_tcp_addresses[1])
        self.proxy.tap = lambda: self.answers

    def writer(self) -> Writer:
        def through(host: str, port: int) -> tuple[str, int]:
            is_late = f"{host}:{port}" == self.broker.nsqd_tcp_addresses[1]
            return (host, int(self.proxy.address.rpartition(":")[2])) if is_late else (host, port)

        return Writer(
            lookupd_http_addresses=self.broker.lookupd_http_address,
            dialect="youzan",
            address_map=through,
            publish_timeout=20.0,
            **QUICK,
        )

    def move_both(self) -> None:
        """Move both partitions to node 2."""
        for number in (0, 1):
            self.broker.youzan.move_leader("t", number, 2)

    def publish_nowait(self, writer: Writer, *bodies: bytes) -> list[Publication]:
        """Publish to partition 1, and wait until node 1 is sent the first body; the others wait for its answer."""
        sent = [writer.publish_nowait("t", body, partition=1) for body in bodies]
        wait_for(lambda: self.answers.sent.endswith(bodies[0]))
        return sent

    def bodies(self) -> list[bytes]:
        return self.broker.youzan.bodies("t", 1)


@pytest.fixture
def moving() -> Iterator[Moving]:
    with YouzanBroker(nsqds=3) as broker:
        moving = Moving(broker)
        with moving.proxy:
            yield moving


@pytest.mark.rule("YZ-5")
@pytest.mark.parametrize("blocking", [False, True], ids=["nowait", "blocking"])
def test_a_publish_waits_until_the_old_leader_has_answered_the_earlier_ones(moving: Moving, blocking: bool) -> None:
    with moving.writer() as writer:
        thread = threading.Thread(target=lambda: writer.publish("t", b"2", partition=1))
        for number in (0, 1):
            writer.publish_nowait("t", b"first", partition=number).result()  # the loop is connected now
        moving.move_both()
        moving.answers.hold()
        try:
            sent = moving.publish_nowait(writer, b"0", b"1")
            writer.publish("t", b"second", partition=0)  # its refusal makes the Writer look up both leaders
            if blocking:
                thread.start()
            else:
                sent.append(writer.publish_nowait("t", b"2", partition=1))
            writer.publish("t", b"third", partition=0)
            assert not any(publication.done() for publication in sent)
            assert moving.bodies() == [b"first"]
        finally:
            moving.answers.release()
        for publication in sent:
            publication.result()
        if blocking:
            thread.join()
        writer.publish("t", b"3", partition=1)
    assert moving.bodies() == [b"first", b"0", b"1", b"2", b"3"]


@pytest.mark.rule("YZ-5")
def test_publishes_that_the_old_leader_refuses_late_keep_their_order(moving: Moving) -> None:
    bodies = [b"%d" % number for number in range(20)]
    with moving.writer() as writer:
        for number in (0, 1):
            writer.publish_nowait("t", b"first", partition=number).result()  # the loop is connected now
        moving.move_both()
        moving.answers.hold()
        try:
            sent = moving.publish_nowait(writer, *bodies)
            writer.publish("t", b"second", partition=0)
        finally:
            moving.answers.release()
        for publication in sent:
            publication.result()
    assert moving.bodies() == [b"first", *bodies]


@pytest.mark.rule("YZ-5")
@pytest.mark.rule("YZ-12")
def test_a_silent_old_leader_delays_the_partition_for_seconds_only(moving: Moving) -> None:
    """Its late refusal must not put an earlier publish behind a later one: the earlier one has failed by then."""
    with moving.writer() as writer:
        for number in (0, 1):
            writer.publish_nowait("t", b"first", partition=number).result()  # the loop is connected now
        moving.move_both()
        moving.answers.hold()
        try:
            early = moving.publish_nowait(writer, b"early")[0]
            writer.publish("t", b"second", partition=0)
            writer.publish("t", b"late", partition=1, timeout=10.0)
        finally:
            moving.answers.release()
        assert early.done()
        writer.publish("t", b"last", partition=1)
    assert moving.bodies() == [b"first", b"late", b"last"]


@pytest.mark.rule("PUB-2")
@pytest.mark.rule("YZ-8")
def test_a_publish_that_nsqd_took_behind_a_refused_one_is_not_sent_again(moving: Moving) -> None:
    """nsqd leaves the connection open after these refusals, and carries out what it reads next."""
    with moving.writer() as writer:
        writer.publish("t", b"first", partition=1)
        moving.broker.nodes[1].faults.answer("PUB", b"E_FAILED_ON_NOT_WRITABLE ", close=False)
        moving.answers.hold()
        try:
            # Three keys of partition 1, so that no publish waits for the one before.
            sent = [writer.publish_nowait("t", key, key=key) for key in (b"0", b"1", b"2")]
            wait_for(lambda: len(moving.bodies()) == 3)
        finally:
            moving.answers.release()
        for publication in sent:
            publication.result()
    assert sorted(moving.bodies()) == [b"0", b"1", b"2", b"first"]
