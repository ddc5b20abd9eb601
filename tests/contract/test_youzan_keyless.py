"""Publishes without a key: their partitions, and publish_nowait() without a wait for the result."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from gnsq_lite import Writer
from gnsq_lite.errors import NSQError
from tests.contract.youzan_clients import Cluster, a_writer
from tests.programs import wait_for
from tests.youzan_broker import YouzanBroker


@pytest.mark.rule("YZ-4")
def test_publishes_without_a_key_go_to_the_partitions_in_turn() -> None:
    with YouzanBroker(nsqds=2) as broker:
        broker.youzan.create_topic("t", 2)
        with a_writer(Cluster(broker.lookupd_http_address, broker)) as writer:
            for number in (0, 1):
                writer.publish("t", b"connected", partition=number)
            for _ in range(20):
                writer.publish("t", b"x")
        assert [len(broker.youzan.bodies("t", number)) for number in (0, 1)] == [11, 11]


@pytest.mark.rule("YZ-8")
@pytest.mark.rule("PUB-2")
def test_what_is_published_in_the_background_is_retried_until_its_deadline_and_then_told_of() -> None:
    told: list[tuple[str, Any]] = []
    with YouzanBroker(nsqds=2) as broker:
        broker.youzan.create_topic("t", 2)
        where: dict[str, Any] = {"lookupd_http_addresses": broker.lookupd_http_address, "dialect": "youzan"}
        with Writer(retries=100, **where) as writer:
            writer.publish("t", b"before", partition=0)
            for number in (0, 1):
                broker.youzan.set_writable("t", number, False)

            def tell(name: str) -> Any:
                def keep(publication: Any) -> None:
                    try:
                        told.append((name, publication.result()))
                    except NSQError as error:
                        told.append((name, error))

                return keep

            late = writer.publish_nowait("t", b"late", timeout=60.0)
            late.add_done_callback(tell("late"))
            writer.publish_nowait("t", b"never", timeout=1.0, partition=1).add_done_callback(tell("never"))
            wait_for(lambda: told)
            assert told[0][0] == "never"
            assert isinstance(told[0][1], NSQError)
            assert not late.done()
            broker.youzan.set_writable("t", 0, True)
            wait_for(lambda: len(told) == 2)
            assert told[1] == ("late", None)
        assert broker.youzan.bodies("t", 0) == [b"before", b"late"]
        assert broker.youzan.bodies("t", 1) == []


@pytest.mark.rule("PUB-2")
def test_callbacks_are_called_from_wherever_publishes_are_made() -> None:
    told: list[bytes] = []
    with YouzanBroker(nsqds=2) as broker:
        broker.youzan.create_topic("t", 2)
        with a_writer(Cluster(broker.lookupd_http_address, broker)) as writer:

            def publish(number: int) -> None:
                for at in range(50):
                    body = b"%d:%d" % (number, at)
                    publication = writer.publish_nowait("t", body)
                    publication.add_done_callback(lambda _, body=body: told.append(body))
                    if at % 10 == 9:
                        time.sleep(0)

            threads = [threading.Thread(target=publish, args=(number,)) for number in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            wait_for(lambda: len(told) == 200)
    assert len(set(told)) == 200
