"""The Reader against an embedded and a real nsqd."""

from __future__ import annotations

import functools
import gc
import logging
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from gnsq_lite import BackoffOptions, Message, Reader, Requeue, Worker, Writer, errors
from gnsq_lite.broker import Broker
from gnsq_lite.net.native import is_patched, start_native_thread
from tests.conftest import MakeBroker, MakeCluster
from tests.servers import ServerHandle

QUICK: dict[str, Any] = {"reconnect_delay": 0.05, "max_reconnect_delay": 0.2}
POOLS = ["greenlet", "thread", "inline"]


@pytest.fixture
def embedded() -> Iterator[Broker]:
    with Broker(lookupd=False) as broker:
        yield broker


def wait_for(condition: Callable[[], object], timeout: float = 40.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)


def reader_on(broker: ServerHandle, topic: str, handler: Callable[[Any], Any], **options: Any) -> Reader:
    return Reader(topic, "ch", handler, nsqd_tcp_addresses=broker.tcp_address, **{**QUICK, **options})


def channel(broker: ServerHandle, topic: str) -> dict[str, Any]:
    return broker.stats(topic, "ch")


# -- the main job


@pytest.mark.rule("MSG-1")
@pytest.mark.rule("CFG-5")
@pytest.mark.parametrize("pool", POOLS)
def test_a_handler_that_returns_finishes_its_message(broker: ServerHandle, topic: str, pool: str) -> None:
    broker.publish(topic, *[b"%d" % n for n in range(20)])
    seen: list[Message] = []
    with reader_on(broker, topic, seen.append, handler_pool=pool, max_in_flight=5) as reader:
        wait_for(lambda: reader.stats().finished == 20)
        stats = reader.stats()
        assert (stats.received, stats.in_flight, stats.requeued, stats.state) == (20, 0, 0, "connected")
    assert sorted(int(m.body) for m in seen) == list(range(20))
    first = seen[0]
    assert (first.topic, first.channel, first.attempts, len(first.id)) == (topic, "ch", 1, 16)
    assert first.nsqd_address == broker.tcp_address
    assert first.has_responded
    assert not first.timed_out
    assert abs(first.timestamp.timestamp() - time.time()) < 60
    wait_for(lambda: (channel(broker, topic)["depth"], channel(broker, topic)["in_flight_count"]) == (0, 0))


@pytest.mark.rule("CFG-1")
@pytest.mark.rule("CFG-6")
def test_it_works_with_no_tuning_and_several_topics_have_a_reader_each(broker: ServerHandle, topic: str) -> None:
    seen: list[bytes] = []
    broker.publish(topic + "a", b"a")
    broker.publish(topic + "b", b"b")
    address = broker.tcp_address
    one = Reader(topic + "a", "ch", lambda m: seen.append(m.body), nsqd_tcp_addresses=address)
    other = Reader(topic + "b", "ch", lambda m: seen.append(m.body), nsqd_tcp_addresses=[address])
    with one, other:
        wait_for(lambda: sorted(seen) == [b"a", b"b"])


@pytest.mark.rule("MSG-1")
@pytest.mark.parametrize("pool", POOLS)
def test_a_handler_that_raises_requeues_with_a_delay(
    broker: ServerHandle, topic: str, pool: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker.prepare(topic, "ch")
    seen: list[tuple[int, float]] = []

    def handler(message: Message) -> None:
        seen.append((message.attempts, time.monotonic()))
        if message.attempts == 1:
            raise ValueError("not today")

    broker.publish(topic, b"x")
    with reader_on(broker, topic, handler, handler_pool=pool, requeue_delay=0.3, backoff=False) as reader:
        wait_for(lambda: len(seen) == 2)
        wait_for(lambda: reader.stats().finished == 1)
        assert (reader.stats().requeued, reader.stats().failures) == (1, 1)
    assert [attempts for attempts, _ in seen] == [1, 2]
    assert seen[1][1] - seen[0][1] >= 0.28
    assert "not today" in caplog.text  # lessons: an exception is never swallowed


@pytest.mark.rule("MSG-2")
def test_the_handler_may_answer_by_itself_once(broker: ServerHandle, topic: str) -> None:
    broker.prepare(topic, "ch")
    broker.publish(topic, b"x")
    raised: list[errors.NSQError] = []
    done: list[int] = []

    def handler(message: Message) -> None:
        if message.attempts == 1:
            message.touch()
            message.requeue(0.0, backoff=False)
        else:
            message.finish()
        for again in (message.finish, message.requeue, message.touch, message.enable_async):
            try:
                again()
            except errors.AlreadyAnswered as error:
                raised.append(error)
        done.append(message.attempts)

    with reader_on(broker, topic, handler) as reader:
        wait_for(lambda: done == [1, 2])
        wait_for(lambda: reader.stats().finished == 1)
        assert (reader.stats().requeued, reader.stats().late_answers) == (1, 0)
    assert len(raised) == 8


@pytest.mark.rule("MSG-2")
@pytest.mark.parametrize("pool", POOLS)
def test_an_async_message_is_answered_later_from_elsewhere(broker: ServerHandle, topic: str, pool: str) -> None:
    broker.publish(topic, b"x")
    kept: list[Message] = []

    def handler(message: Message) -> None:
        message.enable_async()
        kept.append(message)

    with reader_on(broker, topic, handler, handler_pool=pool) as reader:
        wait_for(lambda: kept)
        time.sleep(0.05)
        assert reader.stats().in_flight == 1
        threading.Thread(target=kept[0].finish).start()
        wait_for(lambda: reader.stats().finished == 1)
        wait_for(lambda: channel(broker, topic)["in_flight_count"] == 0)
        with pytest.raises(errors.AlreadyAnswered):
            kept[0].finish()


@pytest.mark.rule("BACK-5")
def test_raising_requeue_sets_the_delay_and_starts_no_backoff(broker: ServerHandle, topic: str) -> None:
    broker.prepare(topic, "ch")
    broker.publish(topic, b"x")
    seen: list[int] = []

    def handler(message: Message) -> None:
        seen.append(message.attempts)
        if message.attempts < 3:
            raise Requeue(delay=0.0, backoff=False)

    with reader_on(broker, topic, handler) as reader:
        wait_for(lambda: seen == [1, 2, 3])
        assert reader.stats().failures == 0
        assert reader.stats().backoff_level == 0


@pytest.mark.rule("MSG-4")
def test_more_attempts_than_max_are_given_up_and_finished(
    broker: ServerHandle, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker.prepare(topic, "ch")
    broker.publish(topic, b"poison")
    seen: list[int] = []

    def handler(message: Message) -> None:
        seen.append(message.attempts)
        raise Requeue(0.0, backoff=False)

    with reader_on(broker, topic, handler, max_attempts=2) as reader:
        wait_for(lambda: reader.stats().given_up == 1)
        wait_for(lambda: reader.stats().finished == 1)
    assert seen == [1, 2]  # "more than": two handlers ran, the third delivery was given up
    assert "giving up" in caplog.text


@pytest.mark.rule("MSG-4")
def test_a_give_up_callback_that_fails_requeues_instead(broker: ServerHandle, topic: str) -> None:
    broker.prepare(topic, "ch")
    broker.publish(topic, b"poison")
    given: list[bytes] = []

    def give_up(message: Message) -> None:
        given.append(message.body)
        if len(given) == 1:
            raise OSError("disk full")

    def handler(message: Message) -> None:
        raise Requeue(0.0, backoff=False)

    options: dict[str, Any] = {"max_attempts": 1, "requeue_delay": 0.0, "on_give_up": give_up, "backoff": False}
    with reader_on(broker, topic, handler, **options) as reader:
        wait_for(lambda: reader.stats().given_up == 1)
        assert given == [b"poison", b"poison"]
        wait_for(lambda: reader.stats().finished == 1)


def test_max_attempts_zero_never_gives_up(broker: ServerHandle, topic: str) -> None:
    broker.prepare(topic, "ch")
    broker.publish(topic, b"x")
    seen: list[int] = []

    def handler(message: Message) -> None:
        seen.append(message.attempts)
        if message.attempts < 12:
            raise Requeue(0.0, backoff=False)

    with reader_on(broker, topic, handler, max_attempts=0):
        wait_for(lambda: len(seen) == 12)


@pytest.mark.rule("MSG-5")
@pytest.mark.rule("ERR-1")
def test_a_late_answer_is_counted_told_and_harmless(make_broker: MakeBroker, topic: str) -> None:
    broker = make_broker()
    broker.prepare(topic, "ch")
    broker.publish(topic, b"slow")
    told: list[errors.NSQError] = []
    late: list[Message] = []

    def handler(message: Message) -> None:
        if message.attempts == 1:
            message.enable_async()
            late.append(message)
        else:
            message.enable_async()

    with reader_on(broker, topic, handler, msg_timeout=1.0, max_in_flight=5, on_error=told.append) as reader:
        wait_for(lambda: late)
        wait_for(lambda: late[0].timed_out, timeout=3)
        wait_for(lambda: reader.stats().received == 2, timeout=5)
        wait_for(lambda: reader.stats().in_flight == 1)  # one message, counted once
        wait_for(lambda: reader.stats().expired >= 1 or reader.stats().in_flight == 0, timeout=5)
        wait_for(lambda: reader.stats().connections != ())
        wait_for(lambda: channel(broker, topic)["timeout_count"] >= 1)


@pytest.mark.rule("MSG-6")
def test_touch_extends_the_deadline_up_to_max_msg_timeout(make_broker: MakeBroker, topic: str) -> None:
    broker = make_broker(max_msg_timeout=3.0)
    broker.prepare(topic, "ch")
    broker.publish(topic, b"x")
    deadlines: list[float] = []

    def handler(message: Message) -> None:
        began = message.received_at
        deadlines.append(message.deadline - began)
        for _ in range(4):
            time.sleep(0.5)
            message.touch()
            deadlines.append(message.deadline - began)

    with reader_on(broker, topic, handler, msg_timeout=1.0) as reader:
        wait_for(lambda: reader.stats().finished == 1)
        assert reader.stats().late_answers == 0
    assert deadlines[0] == pytest.approx(1.0)
    assert 1.4 < deadlines[1] < 2.0
    assert deadlines[-1] == pytest.approx(3.0)  # the ceiling


@pytest.mark.rule("MSG-3")
def test_the_library_touches_nothing_by_itself(broker: ServerHandle, topic: str) -> None:
    broker.prepare(topic, "ch")
    broker.publish(topic, b"x")
    seen: list[int] = []

    def handler(message: Message) -> None:
        seen.append(message.attempts)
        if message.attempts == 1:
            time.sleep(1.6)

    with reader_on(broker, topic, handler, msg_timeout=1.0, max_in_flight=2, concurrency=2):
        wait_for(lambda: seen == [1, 2])
        assert channel(broker, topic)["timeout_count"] == 1


@pytest.mark.rule("CFG-4")
def test_the_defaults_are_the_documented_ones() -> None:
    settings = Reader("t", "c", print)._settings
    retry = settings.retry
    assert (settings.max_in_flight, retry.max_attempts) == (1, 5)
    assert (retry.requeue_delay, retry.requeue_growth, retry.max_requeue_delay) == (90.0, 1.0, 900.0)
    options: dict[str, Any] = {"requeue_delay": 1.0, "requeue_growth": 2.0, "max_requeue_delay": 4.0, "max_attempts": 0}
    retry = Reader("t", "c", print, max_in_flight=7, **options)._settings.retry
    assert (retry.requeue_delay, retry.requeue_growth, retry.max_requeue_delay, retry.max_attempts) == (1, 2, 4, 0)


# -- HB-1: nothing a handler does holds up a heartbeat


def busy(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        sum(range(1000))


def blocked_in_c(seconds: float) -> None:
    import ctypes  # CDLL lets go of the GIL while it waits; gevent knows nothing of it

    ctypes.CDLL(None).usleep(int(seconds * 1e6))


@pytest.mark.rule("HB-1")
@pytest.mark.rule("CONN-2")
@pytest.mark.parametrize("block", [time.sleep, busy, blocked_in_c], ids=["sleeps", "computes", "blocks-in-c"])
def test_a_handler_that_blocks_for_three_heartbeats_loses_no_connection(
    make_broker: MakeBroker, topic: str, block: Callable[[float], None]
) -> None:
    broker = make_broker()
    broker.publish(topic, b"1", b"2")
    pool = "thread" if is_patched() and block is not time.sleep else "auto"
    options: dict[str, Any] = {"handler_pool": pool, "heartbeat_interval": 1.0, "max_in_flight": 2, "concurrency": 1}
    lost: list[Any] = []
    with reader_on(broker, topic, lambda m: block(3.5), on_disconnected=lambda *a: lost.append(a), **options) as reader:
        time.sleep(4.0 if block is time.sleep or not is_patched() else 0)
        wait_for(lambda: reader.stats().finished == 2, timeout=30)
        assert lost == []
        assert (reader.stats().reconnects, reader.stats().late_answers) == (0, 0)


def silent_nsqd() -> Iterator[str]:
    """Shake hands like nsqd, then say nothing more; as a host whose power went."""
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
def test_an_nsqd_that_falls_silent_is_given_up_and_replaced() -> None:
    lost: list[errors.NSQError] = []
    for address in silent_nsqd():
        options: dict[str, Any] = {"heartbeat_interval": 1.0, "on_disconnected": lambda _, error: lost.append(error)}
        with Reader("t", "ch", print, nsqd_tcp_addresses=address, **options, **QUICK) as reader:
            wait_for(lambda: reader.stats().connections)
            began = time.monotonic()
            wait_for(lambda: lost, timeout=6)
            assert 1.5 < time.monotonic() - began < 5
            assert isinstance(lost[0], errors.HeartbeatTimeout)
            assert address in str(lost[0])
            wait_for(lambda: reader.stats().connections)


# -- RDY, pause, resume


@pytest.mark.rule("RDY-8")
def test_pause_and_resume_and_max_in_flight_zero(broker: ServerHandle, topic: str) -> None:
    seen: list[bytes] = []
    with reader_on(broker, topic, lambda m: seen.append(m.body), max_in_flight=10) as reader:
        wait_for(lambda: reader.stats().ready == 10)
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
def test_ready_never_passes_what_nsqd_allows(make_broker: MakeBroker, topic: str) -> None:
    broker = make_broker(max_rdy_count=7)
    with reader_on(broker, topic, print, max_in_flight=100) as reader:
        wait_for(lambda: reader.stats().ready == 7)
        time.sleep(0.1)
        assert reader.stats().reconnects == 0


@pytest.mark.rule("RDY-3")
@pytest.mark.rule("RDY-4")
def test_max_in_flight_is_shared_by_the_connections(make_broker: MakeBroker, topic: str) -> None:
    brokers = [make_broker() for _ in range(3)]
    with Reader(
        topic, "ch", print, nsqd_tcp_addresses=[b.tcp_address for b in brokers], max_in_flight=30, **QUICK
    ) as reader:
        wait_for(lambda: [c.ready for c in reader.stats().connections] == [10, 10, 10])


@pytest.mark.rule("RDY-7")
def test_is_starved_when_nearly_all_that_may_be_here_is_here(broker: ServerHandle, topic: str) -> None:
    kept: list[Message] = []

    def handler(message: Message) -> None:
        message.enable_async()
        kept.append(message)

    with reader_on(broker, topic, handler, max_in_flight=10) as reader:
        wait_for(lambda: reader.stats().ready == 10)
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
def test_a_failure_pauses_all_then_probes_then_goes_on(broker: ServerHandle, topic: str) -> None:
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
        wait_for(lambda: reader.stats().ready == 5)
        broker.publish(topic, b"x")
        wait_for(lambda: reader.stats().state == "backoff")
        assert reader.stats().ready == 0
        broker.publish(topic, *[b"y"] * 10)
        wait_for(lambda: reader.stats().finished == 11)
        wait_for(lambda: reader.stats().ready == 5)
        assert reader.stats().backoff_level == 0
    assert seen[1] - seen[0] >= 0.45
    assert pauses[0] > 0
    assert pauses[-1] == 0.0


@pytest.mark.rule("BACK-5")
def test_backoff_can_be_turned_off(broker: ServerHandle, topic: str) -> None:
    broker.publish(topic, b"1", b"2", b"3")

    def handler(message: Message) -> None:
        raise ValueError

    with reader_on(broker, topic, handler, backoff=False, max_in_flight=1) as reader:
        wait_for(lambda: reader.stats().failures == 3)
        assert reader.stats().state == "connected"


# -- connecting


@pytest.mark.rule("CONN-3")
def test_a_direct_nsqd_is_reconnected_after_a_restart(broker: ServerHandle, topic: str) -> None:
    seen: list[bytes] = []
    with reader_on(broker, topic, lambda m: seen.append(m.body)) as reader:
        broker.publish(topic, b"before")
        wait_for(lambda: seen == [b"before"])
        wait_for(lambda: channel(broker, topic)["in_flight_count"] == 0)  # nsqd has read the FIN
        broker.stop()
        broker.restart()
        broker.publish(topic, b"after")
        wait_for(lambda: seen == [b"before", b"after"])
        assert reader.stats().reconnects >= 1
        assert reader.stats().received == 2


@pytest.mark.rule("CFG-2")
@pytest.mark.rule("CONN-1")
def test_a_direct_nsqd_that_lookupd_lists_too_gets_one_connection(make_cluster: MakeCluster, topic: str) -> None:
    cluster = make_cluster()
    node = cluster.nodes[0]
    node.publish(topic, b"x")
    cluster.wait_registered(topic)
    seen: list[bytes] = []
    reader = Reader(
        topic,
        "ch",
        lambda m: seen.append(m.body),
        nsqd_tcp_addresses=node.tcp_address,
        lookupd_http_addresses=cluster.lookupd_http_address,
        lookupd_poll_interval=0.1,
        **QUICK,
    )
    with reader:
        wait_for(lambda: seen == [b"x"])
        time.sleep(0.5)
        assert len(reader.stats().connections) == 1
        assert len(channel(node, topic)["clients"]) == 1


@pytest.mark.rule("DISC-4")
@pytest.mark.rule("CONN-4")
def test_nsqds_are_found_through_lookupd_and_found_again_after_a_restart(make_cluster: MakeCluster, topic: str) -> None:
    cluster = make_cluster(nodes=2)
    seen: list[bytes] = []
    cluster.nodes[0].publish(topic, b"one")
    cluster.wait_registered(topic)
    with Reader(
        topic,
        "ch",
        lambda m: seen.append(m.body),
        lookupd_http_addresses=[cluster.lookupd_http_address],
        lookupd_poll_interval=0.2,
        max_in_flight=10,
        **QUICK,
    ) as reader:
        wait_for(lambda: seen == [b"one"])
        cluster.nodes[1].publish(topic, b"two")  # a new nsqd, without a restart of the Reader
        wait_for(lambda: sorted(seen) == [b"one", b"two"])
        wait_for(lambda: channel(cluster.nodes[1], topic)["in_flight_count"] == 0)  # nsqd has read the FIN
        cluster.nodes[1].stop()
        wait_for(lambda: len(reader.stats().connections) == 1)
        cluster.nodes[1].restart()
        cluster.nodes[1].publish(topic, b"three")
        wait_for(lambda: len(seen) == 3)
        assert seen[2] == b"three"
        assert next(iter(reader.stats().lookupds.values())).ok


@pytest.mark.rule("CONN-3")
def test_a_direct_nsqd_is_tried_again_with_lookupds_configured_too(make_cluster: MakeCluster, topic: str) -> None:
    # lessons: with lookupd configured, a lost direct nsqd was never tried again
    cluster = make_cluster(nodes=1)
    node, seen = cluster.nodes[0], []
    with Reader(
        topic,
        "ch",
        lambda m: seen.append(m.body),
        nsqd_tcp_addresses=node.tcp_address,
        lookupd_http_addresses=cluster.lookupd_http_address,
        lookupd_poll_interval=60.0,
        **QUICK,
    ) as reader:
        wait_for(lambda: reader.stats().connections)
        node.stop()
        wait_for(lambda: not reader.stats().connections)
        node.restart()
        node.publish(topic, b"x")
        wait_for(lambda: seen == [b"x"])


def test_a_closed_reader_cannot_be_entered_again(broker: ServerHandle, topic: str) -> None:
    reader = reader_on(broker, topic, print)
    with reader:
        with reader:  # it runs
            pass
        with pytest.raises(errors.ClosedError, match="make a new one"), reader:
            pass
    never = reader_on(broker, topic, print)
    never.close()
    with pytest.raises(errors.ClosedError), never:
        pass


def test_nothing_reconnects_after_close(broker: ServerHandle, topic: str) -> None:
    reader = reader_on(broker, topic, print)
    reader.start(block=False)
    wait_for(lambda: reader.stats().connections)
    reader.close()
    time.sleep(0.5)
    assert not channel(broker, topic).get("clients")
    assert reader.stats().state == "closed"


@pytest.mark.rule("DISC-5")
def test_an_unknown_topic_is_asked_for_again(make_cluster: MakeCluster, topic: str) -> None:
    cluster = make_cluster()
    seen: list[bytes] = []
    with Reader(
        topic,
        "ch",
        lambda m: seen.append(m.body),
        lookupd_http_addresses=cluster.lookupd_http_address,
        lookupd_poll_interval=0.1,
        **QUICK,
    ):
        time.sleep(0.3)
        cluster.nodes[0].publish(topic, b"now")
        wait_for(lambda: seen == [b"now"])


def test_an_address_map_leads_to_where_an_nsqd_is_in_truth(broker: ServerHandle, topic: str) -> None:
    broker.publish(topic, b"x")
    for address_map in (
        {"nsqd.inside.invalid:4150": broker.tcp_address},
        lambda host, port: (broker.host, broker.tcp_port),
    ):
        seen: list[bytes] = []
        with Reader(
            topic,
            f"ch{id(address_map)}",
            lambda m, seen=seen: seen.append(m.body),  # type: ignore[misc]
            nsqd_tcp_addresses="nsqd.inside.invalid:4150",
            address_map=address_map,
            **QUICK,
        ) as reader:
            wait_for(lambda: reader.stats().connections)


def test_a_refused_sub_does_not_connect_in_a_circle(embedded: Broker) -> None:
    lost: list[Any] = []
    embedded.faults.answer("SUB", b"E_SUB_FAILED too many", times=None)
    with Reader(
        "t",
        "ch",
        print,
        nsqd_tcp_addresses=embedded.nsqd_tcp_address,
        reconnect_delay=0.2,
        max_reconnect_delay=10.0,
        reconnect_jitter=0.0,
        on_disconnected=lambda address, error: lost.append(error),
    ):
        time.sleep(1.0)
    assert 1 <= len(lost) <= 3  # after 0, 0.2, 0.6 s: the delay grows, since SUB was never accepted
    assert isinstance(lost[0], errors.SubFailedError)


@pytest.mark.rule("ERR-2")
def test_a_fatal_error_frame_closes_the_connection_and_keeps_the_servers_text(embedded: Broker) -> None:
    lost: list[Any] = []
    with Reader(
        "t",
        "ch",
        print,
        nsqd_tcp_addresses=embedded.nsqd_tcp_address,
        on_error=lost.append,
        **QUICK,
    ) as reader:
        wait_for(lambda: reader.stats().connections)
        embedded.faults.send_frame(1, b"E_INVALID something went wrong")
        wait_for(lambda: lost)
        assert isinstance(lost[0], errors.InvalidError)
        assert "something went wrong" in str(lost[0])
        wait_for(lambda: reader.stats().connections)


def test_http_port_and_tls_refusal_end_a_reader_that_knows_nothing_else(broker: ServerHandle, topic: str) -> None:
    with pytest.raises(errors.ProtocolError, match="HTTP"):
        Reader(topic, "ch", print, nsqd_tcp_addresses=broker.http_address).start()
    with pytest.raises(errors.TLSNotGranted, match=broker.tcp_address):
        Reader(topic, "ch", print, nsqd_tcp_addresses=broker.tcp_address, tls=True).start()


def test_ipv6_and_host_names_work() -> None:
    if not socket.has_ipv6:
        return
    with Broker(host="::1", lookupd=False) as broker:
        port = broker.tcp_address[1]
        seen: list[bytes] = []
        with Reader("t", "ch", lambda m: seen.append(m.body), nsqd_tcp_addresses=f"[::1]:{port}") as reader:
            wait_for(lambda: reader.stats().connections)
            assert reader.stats().connections[0].address == f"[::1]:{port}"


# -- the end


@pytest.mark.rule("CLOSE-1")
@pytest.mark.parametrize("pool", ["greenlet", "thread"])
def test_close_waits_for_running_handlers_and_sends_back_the_rest(broker: ServerHandle, topic: str, pool: str) -> None:
    broker.publish(topic, *[b"%d" % n for n in range(10)])
    begun: list[bytes] = []

    def handler(message: Message) -> None:
        begun.append(message.body)
        pause(0.4)

    import gevent

    pause = gevent.sleep if pool == "greenlet" else time.sleep
    reader = reader_on(broker, topic, handler, handler_pool=pool, max_in_flight=10, concurrency=2)
    reader.start(block=False)
    wait_for(lambda: reader.stats().in_flight == 10 and len(begun) == 2)
    reader.close(timeout=5.0)
    stats = channel(broker, topic)
    assert len(begun) == 2  # no new handler began
    assert (stats["depth"], stats["in_flight_count"], stats["clients"]) == (8, 0, None) or (
        stats["depth"],
        stats["in_flight_count"],
        stats["clients"],
    ) == (8, 0, [])
    assert reader.join(1.0)


@pytest.mark.rule("CLOSE-1")
def test_close_gives_up_on_a_handler_that_never_ends_and_its_message_goes_back_at_once(
    broker: ServerHandle, topic: str
) -> None:
    broker.publish(topic, b"x")
    release = threading.Event()
    begun: list[Message] = []

    def handler(message: Message) -> None:
        begun.append(message)
        release.wait(20)

    reader = reader_on(broker, topic, handler)
    reader.start(block=False)
    wait_for(lambda: begun)
    began = time.monotonic()
    reader.close(timeout=0.3)
    assert time.monotonic() - began < 5
    wait_for(lambda: channel(broker, topic)["depth"] == 1, timeout=2)  # by REQ 0, not by the 60 s time-out
    assert begun[0].has_responded
    release.set()


def test_close_is_idempotent_and_allowed_before_start(broker: ServerHandle, topic: str) -> None:
    reader = reader_on(broker, topic, print)
    reader.close()
    with pytest.raises(errors.ClosedError):
        reader.start()
    reader = reader_on(broker, topic, print)
    reader.start(block=False)
    with pytest.raises(errors.ClosedError):
        reader.start()
    reader.close()
    reader.close()
    assert reader.join(1.0)


def test_start_blocks_until_close(broker: ServerHandle, topic: str) -> None:
    reader = reader_on(broker, topic, print)
    ended: list[float] = []

    def run() -> None:
        reader.start(block=True)
        ended.append(time.monotonic())

    running = threading.Thread(target=run)
    running.start()
    wait_for(lambda: reader._core is not None and reader.stats().connections)
    assert ended == []
    reader.close()
    running.join(5)
    assert len(ended) == 1


def test_a_reader_that_nobody_keeps_goes_on(broker: ServerHandle, topic: str) -> None:
    # lessons: a handler held by a weak reference was collected, and messages were finished with nobody reading them
    seen: list[bytes] = []

    class Collector:
        def handle(self, message: Message) -> None:
            seen.append(message.body)

    reader = reader_on(broker, topic, Collector().handle)
    reader.start(block=False)
    gc.collect()
    broker.publish(topic, b"x")
    wait_for(lambda: seen == [b"x"])
    reader.close()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_handler_that_asks_to_exit_ends_the_reader(
    broker: ServerHandle, topic: str, error: type[BaseException]
) -> None:
    broker.publish(topic, b"x")

    def handler(message: Message) -> None:
        raise error

    with pytest.raises(error):
        reader_on(broker, topic, handler).start()
    wait_for(lambda: channel(broker, topic)["in_flight_count"] == 0)


@pytest.mark.rule("CLOSE-1")
@pytest.mark.parametrize("pool", POOLS)
def test_a_handler_that_asks_to_exit_sends_back_at_once_what_nobody_has_handled(
    broker: ServerHandle, topic: str, pool: str
) -> None:
    def handler(message: Message) -> None:
        raise SystemExit(3)

    reader = reader_on(broker, topic, handler, handler_pool=pool, max_in_flight=20, backoff=False)
    reader.start(block=False)
    wait_for(lambda: [c.ready for c in reader.stats().connections] == [20])
    with Writer(broker.tcp_address) as writer:
        writer.multipublish(topic, [b"%d" % n for n in range(20)])
    with pytest.raises(SystemExit):
        reader.join(10)
    wait_for(lambda: channel(broker, topic)["in_flight_count"] == 0, 5.0)  # a time-out of nsqd's would be a minute
    found = channel(broker, topic)
    assert found["depth"] + found["deferred_count"] == 20


@pytest.mark.rule("CLOSE-1")
def test_of_many_who_start_a_reader_at_once_one_does_and_close_ends_it(broker: ServerHandle, topic: str) -> None:
    broker.publish(topic, b"x")  # the channel is there to be asked for
    for _ in range(10):
        reader = reader_on(broker, topic, print)
        refused: list[Exception] = []
        begin = threading.Barrier(4)

        def start(
            reader: Reader = reader, begin: threading.Barrier = begin, refused: list[Exception] = refused
        ) -> None:
            begin.wait(10)
            try:
                reader.start(block=False)
            except errors.ClosedError as error:
                refused.append(error)

        threads = [threading.Thread(target=start) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        reader.close()
        assert len(refused) == 3
    wait_for(lambda: channel(broker, topic).get("client_count", 0) == 0, 5.0)


# -- bad input


@pytest.mark.rule("CFG-1")
@pytest.mark.parametrize(
    "wrong",
    [
        {"max_in_flight": -1},
        {"max_in_flight": 1.5},
        {"max_in_flight": True},
        {"concurrency": 0},
        {"handler_pool": "process"},
        {"heartbeat_interval": -1},
        {"heartbeat_interval": 0},
        {"sample_rate": 100},
        {"msg_timeout": 0},
        {"output_buffer_size": 1},
        {"compression": "gzip"},
        {"max_attempts": -1},
        {"requeue_delay": -1},
        {"requeue_delay": 1000.0},
        {"batch_size": 0},
        {"batch_wait": 1.0},
        {"handler_pool": "inline", "concurrency": 2},
        {"lookupd_poll_interval": 0},
        {"max_inflight": 1},
        {"tls": "yes"},
        {"backoff": 3},
        {"dialect": "kafka"},
        {"ordered": True, "dialect": "nsq"},
        {"nsqd_tcp_addresses": "host:port"},
        {"lookupd_http_addresses": ["ftp://x"]},
        {"lookupd_http_addresses": 4161},
        {"lookupd_http_addresses": "http://"},
        {"on_give_up": "log"},
        {"on_error": "log"},
        {"address_map": "127.0.0.1"},
        {"allowed_addresses": ["127.0.0.1"]},
    ],
    ids=str,
)
def test_bad_options_fail_at_construction(wrong: dict[str, Any]) -> None:
    with pytest.raises(errors.OptionError) as caught:
        Reader("t", "ch", print, **wrong)
    assert caught.value.name in str(wrong)


async def awaited_by_nobody(*args: Any) -> None:
    raise AssertionError


def never_iterated(*args: Any) -> Iterator[None]:
    yield


async def neither(*args: Any) -> AsyncIterator[None]:
    yield


class AsyncCall:
    async def __call__(self, *args: Any) -> None:
        raise AssertionError


@pytest.mark.rule("MSG-1")
@pytest.mark.parametrize(
    "function",
    [awaited_by_nobody, never_iterated, neither, AsyncCall(), functools.partial(awaited_by_nobody, 1)],
    ids=["async def", "generator", "async generator", "async __call__", "partial"],
)
def test_a_function_that_would_run_nothing_when_called_is_refused(function: Any) -> None:
    # a Reader that called it would finish each message unhandled
    with pytest.raises(errors.OptionError, match=r"handler=.*(awaits|yield)"):
        Reader("t", "ch", function)
    for option in ("on_give_up", "on_error", "on_failure", "on_connected", "allowed_addresses", "address_map"):
        with pytest.raises(errors.OptionError, match=f"{option}=.*(awaits|yield)"):
            Reader("t", "ch", print, **{option: function})
    with pytest.raises(errors.OptionError, match=r"allowed_addresses=.*(awaits|yield)"):
        Writer(allowed_addresses=function)
    with pytest.raises(errors.OptionError, match=r"handler=.*(awaits|yield)"):
        Worker().handler("t", "ch")(function)
    with pytest.raises(errors.OptionError, match=r"on_give_up=.*(awaits|yield)"):
        Worker(on_give_up=function)


@pytest.mark.rule("MSG-1")
@pytest.mark.parametrize("batch_size", [None, 3])
@pytest.mark.parametrize("pool", POOLS)
def test_a_handler_that_returns_a_coroutine_has_failed(
    broker: ServerHandle, topic: str, pool: Any, batch_size: int | None
) -> None:
    failures: list[str] = []

    def handle(given: Any) -> Any:  # what an undecorated wrapper of an async def does
        return awaited_by_nobody(given)

    options: dict[str, Any] = {"handler_pool": pool, "batch_size": batch_size, "backoff": False, "requeue_delay": 60.0}
    with reader_on(broker, topic, handle, on_failure=lambda m, e: failures.append(str(e)), **options) as reader:
        broker.publish(topic, b"x")
        wait_for(lambda: failures)
        assert failures == ["the handler returned a coroutine, which nobody runs"]
        assert reader.stats().finished == 0


@pytest.mark.rule("MSG-4")
def test_a_message_is_kept_where_on_give_up_returns_a_coroutine(broker: ServerHandle, topic: str) -> None:
    failures: list[str] = []

    def fails(message: Message) -> None:
        raise ValueError("no")

    def give_up(message: Message) -> Any:
        return awaited_by_nobody(message)

    options: dict[str, Any] = {"max_attempts": 1, "requeue_delay": 0.0, "backoff": False, "on_give_up": give_up}
    with reader_on(broker, topic, fails, on_failure=lambda m, e: failures.append(str(e)), **options) as reader:
        broker.publish(topic, b"x")
        wait_for(lambda: "on_give_up returned a coroutine, which nobody runs" in failures)
        assert reader.stats().finished == reader.stats().given_up == 0


def test_bad_names_and_handlers_fail_at_construction() -> None:
    with pytest.raises(errors.InvalidName):
        Reader("t\n", "ch", print)
    with pytest.raises(errors.InvalidName):
        Reader("t", "ch ", print)
    with pytest.raises(errors.OptionError, match="callable"):
        Reader("t", "ch", None)  # type: ignore[arg-type]
    with pytest.raises(errors.OptionError, match="delay"):
        Requeue("5")  # type: ignore[arg-type]


def test_concurrency_that_max_in_flight_cannot_feed_is_warned_of() -> None:
    with pytest.warns(RuntimeWarning, match="raise max_in_flight"):
        Reader("t", "ch", print, max_in_flight=2, concurrency=10)


def test_no_address_means_the_environment_then_localhost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NSQ_LOOKUPD_HTTP_ADDRESSES", raising=False)
    monkeypatch.delenv("NSQD_TCP_ADDRESSES", raising=False)
    assert [str(e) for e in Reader("t", "c", print)._settings.endpoints] == ["127.0.0.1:4150"]
    monkeypatch.setenv("NSQD_TCP_ADDRESSES", " ")
    monkeypatch.setenv("NSQ_LOOKUPD_HTTP_ADDRESSES", " , ")
    assert [str(e) for e in Reader("t", "c", print)._settings.endpoints] == ["127.0.0.1:4150"]
    monkeypatch.setenv("NSQD_TCP_ADDRESSES", "a:1, b:2")
    assert [str(e) for e in Reader("t", "c", print)._settings.endpoints] == ["a:1", "b:2"]
    monkeypatch.setenv("NSQ_LOOKUPD_HTTP_ADDRESSES", "l:1")
    reader = Reader("t", "c", print)
    assert (list(reader._settings.endpoints), list(reader._settings.lookupds)) == ([], ["l:1"])
    reader = Reader("t", "c", print, nsqd_tcp_addresses="mine:5")
    assert [str(e) for e in reader._settings.endpoints] == ["mine:5"]


@pytest.mark.parametrize("option", ["nsqd_tcp_addresses", "lookupd_http_addresses"])
def test_an_address_of_separators_alone_is_refused(option: str) -> None:
    """Else the Reader would wait for an nsqd for good."""
    with pytest.raises(errors.OptionError, match="names no address") as caught:
        Reader("t", "c", print, **{option: " , "})
    assert caught.value.name == option


def test_no_log_line_has_the_secret(embedded: Broker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with Reader("t", "ch", print, nsqd_tcp_addresses=embedded.nsqd_tcp_address, auth_secret="hunter2") as reader:
        wait_for(lambda: reader.stats().connections)
        assert "hunter2" not in repr(reader.stats())
        assert "hunter2" not in repr(reader._settings)
    assert "hunter2" not in caplog.text


# -- batches


def test_a_batch_handler_gets_lists_and_each_message_may_be_answered(broker: ServerHandle, topic: str) -> None:
    broker.prepare(topic, "ch")
    broker.publish(topic, *[b"%d" % n for n in range(20)])
    sizes: list[int] = []
    bad: list[bytes] = []

    def handler(batch: list[Message]) -> None:
        sizes.append(len(batch))
        for message in batch:
            if message.body == b"7" and message.attempts == 1:
                bad.append(message.body)
                message.requeue(0.0, backoff=False)

    options: dict[str, Any] = {"batch_size": 8, "batch_wait": 0.2, "max_in_flight": 20}
    with reader_on(broker, topic, handler, **options) as reader:
        wait_for(lambda: reader.stats().finished == 20)
        assert reader.stats().requeued == 1
    assert max(sizes) <= 8
    assert sum(sizes) == 21
    assert bad == [b"7"]


def test_a_batch_handler_that_raises_requeues_what_it_did_not_answer(broker: ServerHandle, topic: str) -> None:
    broker.prepare(topic, "ch")
    broker.publish(topic, b"a", b"b", b"c")
    rounds: list[list[bytes]] = []

    def handler(batch: list[Message]) -> None:
        rounds.append(sorted(m.body for m in batch))
        for message in batch:
            if message.body == b"a" or message.attempts > 1:
                message.finish()
        if any(m.attempts == 1 for m in batch):
            raise ValueError("some failed")

    options: dict[str, Any] = {"batch_size": 3, "batch_wait": 0.2, "max_in_flight": 3, "requeue_delay": 0.0}
    with reader_on(broker, topic, handler, backoff=False, **options) as reader:
        wait_for(lambda: reader.stats().finished == 3)
        assert sum(batch.count(b"a") for batch in rounds) == 1
