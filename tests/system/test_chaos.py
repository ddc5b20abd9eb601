"""Faults of the network: after each, the Reader consumes again within a time limit, and nothing is lost or leaks.

Duplicates may only be messages that were in flight at the fault: nsqd cannot know that they were handled.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gnsq_lite import Message, Reader, Writer, errors
from tests.conftest import MakeBroker
from tests.programs import wait_for
from tests.proxy import Proxy
from tests.servers import ServerHandle
from tests.system.conftest import living

QUICK: dict[str, Any] = {
    "reconnect_delay": 0.05,
    "max_reconnect_delay": 0.2,
    "handshake_timeout": 1.0,
    "heartbeat_interval": 1.0,
    "connect_timeout": 1.0,
}
IN_FLIGHT = 20

#: Seconds within which a Reader consumes again after the fault is over; one fault is noticed only by silence.
BOUND = 20.0
SILENCE = 2 * 1.0 + 1.0 + BOUND  # two heartbeat intervals, a tick, and the bound


@pytest.fixture
def proxied(make_broker: MakeBroker) -> Iterator[tuple[ServerHandle, Proxy]]:
    broker = make_broker(msg_timeout=2.0)
    with Proxy(broker.tcp_address) as proxy:
        yield broker, proxy


class Ledger:
    """What was handled, how often."""

    def __init__(self) -> None:
        self.seen: Counter[bytes] = Counter()

    def __call__(self, message: Message) -> None:
        self.seen[message.body] += 1

    def doubles(self) -> int:
        return sum(count - 1 for count in self.seen.values())


def reset(proxy: Proxy) -> None:
    proxy.reset()


def half_open(proxy: Proxy) -> None:
    proxy.half_open()


def black_hole(proxy: Proxy) -> None:
    proxy.holding = True


def cut_in_the_handshake(proxy: Proxy) -> None:
    proxy.cut_after = 10
    proxy.reset()


def cut_in_a_frame(proxy: Proxy) -> None:
    proxy.cut_after = 3000
    proxy.reset()


def refuse(proxy: Proxy) -> None:
    proxy.refusing = True
    proxy.reset()


def dribble(proxy: Proxy) -> None:
    proxy.chunk = 1


def delay(proxy: Proxy) -> None:
    proxy.delay = 0.2


FAULTS = [reset, half_open, black_hole, cut_in_the_handshake, cut_in_a_frame, refuse, dribble, delay]


@pytest.mark.rule("CONN-3")
@pytest.mark.rule("HB-2")
@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.__name__)
def test_after_a_fault_the_reader_consumes_again_and_nothing_is_lost(
    proxied: tuple[ServerHandle, Proxy], topic: str, fault: Callable[[Proxy], None]
) -> None:
    broker, proxy = proxied
    broker.prepare(topic, "ch")
    ledger, numbers = Ledger(), itertools.count()
    options: dict[str, Any] = {"max_in_flight": IN_FLIGHT, "max_attempts": 0, **QUICK}
    reader = Reader(topic, "ch", ledger, nsqd_tcp_addresses=proxy.address, **options)
    with Writer(broker.tcp_address) as writer, reader:
        wait_for(lambda: reader.stats().connections)
        publish(writer, topic, numbers, 100)
        wait_for(lambda: len(ledger.seen) == 100)
        greenlets = living()
        fault(proxy)
        publish(writer, topic, numbers, 100)
        time.sleep(0.5)
        proxy.clear()
        cleared = time.monotonic()
        publish(writer, topic, numbers, 100)
        wait_for(lambda: len(ledger.seen) == 300, timeout=SILENCE + 10)
        assert time.monotonic() - cleared < SILENCE  # msg_timeout of what was in flight is 2 s
        wait_for(lambda: reader.stats().in_flight == 0)
        wait_for(lambda: living() == greenlets)
        assert reader.stats().connections != ()
    lost = {b"%d" % n for n in range(300)} - set(ledger.seen)
    assert lost == set()
    assert ledger.doubles() <= IN_FLIGHT * 3


def publish(writer: Writer, topic: str, numbers: Iterator[int], count: int) -> None:
    writer.multipublish(topic, [b"%d" % next(numbers) for _ in range(count)])


@pytest.mark.rule("CONN-3")
def test_a_killed_nsqd_that_comes_back_is_read_again(make_broker: MakeBroker, topic: str) -> None:
    broker = make_broker(msg_timeout=2.0)
    broker.prepare(topic, "ch")
    ledger = Ledger()
    with Reader(topic, "ch", ledger, nsqd_tcp_addresses=broker.tcp_address, max_in_flight=IN_FLIGHT, **QUICK) as reader:
        broker.publish(topic, b"before")
        wait_for(lambda: ledger.seen[b"before"])
        wait_for(lambda: reader.stats().finished == 1)
        broker.kill()
        wait_for(lambda: reader.stats().connections == ())
        broker.restart()
        broker.publish(topic, b"after")
        restarted = time.monotonic()
        wait_for(lambda: ledger.seen[b"after"], timeout=BOUND)
        assert time.monotonic() - restarted < BOUND


@pytest.mark.rule("PUB-2")
@pytest.mark.parametrize("fault", [reset, half_open, cut_in_the_handshake, refuse], ids=lambda f: f.__name__)
def test_a_writer_publishes_again_after_a_fault_and_each_outcome_is_true(
    proxied: tuple[ServerHandle, Proxy], topic: str, fault: Callable[[Proxy], None]
) -> None:
    broker, proxy = proxied
    sure = unsure = 0
    with Writer(proxy.address, publish_timeout=1.0, **QUICK) as writer:
        writer.publish(topic, b"first")
        sure += 1
        pending = [writer.publish_nowait(topic, b"%d" % n) for n in range(200)]
        fault(proxy)
        for publication in pending:
            try:
                publication.result()
                sure += 1
            except errors.OutcomeUnknown:
                unsure += 1
            except errors.NotSent:
                pass
        proxy.clear()
        cleared = time.monotonic()
        while True:
            try:
                writer.publish(topic, b"again")
                break
            except errors.OutcomeUnknown:
                unsure += 1
            except errors.NotSent:
                pass
            assert time.monotonic() - cleared < SILENCE + BOUND
        sure += 1
    depth = int(broker.stats(topic)["depth"])
    assert sure <= depth <= sure + unsure  # an OK is in nsqd; "not sent" is not; unknown may be
