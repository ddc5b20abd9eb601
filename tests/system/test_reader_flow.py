"""A Reader's RDY, pauses and backoff, and the I/O that its handlers must not delay."""

from __future__ import annotations

import ctypes
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gnsq_lite import BackoffOptions, Message, Reader, Requeue, TLSOptions, errors
from tests.certs import Certificates
from tests.conftest import MakeBroker
from tests.native import is_patched, native_held_lock, start_native_thread
from tests.programs import wait_for
from tests.proxy import Proxy
from tests.servers import ServerHandle
from tests.system.clients import POOLS, QUICK, channel, reader_on

# -- HB-1: nothing a handler does holds up a heartbeat


def computes(seconds: float) -> None:
    """Hold the GIL as a computation does: it is given up only between two instructions.  Uses no CPU time."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        ctypes.PyDLL(None).usleep(5000)


def blocks_in_c(seconds: float) -> None:
    """Wait in C without the GIL; gevent does not know that this thread waits."""
    ctypes.CDLL(None).usleep(int(seconds * 1e6))


@pytest.mark.rule("HB-1")
@pytest.mark.rule("CONN-2")
@pytest.mark.parametrize("block", [computes, blocks_in_c])
def test_a_handler_that_blocks_for_three_heartbeats_loses_no_connection(
    make_broker: MakeBroker, topic: str, block: Callable[[float], None]
) -> None:
    broker = make_broker()
    broker.publish(topic, b"1")
    pool = "thread" if is_patched() else "auto"
    options: dict[str, Any] = {"handler_pool": pool, "heartbeat_interval": 1.0, "max_in_flight": 2, "concurrency": 1}
    lost: list[Any] = []
    with reader_on(broker, topic, lambda m: block(3.1), on_disconnected=lambda *a: lost.append(a), **options) as reader:
        wait_for(lambda: reader.stats().finished == 1)
        assert lost == []
        assert (reader.stats().reconnects, reader.stats().late_answers) == (0, 0)


def silent_nsqd() -> Iterator[str]:
    """Do the handshake as nsqd, then send nothing, as a host that lost its power."""
    import gevent.monkey

    native = gevent.monkey.get_original("socket", "socket")
    listener = native()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    kept: list[Any] = []

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            kept.append(client)
            client.recv(65536)
            client.sendall(b"\0\0\0\x06\0\0\0\0OK")  # to IDENTIFY
            client.recv(65536)
            client.sendall(b"\0\0\0\x06\0\0\0\0OK")  # to SUB

    start_native_thread("silent nsqd", serve)
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    for client in kept:
        client.close()


@pytest.mark.rule("HB-2")
def test_a_silent_connection_is_replaced() -> None:
    lost: list[errors.NSQError] = []
    for address in silent_nsqd():
        options: dict[str, Any] = {"heartbeat_interval": 1.0, "on_disconnected": lambda _, error: lost.append(error)}
        with Reader("t", "ch", print, nsqd_tcp_addresses=address, **options, **QUICK) as reader:
            wait_for(lambda: reader.stats().connections)
            began = time.monotonic()
            wait_for(lambda: lost, timeout=20.0)
            assert time.monotonic() - began > 1.5
            assert isinstance(lost[0], errors.HeartbeatTimeout)
            assert address in str(lost[0])
            wait_for(lambda: reader.stats().connections)


# -- RDY, pause, resume


@pytest.mark.rule("RDY-8")
def test_pause_and_resume_and_max_in_flight_zero(broker: ServerHandle, topic: str) -> None:
    seen: list[bytes] = []
    with reader_on(broker, topic, lambda m: seen.append(m.body), max_in_flight=10, delivery="bulk") as reader:
        wait_for(lambda: reader.stats().share == 10)
        reader.pause()
        assert reader.stats().state == "paused"
        wait_for(lambda: channel(broker, topic)["clients"][0]["ready_count"] == 0)
        broker.publish(topic, b"while paused")
        time.sleep(0.2)
        assert seen == []
        reader.resume()
        wait_for(lambda: seen == [b"while paused"])
        reader.set_max_in_flight(0)
        wait_for(lambda: channel(broker, topic)["clients"][0]["ready_count"] == 0)
        reader.set_max_in_flight(3)
        wait_for(lambda: channel(broker, topic)["clients"][0]["ready_count"] == 3)
        with pytest.raises(errors.OptionError):
            reader.set_max_in_flight(-1)


@pytest.mark.rule("RDY-5")
def test_rdy_never_exceeds_max_rdy_count(make_broker: MakeBroker, topic: str) -> None:
    broker = make_broker(max_rdy_count=7)
    with reader_on(broker, topic, print, max_in_flight=100) as reader:
        wait_for(lambda: reader.stats().share == 7)
        time.sleep(0.1)
        assert reader.stats().reconnects == 0


@pytest.mark.rule("RDY-3")
@pytest.mark.rule("RDY-4")
def test_max_in_flight_is_shared_by_the_connections(make_broker: MakeBroker, topic: str) -> None:
    brokers = [make_broker() for _ in range(3)]
    with Reader(
        topic, "ch", print, nsqd_tcp_addresses=[b.tcp_address for b in brokers], max_in_flight=30, **QUICK
    ) as reader:
        wait_for(lambda: [c.share for c in reader.stats().connections] == [10, 10, 10])


@pytest.mark.rule("RDY-7")
def test_is_starved_at_85_percent_of_rdy(broker: ServerHandle, topic: str) -> None:
    kept: list[Message] = []

    def handler(message: Message) -> None:
        message.enable_async()
        kept.append(message)

    with reader_on(broker, topic, handler, max_in_flight=10) as reader:
        wait_for(lambda: reader.stats().share == 10)
        assert not reader.is_starved()
        broker.publish(topic, *[b"x"] * 8)
        wait_for(lambda: len(kept) == 8)
        assert not reader.is_starved()
        broker.publish(topic, b"x")
        wait_for(lambda: len(kept) == 9)
        assert reader.is_starved()
        for message in kept:
            message.finish()


# -- backoff


@pytest.mark.rule("BACK-1")
@pytest.mark.rule("BACK-2")
@pytest.mark.rule("BACK-4")
def test_a_failure_pauses_all_connections_then_probes_then_resumes(broker: ServerHandle, topic: str) -> None:
    broker.prepare(topic, "ch")
    pauses: list[float] = []
    seen: list[float] = []

    def handler(message: Message) -> None:
        seen.append(time.monotonic())
        if len(seen) == 1:
            raise ValueError("once")

    options: dict[str, Any] = {
        "backoff": BackoffOptions(unit=0.5, longest=2.0),
        "max_in_flight": 5,
        "requeue_delay": 0.0,
        "on_backoff": pauses.append,
        "handler_pool": "inline",
    }
    with reader_on(broker, topic, handler, **options) as reader:
        wait_for(lambda: reader.stats().share == 5)
        broker.publish(topic, b"x")
        wait_for(lambda: pauses)
        broker.publish(topic, *[b"y"] * 10)
        wait_for(lambda: reader.stats().finished == 11)
        wait_for(lambda: reader.stats().share == 5)
        assert reader.stats().backoff_level == 0
    assert seen[1] - seen[0] >= 0.45
    assert pauses[0] > 0
    assert pauses[-1] == 0.0


@pytest.mark.rule("BACK-1")
@pytest.mark.parametrize("pool", POOLS)
def test_with_a_failure_ratio_one_failure_in_twenty_starts_no_backoff_and_a_failing_half_does(
    broker: ServerHandle, topic: str, pool: str
) -> None:
    broker.prepare(topic, "ch")
    pauses: list[float] = []

    def handler(message: Message) -> None:
        if message.attempts == 1 and message.body == b"bad":
            raise ValueError("once")

    options: dict[str, Any] = {
        "backoff": BackoffOptions(failure_ratio=0.4, unit=0.05, longest=0.1),
        "max_in_flight": 50,
        "requeue_delay": 0.0,
        "on_backoff": pauses.append,
        "handler_pool": pool,
        "concurrency": 1,
    }
    with reader_on(broker, topic, handler, **options) as reader:
        broker.publish(topic, *([b"good"] * 19 + [b"bad"]) * 25)
        wait_for(lambda: reader.stats().finished == 500)
        assert (reader.stats().failures, pauses) == (25, [])
        broker.publish(topic, *[b"bad"] * 20)
        wait_for(lambda: reader.stats().finished == 520)
        wait_for(lambda: reader.stats().state == "connected")
    assert pauses[0] > 0
    assert pauses[-1] == 0


@pytest.mark.rule("BACK-2")
def test_probes_prefer_the_nsqd_that_delivered_last(make_broker: MakeBroker, topic: str) -> None:
    brokers = [make_broker() for _ in range(5)]
    for each in brokers:
        each.prepare(topic, "ch")
    failed = 0

    def handler(message: Message) -> None:
        nonlocal failed
        if message.body == b"bad" and message.attempts == 1:
            failed += 1
            raise ValueError

    addresses = [each.tcp_address for each in brokers]
    more: dict[str, Any] = {"backoff": BackoffOptions(unit=0.1), "requeue_delay": 0.0, **QUICK}
    with Reader(topic, "ch", handler, nsqd_tcp_addresses=addresses, max_in_flight=50, **more) as reader:
        wait_for(lambda: reader.stats().share == 50)
        brokers[2].publish(topic, *([b"good"] * 5 + [b"bad"] + [b"good"] * 5) * 10)
        # 1 s.  A probe of another nsqd waits 10 s for the first message: without the preference, 80 s in all.
        wait_for(lambda: reader.stats().finished == 110, 25.0)
        assert failed == 10


@pytest.mark.rule("BACK-5")
def test_backoff_can_be_turned_off(broker: ServerHandle, topic: str) -> None:
    broker.publish(topic, b"1", b"2", b"3")

    def handler(message: Message) -> None:
        raise ValueError

    with reader_on(broker, topic, handler, backoff=False, max_in_flight=1) as reader:
        wait_for(lambda: reader.stats().failures == 3)
        assert reader.stats().state == "connected"


# -- handlers in threads


@pytest.mark.rule("MSG-1")
@pytest.mark.rule("CONN-2")
@pytest.mark.parametrize("max_in_flight", [1, 200])
def test_handlers_in_threads_answer_each_message_once_however_they_answer(
    broker: ServerHandle, topic: str, max_in_flight: int
) -> None:
    numbers = range(1, 5001)
    handled, later = Counter[bytes](), list[Message]()

    def handler(message: Message) -> None:
        number = int(message.body)
        if number % 1000 == 0:
            time.sleep(0.03)
        elif number % 1001 == 0 and message.attempts == 1:
            raise Requeue(delay=0.0, backoff=False)
        elif number % 1002 == 0 and max_in_flight > 1:
            message.enable_async()
            later.append(message)
        elif later:
            later.pop().finish()
        elif number % 1003 == 0:
            message.touch()
        handled[message.body] += 1

    bodies = b"\n".join(b"%d" % number for number in numbers)
    with reader_on(broker, topic, handler, handler_pool="thread", max_in_flight=max_in_flight) as reader:
        assert broker.http("POST", f"/mpub?topic={topic}", bodies).body == b"OK"
        wait_for(lambda: sum(handled.values()) == len(numbers), 60.0)  # 5,000 messages, one by one
        while later:
            later.pop().finish()
        wait_for(lambda: reader.stats().finished == len(numbers))
        assert set(handled.values()) == {1}
        assert (reader.stats().in_flight, reader.stats().requeued) == (0, 5000 // 1001)
    assert (channel(broker, topic)["in_flight_count"], broker.stats(topic)["depth"]) == (0, 0)


class StopsReading:
    """A tap of the proxy that stops reading from the client when ``stopped`` is set."""

    def __init__(self) -> None:
        self.stopped = False
        self._ended = native_held_lock()

    def up(self, data: bytes) -> None:
        if self.stopped:
            self._ended.acquire(True, 30.0)

    def down(self, data: bytes) -> None: ...

    def passed(self, count: int) -> None: ...


@pytest.mark.rule("HB-1")
def test_heartbeats_of_other_nsqds_are_answered_while_one_stops_reading_and_tls_handlers_run_in_threads(
    make_broker: MakeBroker, certs: Certificates, topic: str
) -> None:
    tls: dict[str, Any] = {"tls_cert": certs.server.cert, "tls_key": certs.server.key}
    stuck, other = make_broker(**tls), make_broker(**tls)
    tap, ends, touches = StopsReading(), time.monotonic() + 3.5, list[int]()

    def handler(message: Message) -> None:
        if message.body != b"touch":
            return
        tap.stopped = True
        while time.monotonic() < ends:
            for _ in range(20000):  # far more than the buffers of both sockets hold
                message.touch()
            touches.append(20000)
            time.sleep(0.2)

    lost = list[str]()
    with Proxy(stuck.tcp_address) as proxy:
        proxy.tap = lambda: tap
        reader = Reader(
            topic,
            "ch",
            handler,
            nsqd_tcp_addresses=[proxy.address, other.tcp_address],
            tls=TLSOptions(ca_file=certs.ca),
            handler_pool="thread",
            concurrency=4,
            max_in_flight=20,
            heartbeat_interval=1.0,
            on_disconnected=lambda address, error: lost.append(address),
        )
        with reader:
            wait_for(lambda: len(reader.stats().connections) == 2)
            stuck.publish(topic, *[b"touch"] * 2)
            wait_for(lambda: tap.stopped)
            while time.monotonic() < ends:
                finished = reader.stats().finished
                other.publish(topic, b"x")
                wait_for(lambda: reader.stats().finished == finished + 1)  # noqa: B023 - called at once
                time.sleep(0.1)
            assert other.tcp_address not in lost
            assert sum(touches) >= 40_000
            reader.close(0.0)
