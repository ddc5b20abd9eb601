"""close() while servers of a cluster fail: it waits for no response that cannot come."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.contract.youzan_clients import Cluster, a_reader, a_writer, subscribed
from tests.programs import wait_for
from tests.youzan_broker import YouzanBroker

pytestmark = pytest.mark.rule("CLOSE-1")

#: Seconds in which a Reader with nothing to wait for is closed, on a machine that is busy; its time limit is 30.
SOON = 10.0


@pytest.mark.rule("YZ-6")
@pytest.mark.parametrize("failover", [False, True])
def test_a_message_that_waits_for_its_delay_goes_back_when_the_reader_closes(failover: bool) -> None:
    with YouzanBroker(nsqds=2) as broker:
        broker.youzan.create_topic("t", 2, ordered=True)
        cluster, failed = Cluster(broker.lookupd_http_address, broker), []

        def handle(message: Any) -> None:
            failed.append(message.body)
            raise ValueError("always")

        with a_writer(cluster) as writer:
            reader = a_reader(cluster, "t", handle, ordered=True, requeue_delay=50.0)
            reader.start(block=False)
            subscribed(reader, 2)
            if failover:
                broker.youzan.move_leader("t", 0, 1 - (broker.youzan.leader("t", 0) or 0))
            for body in (b"first", b"second"):
                writer.publish("t", body, partition=0)
            wait_for(lambda: failed)
            began = time.monotonic()
            reader.close()
            assert time.monotonic() - began < SOON
        assert failed == [b"first"]
        assert broker.youzan.depth("t", 0, "c") == 2  # nsqd has both again


def test_closing_does_not_wait_for_a_leader_that_is_silent() -> None:
    with YouzanBroker(nsqds=2) as broker:
        broker.youzan.create_topic("t", 2)
        cluster, got = Cluster(broker.lookupd_http_address, broker), []
        with a_writer(cluster) as writer:
            reader = a_reader(cluster, "t", got.append)
            reader.start(block=False)
            subscribed(reader, 2)
            for number in range(2):
                writer.publish("t", b"x", partition=number)
            wait_for(lambda: len(got) == 2)
            broker.nodes[0].faults.go_silent()
            began = time.monotonic()
            reader.close()
            assert time.monotonic() - began < SOON
