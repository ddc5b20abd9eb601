"""Threads of an unpatched process publish by themselves, also if one of them or nsqd fails."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gnsq_lite import Reader, Writer, errors
from tests import tls_variants
from tests.certs import Certificates
from tests.programs import python, wait_for
from tests.proxy import Proxy
from tests.servers import RealNsqd, ServerHandle
from tests.system.clients import QUICK, depth
from tests.system.publishing_threads import Crowd


def stored(broker: ServerHandle, topic: str) -> Counter[bytes]:
    """Return how often each body is there."""
    seen: list[bytes] = []  # append() is atomic, and eight threads handle
    count = depth(broker, topic)

    def take(message: Any) -> None:
        seen.append(message.body)

    with Reader(topic, "all", take, nsqd_tcp_addresses=broker.tcp_address, max_in_flight=500):
        wait_for(lambda: len(seen) >= count, timeout=60.0)
    return Counter(seen)


@pytest.mark.rule("PUB-2")
@pytest.mark.parametrize(
    ("kind", "retries"),
    [("plain", 0), ("plain", 3), ("snappy", 0), ("deflate", 3), ("tls", 3), ("tls+deflate", 0), ("coalesced", 0)],
)
def test_fifty_threads_lose_and_double_nothing_over_lost_connections(
    secured: ServerHandle, certs: Certificates, topic: str, kind: str, retries: int
) -> None:
    broker, options = secured, {**QUICK, **tls_variants.options(kind, certs.ca)}
    with Proxy(broker.tcp_address) as proxy, Writer(proxy.address, retries=retries, **options) as writer:
        crowd = Crowd(writer, topic, 50)
        for _ in range(4):
            crowd.publishes(300)
            proxy.reset()
        crowd.stop()
        stats = writer.stats()
    ok = {body for bodies in crowd.ok for body in bodies}
    assert {type(error) for _, error in crowd.failed} <= {errors.OutcomeUnknown}
    assert (stats.published, stats.unknown, stats.failed) == (len(ok), len(crowd.failed), 0)
    if retries:
        assert not crowd.failed
    seen = stored(broker, topic)
    assert ok - set(seen) == set()
    assert retries or max(seen.values()) == 1


@pytest.mark.rule("PUB-1")
@pytest.mark.parametrize("kind", ["plain", "tls+snappy"])
def test_each_threads_publishes_keep_their_order_whatever_way_they_go(
    secured: ServerHandle, certs: Certificates, topic: str, kind: str
) -> None:
    broker = secured
    with Writer(broker.tcp_address, **tls_variants.options(kind, certs.ca)) as writer:
        for number in range(0, 400, 4):
            writer.publish(topic, b"%d" % number)
            writer.publish_nowait(topic, b"%d" % (number + 1))
            writer.publish_nowait(topic, b"%d" % (number + 2))
            writer.multipublish(topic, [b"%d" % (number + 3)])
    bodies: list[bytes] = []
    with Reader(topic, "ch", lambda m: bodies.append(m.body), nsqd_tcp_addresses=broker.tcp_address, concurrency=1):
        wait_for(lambda: len(bodies) == 400)
    if broker.kind == "nsqd":  # the embedded broker's order after a requeue is its own
        assert bodies == [b"%d" % number for number in range(400)]


@pytest.mark.rule("PUB-2")
@pytest.mark.rule("PUB-4")
@pytest.mark.parametrize("kind", ["plain", "tls+snappy"])
def test_threads_keep_their_deadlines_while_nsqd_is_silent_and_go_on_when_it_speaks(
    secured: ServerHandle, certs: Certificates, kind: str
) -> None:
    broker = secured
    if not isinstance(broker, RealNsqd):
        pytest.skip("the embedded broker is not to be stopped alone")
    with Writer(broker.tcp_address, publish_timeout=0.5, **tls_variants.options(kind, certs.ca), **QUICK) as writer:
        writer.publish("t", b"first", timeout=10.0)
        broker.process.signal(signal.SIGSTOP)
        status = Path(f"/proc/{broker.process.pid}/stat")
        wait_for(lambda: not status.exists() or b") T " in status.read_bytes())
        try:
            ends: list[tuple[type[BaseException], float]] = []

            def publish() -> None:
                began = time.monotonic()
                with pytest.raises(errors.NSQError) as caught:
                    writer.publish("t", b"x")
                ends.append((caught.type, time.monotonic() - began))

            threads = [threading.Thread(target=publish) for _ in range(10)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            broker.process.signal(signal.SIGCONT)
        sent = [kind for kind, _ in ends].count(errors.PublishTimeout)
        assert {kind for kind, _ in ends} <= {errors.PublishTimeout, errors.NotSent}
        assert all(0.4 < took < 20.0 for _, took in ends), ends
        writer.publish("t", b"last", timeout=10.0)
        assert (writer.stats().unknown, writer.stats().failed) == (sent, 10 - sent)
    assert depth(broker, "t") == 2 + sent


BLOCKED = """
import sys, threading, time
from gnsq_lite import Reader, Writer
from gnsq_lite.publish import nsqds
from tests.tls_variants import options
nsqds._FAR = float("inf")  # a busy machine makes nsqd look far away; threads then wait for the loop
address, topic, kind, ca = sys.argv[1:]
blocks, go = threading.Event(), threading.Event()
def handle(message):
    blocks.set()
    go.wait(60)
writer = Writer(address, **options(kind, ca))
for _ in range(2):
    writer.publish(topic, b"x")
reader = Reader(topic, "ch", handle, nsqd_tcp_addresses=address, handler_pool="inline")
reader.start(block=False)
blocks.wait(20)
threads = [threading.Thread(target=writer.publish, args=(topic, b"y")) for _ in range(10)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(10)
assert not any(thread.is_alive() for thread in threads)
go.set()
reader.close()
assert writer.stats().published == 12, writer.stats()
writer.close()
"""


@pytest.mark.program
@pytest.mark.rule("PUB-2")
@pytest.mark.parametrize("kind", ["plain", "tls+deflate"])
def test_threads_publish_while_a_handler_blocks_the_loop(
    secured: ServerHandle, certs: Certificates, topic: str, kind: str
) -> None:
    secured.prepare(topic, "ch")
    done = python(BLOCKED, secured.tcp_address, topic, kind, certs.ca)
    assert done.returncode == 0, done


@pytest.mark.parametrize("kind", ["plain", "snappy", "tls", "tls+deflate"])
def test_large_messages_of_many_threads_fill_the_socket_and_arrive_whole(
    secured: ServerHandle, certs: Certificates, topic: str, kind: str
) -> None:
    broker = secured
    options = {**QUICK, **tls_variants.options(kind, certs.ca)}
    with Writer(broker.tcp_address, publish_timeout=90.0, **options) as writer:  # 19 MB, on a machine with other work
        bodies = [random.Random(number).randbytes(800_000) for number in range(12)]

        def publish(body: bytes) -> None:
            for _ in range(2):
                writer.publish(topic, body)

        threads = [threading.Thread(target=publish, args=(body,)) for body in bodies]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    seen = stored(broker, topic)
    assert [seen[body] for body in bodies] == [2] * len(bodies)  # a diff of the bodies would never end
    assert seen.total() == 2 * len(bodies)


@pytest.mark.rule("PUB-2")
def test_a_callback_may_publish_whoever_reads_the_answer(broker: ServerHandle, topic: str) -> None:
    count, ended = 200, threading.Event()
    with Writer(broker.tcp_address, **QUICK) as writer:
        writer.publish(topic, b"first")
        crowd = Crowd(writer, topic, 3)

        def again(done: Any) -> None:
            nonlocal count
            count -= 1
            if count:
                writer.publish_nowait(topic, b"again").add_done_callback(again)
            else:
                ended.set()

        writer.publish_nowait(topic, b"again").add_done_callback(again)
        assert ended.wait(60.0)
        crowd.stop()
    assert not crowd.failed
