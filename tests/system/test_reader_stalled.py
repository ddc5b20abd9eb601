"""The Reader replaces a connection if nsqd refused an answer on it and then delivers nothing."""

from __future__ import annotations

import random
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gnsq_lite import Message, errors
from gnsq_lite.broker import Broker
from gnsq_lite.consume import subscribed
from tests.conftest import _need_real
from tests.programs import wait_for
from tests.servers import EmbeddedNsqd, RealNsqd
from tests.system.clients import reader_on

REFUSED = b"E_FIN_FAILED FIN 0123456789abcdef failed ID not in flight"


def write_records_twice(folder: Path, topic: str, channel: str) -> int:
    """Write each record of a channel's disk queue twice, as after a crash.  Return the number of records."""
    meta = folder / f"{topic}:{channel}.diskqueue.meta.dat"
    path = folder / f"{topic}:{channel}.diskqueue.000000.dat"
    data, at, doubled, count = path.read_bytes(), 0, b"", 0
    while at < len(data):
        end = at + 4 + struct.unpack_from(">I", data, at)[0]
        doubled += 2 * data[at:end]
        at, count = end, count + 1
    assert meta.read_text() == f"{count}\n0,0\n0,{len(data)}\n"
    path.write_bytes(doubled)
    meta.write_text(f"{2 * count}\n0,0\n0,{len(doubled)}\n")
    return count


@pytest.mark.nsqd
@pytest.mark.rule("ERR-1", "MSG-5")
@pytest.mark.parametrize("delivery", ["auto", "bulk"])
@pytest.mark.parametrize("max_in_flight", [1, 50])
def test_messages_continue_after_nsqd_delivered_copies_of_messages_in_flight(
    tmp_path: Path, topic: str, max_in_flight: int, delivery: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _need_real()
    monkeypatch.setattr(subscribed, "STALLED", 1.0)
    nsqd = RealNsqd(tmp_path)
    try:
        nsqd.prepare(topic, "ch")
        nsqd.publish(topic, *[b"old %d" % n for n in range(20)])
        nsqd.stop()
        assert write_records_twice(tmp_path / "nsqd-data", topic, "ch") == 20
        nsqd.restart()
        got: list[bytes] = []

        def handle(message: Message) -> None:
            time.sleep(0.05)
            got.append(message.body)

        with reader_on(nsqd, topic, handle, max_in_flight=max_in_flight, concurrency=1, delivery=delivery):
            wait_for(lambda: len(set(got)) == 20)
            nsqd.publish(topic, *[b"new %d" % n for n in range(20)])
            wait_for(lambda: len({body for body in got if body.startswith(b"new")}) == 20)
    finally:
        nsqd.kill()


@pytest.fixture
def refusing() -> Iterator[EmbeddedNsqd]:
    """An nsqd with two messages that refuses the first FIN and still counts that message as in flight."""
    with Broker() as broker:
        nsqd = EmbeddedNsqd(broker.node)
        nsqd.prepare("t", "ch")
        broker.faults.answer("FIN", REFUSED, close=False)
        nsqd.publish("t", b"slow", b"refused")
        yield nsqd


@pytest.mark.rule("ERR-1")
def test_a_refused_fin_and_30_s_without_messages_replace_the_connection_once(
    refusing: EmbeddedNsqd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscribed, "STALLED", 1.0)
    got: list[bytes] = []
    reasons: list[errors.NSQError] = []
    on = {"on_disconnected": lambda _, reason: reasons.append(reason)}
    with reader_on(refusing, "t", lambda message: got.append(message.body), **on):
        wait_for(lambda: got == [b"slow", b"refused"])
        time.sleep(2.5)
        assert len(reasons) == 1
    assert isinstance(reasons[0], errors.ConnectionLost)
    assert "refused a FIN" in str(reasons[0])


def test_the_connection_is_replaced_only_after_running_handlers(
    refusing: EmbeddedNsqd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscribed, "STALLED", 1.0)
    release = threading.Event()
    got: list[bytes] = []
    reasons: list[errors.NSQError] = []

    def handle(message: Message) -> None:
        got.append(message.body)
        if message.body == b"slow":
            release.wait(20)

    on = {"on_disconnected": lambda _, reason: reasons.append(reason)}
    with reader_on(refusing, "t", handle, max_in_flight=3, concurrency=2, **on):
        wait_for(lambda: b"slow" in got)
        time.sleep(2.5)
        assert reasons == []
        release.set()
        wait_for(lambda: reasons)


@pytest.mark.nsqd
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.rule("ERR-1", "CONN-3")
@pytest.mark.parametrize("max_in_flight", [1, 2500])
@pytest.mark.parametrize("options", [{"delivery": "auto"}, {"delivery": "bulk"}, {"batch_size": 50, "batch_wait": 0.1}])
def test_messages_continue_after_nsqd_was_killed_twenty_times(
    tmp_path: Path, topic: str, max_in_flight: int, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requeued messages are in the disk queue twice, and a killed nsqd has not stored its read position."""
    _need_real()
    monkeypatch.setattr(subscribed, "STALLED", 5.0)
    nsqd = RealNsqd(tmp_path, mem_queue_size=0, msg_timeout=5.0)
    chance, got = random.Random(1), set[bytes]()

    def handle(given: Any) -> None:
        for message in given if isinstance(given, list) else [given]:
            if message.attempts == 1 and chance.random() < 0.3:
                message.requeue(0.0, backoff=False)
            else:
                got.add(message.body)
        time.sleep(0.002)

    try:
        with reader_on(nsqd, topic, handle, max_in_flight=max_in_flight, max_attempts=0, **options):
            for kill in range(20):
                nsqd.publish(topic, *[b"%d %d" % (kill, n) for n in range(200)])
                time.sleep(chance.uniform(0.3, 0.8))
                nsqd.kill()
                nsqd.restart()
            nsqd.publish(topic, *[b"new %d" % n for n in range(100)])
            wait_for(lambda: sum(body.startswith(b"new") for body in got.copy()) == 100, timeout=120)
    finally:
        nsqd.kill()
