"""Dead letters of a topic: each letter is read once, and the read ends by itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

from gnsq_lite import Writer
from gnsq_lite.broker import Broker
from gnsq_lite.errors import ConnectError
from gnsq_lite.net.io_thread import io_loop
from gnsq_lite.net.os_threads import is_patched
from gnsq_lite.worker.dead import DeadLetter, Topic
from tests.programs import wait_for


@pytest.fixture
def broker() -> Iterator[Broker]:
    """Start an nsqd that allows 10 messages in flight on each connection."""
    with Broker(max_rdy_count=10, lookupds=0) as running:
        yield running


def publish_letters(broker: Broker, count: int) -> None:
    """Publish *count* letters to the topic "dead"."""
    fields: dict[str, Any] = {"channel": "c", "timestamp_ns": 17, "attempts": 3, "nsqd_address": "127.0.0.1:1"}
    letters = [DeadLetter(topic="orders", body=b"%d" % n, id=b"%016d" % n, **fields).to_json() for n in range(count)]
    with Writer(broker.nsqd_tcp_address) as writer:
        writer.multipublish("dead", letters)


def store(broker: Broker, *more: str, **options: Any) -> Topic:
    """Return the store of the letters."""
    addresses = [broker.nsqd_tcp_address, *more]
    return Topic("dead", no_writer, reader={"nsqd_tcp_addresses": addresses, **options})


def no_writer() -> Writer:
    raise AssertionError("letters are read without a Writer")


def counts(broker: Broker) -> tuple[int, int]:
    """Return how many letters wait in the channel, and how many are in flight."""
    (topic,) = (topic for topic in broker.node.stats()["topics"] if topic["topic_name"] == "dead")
    (channel,) = topic["channels"]
    return channel["depth"], channel["in_flight_count"]


def test_letters_beyond_the_limit_of_a_connection_are_all_read_and_all_stay(broker: Broker) -> None:
    publish_letters(broker, 95)
    for _ in range(2):
        assert sorted(int(letter.body) for letter in store(broker).letters()) == list(range(95))
        assert counts(broker) == (95, 0)


def test_removed_letters_are_finished_and_the_others_stay(broker: Broker) -> None:
    publish_letters(broker, 40)
    opened = store(broker)
    for letter in opened.letters():
        if int(letter.body) % 2:
            opened.remove(letter)
    assert sorted(int(letter.body) for letter in store(broker).letters()) == list(range(0, 40, 2))


@pytest.mark.skipif(is_patched(), reason="a monkey-patched process has no other thread for I/O")
def test_a_removed_letter_is_finished_before_the_next_is_published(broker: Broker) -> None:
    publish_letters(broker, 3)
    opened, is_blocked, is_free = store(broker), threading.Event(), threading.Event()
    read = opened.letters()
    letter = next(read)
    wait_for(lambda: counts(broker) == (0, 3))
    io_loop().call_soon(lambda: (is_blocked.set(), is_free.wait(30)))
    assert is_blocked.wait(30)
    try:
        opened.remove(letter)  # the I/O thread does nothing now, and the caller would publish the next letter
        wait_for(lambda: counts(broker) == (0, 2))
    finally:
        is_free.set()
    assert len(list(read)) == 2


def test_a_reader_slower_than_msg_timeout_gets_each_letter_once(broker: Broker) -> None:
    publish_letters(broker, 8)
    opened, seen = store(broker, msg_timeout=1.0), []
    for letter in opened.letters():
        seen.append(int(letter.body))
        opened.remove(letter)
        time.sleep(0.3)
    assert sorted(seen) == list(range(8))
    assert counts(broker) == (0, 0)


def test_a_letter_published_after_the_start_is_not_read(broker: Broker) -> None:
    publish_letters(broker, 1)
    opened, seen = store(broker), 0
    with Writer(broker.nsqd_tcp_address) as writer:
        for letter in opened.letters():
            writer.publish("dead", letter.to_json())
            opened.remove(letter)
            seen += 1
    assert seen == 1
    assert counts(broker) == (1, 0)


def test_an_nsqd_that_is_gone_is_an_error_after_the_letters_of_the_others(broker: Broker) -> None:
    publish_letters(broker, 3)
    read = store(broker, "127.0.0.1:1", connect_timeout=0.5).letters()
    assert sorted(int(letter.body) for letter in islice(read, 3)) == [0, 1, 2]
    with pytest.raises(ConnectError, match=r"127\.0\.0\.1:1: no connection within 0.5 s, so its letters of dead were"):
        next(read)
    assert counts(broker) == (3, 0)
