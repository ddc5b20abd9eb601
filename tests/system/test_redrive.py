"""Dead letters are published again, each once, at a rate, and to the nsqd that delivered the message."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from gnsq_lite.broker import Broker
from gnsq_lite.worker.dead import Directory, Topic
from gnsq_lite.worker.redrive import Redrive
from gnsq_lite.writer import Writer
from tests.fakes import FakeClock
from tests.letters import letter


@pytest.fixture
def brokers() -> Iterator[list[Broker]]:
    """Start two nsqds."""
    with Broker(lookupds=0) as first, Broker(lookupds=0) as second:
        yield [first, second]


def published(broker: Broker, topic: str = "orders") -> int:
    """Return how many messages were published to a topic."""
    return sum(each["message_count"] for each in broker.node.stats()["topics"] if each["topic_name"] == topic)


@pytest.mark.parametrize("named", [[], [0], [1], [0, 1]], ids=["no flags", "first", "second", "both"])
def test_a_letter_goes_to_its_own_nsqd_unless_the_addresses_name_others_only(
    brokers: list[Broker], tmp_path: Path, named: list[int]
) -> None:
    store = Directory(tmp_path)
    own = [broker.nsqd_tcp_address for broker in brokers]
    for number in range(10):
        store.keep(letter(number, own[number % 2]))
    addresses = {"nsqd_tcp_addresses": [own[each] for each in named], "lookupd_http_addresses": None}
    with Redrive({}, addresses, report=print) as redrive:
        for each in store.letters():
            redrive.publish(store, each)
    assert redrive.published == {"orders": 10}
    assert store.count() == 0
    assert [published(broker) for broker in brokers] == {(0,): [10, 0], (1,): [0, 10]}.get(tuple(named), [5, 5])


def test_a_rate_is_the_rate_of_the_publishes_and_a_slow_publish_causes_no_burst(
    brokers: list[Broker], tmp_path: Path
) -> None:
    clock, store, times, waited = FakeClock(), Directory(tmp_path), list[float](), list[float]()

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        clock.advance(seconds)

    with Redrive({}, rate="30/m", report=print, clock=clock, sleep=sleep) as redrive:
        for number in range(20):
            store.keep(letter(number, brokers[0].nsqd_tcp_address))
        for number, each in enumerate(store.letters()):
            times.append(clock.now())
            clock.advance(7.0 if number == 10 else 0.5)  # the publish takes this time
            redrive.publish(store, each)
    gaps = [round(later - earlier, 6) for earlier, later in pairwise(times)]
    assert gaps == [2.0] * 10 + [7.0] + [2.0] * 8
    assert len(waited) == 19, "there is no wait after the slow publish"


def test_letters_that_wait_for_a_rate_longer_than_msg_timeout_are_published_once(brokers: list[Broker]) -> None:
    broker = brokers[0]
    address = broker.nsqd_tcp_address
    count, rate = 90, 30  # at 1 s, nsqd sends the waiting letters again three times
    with Writer(address) as writer:
        writer.multipublish("dead", [letter(number, address).to_json() for number in range(count)])
    store = Topic("dead", lambda: writer, reader={"nsqd_tcp_addresses": address, "msg_timeout": 1.0})
    with Redrive({}, own_topic="dead", rate=f"{rate}/s", report=print) as redrive:
        for each in store.letters():
            redrive.publish(store, each)
    assert redrive.published == {"orders": count}
    assert published(broker) == count


@pytest.mark.unpatched
def test_a_drop_beside_a_retry_loses_no_letter_and_doubles_none(brokers: list[Broker], tmp_path: Path) -> None:
    store, count = Directory(tmp_path), 500
    for number in range(count):
        store.keep(letter(number, brokers[0].nsqd_tcp_address))
    dropped = list[int]()

    def drop() -> None:
        other = Directory(tmp_path)
        for each in reversed(list(other.letters())):
            with other.claim(each) as is_stored:
                if is_stored:
                    other.remove(each)
                    dropped.append(int(each.body))
            time.sleep(0.0001)

    thread = threading.Thread(target=drop)
    with Redrive({}, report=print) as redrive:
        for number, each in enumerate(store.letters()):
            if number == 10:
                thread.start()
            redrive.publish(store, each)
    thread.join()
    assert redrive.published["orders"] == published(brokers[0]) == count - len(dropped) > 0
    assert dropped


def test_a_letter_that_another_command_removed_is_not_published(brokers: list[Broker], tmp_path: Path) -> None:
    store = Directory(tmp_path)
    store.keep(letter(1, brokers[0].nsqd_tcp_address))
    (stored,) = store.letters()
    store.remove(stored)
    with Redrive({}, report=print) as redrive:
        redrive.publish(store, stored)
    assert (redrive.published, published(brokers[0])) == ({}, 0)


def test_two_claims_of_one_process_wait_for_each_other(tmp_path: Path) -> None:
    stored, order = letter(1, "127.0.0.1:1"), list[str]()
    Directory(tmp_path).keep(stored)

    def claim(name: str) -> None:
        with Directory(tmp_path).claim(stored):
            order.append(f"{name} begins")
            time.sleep(0.1)
            order.append(f"{name} ends")

    threads = [threading.Thread(target=claim, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20.0)
    first, second = order[0][0], order[-1][0]
    assert order == [f"{first} begins", f"{first} ends", f"{second} begins", f"{second} ends"]
