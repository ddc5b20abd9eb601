"""Plain threads publish through blocking connections, and every other caller through the loop; seen from nsqd."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from gnsq_lite import Writer, errors
from gnsq_lite.publish import pool
from tests import tls_variants
from tests.certs import Certificates
from tests.programs import wait_for
from tests.servers import ServerHandle
from tests.system.http_stub import scripted
from tests.system.test_hostile_nsqd import OK, frame
from tests.system.test_process_faults import python
from tests.system.test_writer import QUICK, depth

pytestmark = pytest.mark.unpatched


class Nsqd:
    """A scripted nsqd: notes who connects and what is published, and answers as the test says."""

    def __init__(self) -> None:
        self.address = ""
        #: The heartbeat_interval of each IDENTIFY: -1 from a blocking connection.
        self.intervals: list[int] = []
        self.connections: list[socket.socket] = []
        self.bodies: list[bytes] = []
        #: Answers a publish, given its connection and body.
        self.answer: Callable[[socket.socket, bytes], object] = lambda connection, body: connection.sendall(OK)

    def speak(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as commands:
            assert commands.read(4) == b"  V2"
            while line := commands.readline():
                if line == b"NOP\n":
                    continue
                body = commands.read(int.from_bytes(commands.read(4), "big"))
                if line == b"IDENTIFY\n":
                    self.intervals.append(json.loads(body)["heartbeat_interval"])
                    self.connections.append(connection)
                    connection.sendall(frame(0, b'{"max_rdy_count": 2500, "version": "1.3.0"}'))
                else:
                    self.bodies.append(body)
                    self.answer(connection, body)

    def hang_up(self) -> None:
        """End all connections."""
        for connection in self.connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def nsqds(count: int) -> Iterator[list[Nsqd]]:
    """Run so many scripted nsqds."""
    made = [Nsqd() for _ in range(count)]
    if not made:
        yield []
        return
    with scripted(made[0].speak) as made[0].address, nsqds(count - 1) as others:
        yield [made[0], *others]


@pytest.fixture
def nsqd() -> Iterator[Nsqd]:
    with nsqds(1) as (one,):
        yield one


def in_threads(*acts: Callable[[], Any]) -> list[Any]:
    """Call each in a plain thread at the same time; return what each returned or raised."""
    outcomes: list[Any] = [None] * len(acts)

    def run(number: int, act: Callable[[], Any]) -> None:
        try:
            outcomes[number] = act()
        except BaseException as error:
            outcomes[number] = error

    threads = [threading.Thread(target=run, args=each) for each in enumerate(acts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert not any(thread.is_alive() for thread in threads)
    return outcomes


CALLER = """
import sys
address, kind = sys.argv[1:]
if kind in ("greenlet of a patched process", "native thread of a patched process"):
    from gevent import monkey
    monkey.patch_all()
elif kind == "patched without threads":
    from gevent import monkey
    monkey.patch_all(thread=False)
import threading, time
import gevent
from gevent import get_hub, monkey
from gnsq_lite import Writer
writer = Writer(address)
def publish():
    for _ in range(3):
        writer.publish("t", b"x", timeout=10.0)
    writer.multipublish("t", [b"a", b"b"])
    writer.publish("t", b"y", defer=1.0)
if kind == "thread":
    publish()
    assert [each.name for each in threading.enumerate()] == ["MainThread"], threading.enumerate()
elif kind == "thread with a hub":
    get_hub()
    publish()
elif kind.startswith("native"):
    writer.publish("t", b"first")  # so that the loop is the main thread's
    get_hub().threadpool.apply(publish)
else:
    gevent.spawn(publish).get()
stats = writer.stats()
assert (stats.published, stats.pending, stats.state) == (6 + kind.startswith("native"), 0, "connected"), stats
writer.close()
"""


@pytest.mark.program
@pytest.mark.rule("PUB-1")
@pytest.mark.rule("PUB-3")
@pytest.mark.parametrize(
    ("kind", "blocks"),
    [
        ("thread", True),
        ("thread with a hub", False),
        ("greenlet", False),
        ("greenlet of a patched process", False),
        ("native thread of a patched process", False),
        ("patched without threads", False),
    ],
)
def test_only_a_plain_thread_borrows_a_blocking_connection(nsqd: Nsqd, kind: str, blocks: bool) -> None:
    done = python(CALLER, nsqd.address, kind)
    assert done.returncode == 0, done
    assert {interval == -1 for interval in nsqd.intervals} == {blocks}
    assert len(nsqd.bodies) == 5 + kind.startswith("native")


@pytest.mark.rule("PUB-2")
def test_the_outcome_is_unknown_if_bytes_were_sent_and_else_the_publish_was_not_sent(nsqd: Nsqd) -> None:
    with Writer(nsqd.address, publish_timeout=5.0, **QUICK) as writer:
        assert in_threads(lambda: writer.publish("t", b"first")) == [None]
        nsqd.answer = lambda connection, body: connection.shutdown(socket.SHUT_RDWR)
        (lost,) = in_threads(lambda: writer.publish("t", b"lost"))
        assert type(lost) is errors.OutcomeUnknown
        nsqd.answer = lambda connection, body: None
        (late,) = in_threads(lambda: writer.publish("t", b"late", timeout=0.3))
        assert type(late) is errors.PublishTimeout
        assert (writer.stats().unknown, writer.stats().failed) == (2, 0)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it accepts, and shakes no hands
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with Writer(address, **QUICK) as writer:
            (unsent,) = in_threads(lambda: writer.publish("t", b"x", timeout=0.3))
            assert type(unsent) is errors.NotSent
            assert writer.stats().failed == 1


@pytest.mark.rule("PUB-4")
def test_a_silent_nsqd_gets_nothing_more_while_another_one_answers() -> None:
    with nsqds(2) as (good, silent), Writer([good.address, silent.address], **QUICK) as writer:
        in_threads(lambda: [writer.publish("t", b"x") for _ in range(4)])
        assert (len(good.bodies), len(silent.bodies)) == (2, 2)
        silent.answer = lambda connection, body: None
        stuck = threading.Thread(target=lambda: in_threads(*[lambda: writer.publish("t", b"x", timeout=30.0)] * 2))
        stuck.start()
        wait_for(lambda: len(silent.bodies) == 3)
        time.sleep(1.3)
        assert in_threads(lambda: [writer.publish("t", b"x") for _ in range(20)]) == [[None] * 20]
        assert len(silent.bodies) == 3
        silent.hang_up()
        stuck.join()


@pytest.mark.rule("PUB-3")
def test_ended_connections_are_replaced_at_checkout_and_that_is_no_retry(nsqd: Nsqd) -> None:
    with Writer(nsqd.address, retries=0) as writer:
        gate = threading.Barrier(3)
        nsqd.answer = lambda connection, body: (gate.wait(20.0), connection.sendall(OK))
        in_threads(*[lambda: writer.publish("t", b"x")] * 3)
        assert len(writer.stats().connections) == 3
        nsqd.answer = lambda connection, body: connection.sendall(OK)
        nsqd.hang_up()
        time.sleep(0.1)
        assert in_threads(lambda: writer.publish("t", b"x")) == [None]
        assert len(writer.stats().connections) == 1
        assert (writer.stats().published, writer.stats().unknown) == (4, 0)


@pytest.mark.rule("PUB-2")
@pytest.mark.parametrize("extra", [OK, OK[:5], frame(1, b"E_INVALID why"), frame(0, b"_heartbeat_")])
@pytest.mark.parametrize("at_once", [True, False])
def test_bytes_that_answer_nothing_end_the_connection_and_never_answer_the_next_publish(
    nsqd: Nsqd, extra: bytes, at_once: bool
) -> None:
    def answer(connection: socket.socket, body: bytes) -> None:
        connection.sendall(OK + extra if at_once else OK)
        if not at_once:
            connection.sendall(extra)

    nsqd.answer = answer
    with Writer(nsqd.address) as writer:
        in_threads(lambda: writer.publish("t", b"1"))
        time.sleep(0.1)
        nsqd.answer = lambda connection, body: connection.sendall(frame(1, b"E_BAD_TOPIC no"))
        (refused,) = in_threads(lambda: writer.publish("t", b"2"))
        assert type(refused) is errors.BadTopicError
        assert len(nsqd.connections) == 2 or (extra == frame(0, b"_heartbeat_") and at_once)


@pytest.mark.rule("PUB-4")
def test_a_failed_nsqd_is_tried_by_one_thread_at_a_time() -> None:
    at: list[float] = []
    open_now: list[int] = []
    most = 0

    def speak(connection: socket.socket) -> None:
        nonlocal most
        at.append(time.monotonic())
        open_now.append(1)
        most = max(most, len(open_now))
        time.sleep(0.05)
        open_now.pop()  # and closes: no handshake

    with scripted(speak) as address, Writer(address, reconnect_delay=0.2, reconnect_jitter=0.0) as writer:
        in_threads(lambda: writer.publish("t", b"x", timeout=0.1))
        before = len(at)
        outcomes = in_threads(*[lambda: writer.publish("t", b"x", timeout=1.5)] * 20)
        assert {type(each) for each in outcomes} == {errors.NotSent}
        assert most == 1
        assert 2 <= len(at) - before <= 4  # after 0.2, 0.4 and 0.8 s


@pytest.mark.rule("PUB-4")
def test_publishes_above_max_connections_share_the_connection_of_the_loop(nsqd: Nsqd) -> None:
    def answer(connection: socket.socket, body: bytes) -> None:
        time.sleep(0.01)
        connection.sendall(OK)

    nsqd.answer = answer
    with Writer(nsqd.address, max_connections=2) as writer:
        acts = [lambda: [writer.publish("t", b"x") for _ in range(10)]] * 8
        assert in_threads(*acts) == [[None] * 10] * 8
        stats = writer.stats()
        assert (stats.published, stats.max_connections) == (80, 2)
    assert sorted(nsqd.intervals) == [-1, -1, 30000]


@pytest.mark.rule("PUB-4")
def test_the_return_of_a_connection_closes_another_that_was_idle_for_too_long(
    nsqd: Nsqd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "IDLE", 1.5)
    both = threading.Barrier(2)
    nsqd.answer = lambda connection, body: (both.wait(20.0), connection.sendall(OK))
    with Writer(nsqd.address) as writer:
        in_threads(*[lambda: writer.publish("t", b"x")] * 2)
        nsqd.answer = lambda connection, body: connection.sendall(OK)
        in_threads(lambda: [(writer.publish("t", b"x"), time.sleep(0.3)) for _ in range(10)])
        stats = writer.stats()
        assert (len(stats.connections), stats.published, stats.reconnects) == (1, 12, 0)
        assert len(nsqd.connections) == 2


@pytest.mark.rule("PUB-4")
def test_an_nsqd_without_a_handshake_delays_one_publish_by_a_second_while_another_nsqd_answers(nsqd: Nsqd) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with Writer([nsqd.address, address], **QUICK) as writer:
            began = time.monotonic()
            assert in_threads(lambda: [writer.publish("t", b"x") for _ in range(20)]) == [[None] * 20]
            assert 0.9 < time.monotonic() - began < 3.0
            assert len(nsqd.bodies) == 20


FORKS = """
import os, sys
from gnsq_lite import Writer
writer = Writer(sys.argv[1])
writer.publish("t", b"parent")
child = os.fork()
writer.publish("t", b"child" if not child else b"parent again", timeout=10.0)
if not child:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
writer.publish("t", b"parent at last")
assert writer.stats().reconnects == 0, writer.stats()
writer.close()
"""


@pytest.mark.program
def test_a_forked_child_opens_connections_of_its_own_and_leaves_the_parents_alone(nsqd: Nsqd) -> None:
    done = python(FORKS, nsqd.address)
    assert done.returncode == 0, done
    assert (sorted(nsqd.intervals), len(nsqd.bodies)) == ([-1, -1], 4)


INTERRUPTED = """
import signal, sys, threading, time
from gnsq_lite import Writer
writer = Writer(sys.argv[1])
both = threading.Barrier(2)
def publish():
    both.wait()
    writer.publish("t", b"both")
thread = threading.Thread(target=publish)
thread.start()
publish()
thread.join()
before = len(writer.stats().connections)
signal.signal(signal.SIGALRM, signal.default_int_handler)
signal.setitimer(signal.ITIMER_REAL, 0.2)
try:
    writer.publish("t", b"never answered")
except KeyboardInterrupt:
    print(before, len(writer.stats().connections), writer.stats().unknown)
writer.publish("t", b"last")
writer.close()
"""


@pytest.mark.program
@pytest.mark.rule("PUB-2")
def test_an_exception_of_a_signal_handler_closes_one_connection_and_passes_through(nsqd: Nsqd) -> None:
    both = threading.Barrier(2)

    def answer(connection: socket.socket, body: bytes) -> None:
        if body == b"both":
            both.wait(20.0)
        if body != b"never answered":
            connection.sendall(OK)

    nsqd.answer = answer
    done = python(INTERRUPTED, nsqd.address)
    assert (done.returncode, done.stdout.split()) == (0, [b"2", b"1", b"1"]), done


STRUCK = """
import random, signal, sys, threading
from gnsq_lite import Writer, errors
address, topic = sys.argv[1:]
class Own(Exception):
    pass
def strike(number, frame):
    raise Own
writer = Writer(address, max_connections=10)
writer.publish(topic, b"first")
signal.signal(signal.SIGALRM, strike)
ok = struck = 0
while struck < 200:
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0002, 0.005))
            for _ in range(20):
                writer.publish(topic, b"x")
                ok += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except Own:
        struck += 1
signal.signal(signal.SIGALRM, signal.SIG_IGN)
gate, done = threading.Barrier(10), []
def publish():
    gate.wait()
    writer.publish(topic, b"x")
    done.append(1)
threads = [threading.Thread(target=publish) for _ in range(10)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(20)
assert len(done) == 10
writer.flush(5)
print(ok + 11, len(writer.stats().connections))
writer.close()
"""


@pytest.mark.program
@pytest.mark.rule("PUB-2")
def test_200_signals_at_random_moments_leave_a_pool_that_can_open_all_its_connections(
    broker: ServerHandle, topic: str
) -> None:
    done = python(STRUCK, broker.tcp_address, topic, limit=120.0)
    assert done.returncode == 0, done
    ok, connections = map(int, done.stdout.split())
    assert depth(broker, topic) >= ok
    assert connections <= 10


@pytest.mark.rule("SEC-1")
@pytest.mark.rule("SEC-2")
@pytest.mark.parametrize("kind", tls_variants.KINDS)
def test_a_quiet_coded_connection_is_used_again(
    secured: ServerHandle, certs: Certificates, topic: str, kind: str
) -> None:
    with Writer(secured.tcp_address, **tls_variants.options(kind, certs.ca)) as writer:
        in_threads(lambda: [(writer.publish(topic, b"x" * 100_000), time.sleep(0.02)) for _ in range(5)])
        stats = writer.stats()
        assert (len(stats.connections), stats.reconnects, stats.published) == (1, 0, 5)
