"""Threads of a process that is not monkey-patched publish to leaders by themselves; on the embedded cluster."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import Any

import pytest

from gnsq_lite import Writer, errors
from tests.programs import python
from tests.system.clients import QUICK
from tests.system.publishing_threads import Crowd, Ways
from tests.youzan_broker import YouzanBroker

#: Two leaders that the Writer knows; what is appended runs in there.
LED = """
import threading
from gnsq_lite import Writer
from tests.native import native_held_lock
from tests.youzan_broker import YouzanBroker
with YouzanBroker(nsqds=2) as broker:
    broker.youzan.create_topic("t", partitions=2)
    with Writer(lookupd_http_addresses=broker.lookupd_http_address, dialect="youzan") as writer:
        for partition in (0, 1):
            writer.publish("t", b"first", partition=partition)
"""

BLOCKED = (
    LED
    + """
        blocked = native_held_lock()
        writer._core.loop.call_soon(blocked.acquire)

        def publish(number):
            for count in range(5):
                writer.publish("t", b"x", key=b"%d" % number)
                writer.publish("t", b"x")
                writer.publish("t", b"x", partition=count % 2)
                assert writer.publish("t", b"x", trace_id=count + 1).trace_id == count + 1
                writer.multipublish("t", [b"x"] * 3)

        threads = [threading.Thread(target=publish, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        blocked.release()
        count = sum(len(broker.youzan.bodies("t", partition)) for partition in (0, 1))
        assert (count, writer.stats().published) == (72, 72), (count, writer.stats())
"""
)


@pytest.mark.program
@pytest.mark.rule("YZ-4")
@pytest.mark.rule("PUB-2")
def test_threads_publish_to_leaders_while_the_loop_is_blocked() -> None:
    done = python(BLOCKED)
    assert done.returncode == 0, done


class Keyed(Crowd):
    """Each thread has a key of its own; every third publish is waited for."""

    def _publish(self, number: int) -> None:
        count = 0
        while not self._stopped:
            bodies = [b"%d:%06d" % (number, count + each) for each in range(3)]
            count += 3
            key = b"%d" % number
            sent: list[Any] = [self._writer.publish_nowait(self._topic, body, key=key) for body in bodies[:2]]
            self._settle(number, bodies[2], partial(self._writer.publish, self._topic, bodies[2], key=key))
            for publication, body in zip(sent, bodies, strict=False):
                self._settle(number, body, publication.result)


def check(broker: YouzanBroker, crowd: Keyed) -> None:
    """Check that each published message is there once, and that messages of a key are in order, in one partition."""
    seen: list[bytes] = []
    of_key: dict[bytes, list[bytes]] = defaultdict(list)
    where: dict[bytes, set[int]] = defaultdict(set)
    for partition in (0, 1):
        for body in broker.youzan.bodies("t", partition):
            key = body.partition(b":")[0]
            seen.append(body)
            of_key[key].append(body)
            where[key].add(partition)
    assert {body for bodies in crowd.ok for body in bodies} - set(seen) == set()
    assert len(seen) == len(set(seen))
    assert all(bodies == sorted(bodies) for bodies in of_key.values())
    assert set(map(len, where.values())) == {1}
    assert {type(error) for _, error in crowd.failed} <= {errors.OutcomeUnknown}


@pytest.mark.rule("PUB-2")
@pytest.mark.rule("YZ-5")
def test_keyed_publishes_of_threads_are_neither_lost_nor_doubled_over_lost_connections() -> None:
    with YouzanBroker(nsqds=2) as broker:
        ways = Ways(broker)
        with ways.writer(publish_timeout=20.0) as writer:
            crowd = Keyed(writer, "t", 12)
            for _ in range(3):
                for proxy in ways.of_partition:
                    crowd.publishes(300)
                    proxy.reset()
            crowd.stop()
            stats = writer.stats()
        for proxy in ways.proxies.values():
            proxy.__exit__(None, None, None)
        assert (stats.published, stats.unknown, stats.failed) == (crowd.published(), len(crowd.failed), 0)
        check(broker, crowd)


@pytest.mark.rule("YZ-5")
@pytest.mark.rule("YZ-8")
def test_keyed_publishes_of_threads_keep_their_order_while_leaders_move() -> None:
    with YouzanBroker(nsqds=2) as broker:
        broker.youzan.create_topic("t", partitions=2, replicas=2)
        with Writer(
            lookupd_http_addresses=broker.lookupd_http_address, dialect="youzan", publish_timeout=20.0, **QUICK
        ) as writer:
            crowd = Keyed(writer, "t", 12)
            for turn in range(6):
                crowd.publishes(300)
                leader = broker.youzan.leader("t", turn % 2)
                broker.youzan.move_leader("t", turn % 2, 1 if leader == 0 else 0)
            crowd.publishes(300)
            crowd.stop()
        check(broker, crowd)
