"""Plain threads share blocking connections, and every other caller publishes through the loop; seen from nsqd."""

from __future__ import annotations

import json
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from types import SimpleNamespace
from typing import Any

import pytest

from gnsq_lite import Writer, errors
from gnsq_lite.clock import SYSTEM_CLOCK
from gnsq_lite.net.blocking_connection import BlockingStream
from gnsq_lite.publish import nsqds as nsqds_module
from gnsq_lite.publish import shared
from gnsq_lite.publish.nsqds import Nsqds
from gnsq_lite.publish.publication import Publish
from gnsq_lite.publish.shared import SharedConnection
from tests import tls_variants
from tests.certs import Certificates
from tests.frames import HEARTBEAT, OK, frame
from tests.programs import python, wait_for
from tests.servers import ServerHandle
from tests.system.clients import QUICK, depth
from tests.system.http_stub import scripted

pytestmark = pytest.mark.unpatched


@pytest.fixture(autouse=True)
def no_nsqd_is_far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a slow machine not make an nsqd look far away, because then threads use the loop too."""
    monkeypatch.setattr(nsqds_module, "_FAR", float("inf"))


class Nsqd:
    """A scripted nsqd: it notes connections and published bodies, and answers as the test sets."""

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
@pytest.mark.parametrize("extra", [OK, OK[:5], frame(1, b"E_INVALID why"), HEARTBEAT])
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
        assert len(nsqd.connections) == 2 or (extra == HEARTBEAT and at_once)


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
@pytest.mark.parametrize("is_far", [False, True], ids=["near", "far"])
def test_threads_share_max_connections_and_use_the_loop_too_if_nsqd_is_far_away(
    nsqd: Nsqd, is_far: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(connection: socket.socket, body: bytes) -> None:
        time.sleep(0.01)
        connection.sendall(OK)

    if is_far:
        monkeypatch.setattr(nsqds_module, "_FAR", 0.0)
    nsqd.answer = answer
    with Writer(nsqd.address, max_connections=2) as writer:
        acts = [lambda: [writer.publish("t", b"x") for _ in range(10)]] * 8
        assert in_threads(*acts) == [[None] * 10] * 8
        stats = writer.stats()
        assert (stats.published, stats.max_connections) == (80, 2)
    assert sorted(nsqd.intervals) == [-1, -1, 30_000][: 3 if is_far else 2]


@pytest.mark.rule("PUB-4")
def test_the_return_of_a_connection_closes_another_that_was_idle_for_too_long(
    nsqd: Nsqd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "IDLE", 1.5)
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
            assert 0.9 < time.monotonic() - began < 12.0  # a second for each publish would be 20 s
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


class Answers:
    """Answers of a scripted nsqd, each *delay* seconds after its publish, in order."""

    def __init__(self, delay: float) -> None:
        self.delay = delay
        self._due: queue.Queue[tuple[float, socket.socket] | None] = queue.Queue()
        threading.Thread(target=self._run, daemon=True).start()

    def __call__(self, connection: socket.socket, body: bytes) -> None:
        self._due.put((time.monotonic() + self.delay, connection))

    def stop(self) -> None:
        self._due.put(None)

    def _run(self) -> None:
        while (answer := self._due.get()) is not None:
            threading.Event().wait(max(0.0, answer[0] - time.monotonic()))
            with suppress(OSError):
                answer[1].sendall(OK)


@pytest.mark.rule("PUB-2")
def test_the_deadline_of_a_thread_that_leads_a_connection_costs_no_other_thread_its_publish(nsqd: Nsqd) -> None:
    nsqd.answer = answers = Answers(0.2)
    with Writer(nsqd.address, publish_timeout=15.0) as writer:
        outcomes: list[Any] = []

        def hurry() -> None:
            for _ in range(10):
                try:
                    writer.publish("t", b"short", timeout=0.05)
                except errors.NSQError as error:
                    outcomes.append(type(error))

        others = in_threads(hurry, *[lambda: [writer.publish("t", b"x") for _ in range(3)]] * 20)
        assert others[1:] == [[None] * 3] * 20
        assert set(outcomes) <= {errors.PublishTimeout, errors.NotSent}
        stats = writer.stats()
        assert (stats.published, stats.failed + stats.unknown) == (60, len(outcomes))
    answers.stop()


@pytest.mark.rule("PUB-2")
def test_a_refused_publish_ends_its_connection_and_no_other_publish(nsqd: Nsqd) -> None:
    def answer(connection: socket.socket, body: bytes) -> None:
        if body == b"bad":
            connection.sendall(frame(1, b"E_BAD_MESSAGE PUB message too big"))
            connection.shutdown(socket.SHUT_RDWR)
            raise ConnectionResetError  # nsqd reads no more
        connection.sendall(OK)

    nsqd.answer = answer
    refused: list[type] = []
    with Writer(nsqd.address, retries=0) as writer:

        def bad() -> None:
            for _ in range(20):
                with pytest.raises(errors.BadMessageError) as caught:
                    writer.publish("t", b"bad")
                refused.append(caught.type)
                time.sleep(0.01)

        outcomes = in_threads(bad, *[lambda: [writer.publish("t", b"x") for _ in range(100)]] * 8)
        assert outcomes[1:] == [[None] * 100] * 8
        stats = writer.stats()
        assert (stats.published, stats.failed, stats.unknown, len(refused)) == (800, 20, 0, 20)
    assert nsqd.bodies.count(b"x") == 800


@pytest.mark.rule("PUB-4")
@pytest.mark.parametrize("caller", ["thread", "loop"])
def test_a_publish_that_an_exiting_nsqd_refuses_goes_to_another_nsqd(caller: str) -> None:
    def exiting(connection: socket.socket, body: bytes) -> None:
        connection.sendall(frame(1, b"E_PUB_FAILED PUB failed exiting"))
        connection.shutdown(socket.SHUT_RDWR)

    with nsqds(2) as (good, leaving), Writer([good.address, leaving.address], retries=0, **QUICK) as writer:
        leaving.answer = exiting
        publish = writer.publish if caller == "thread" else lambda *args: writer.publish_nowait(*args).result(10.0)
        assert in_threads(lambda: [publish("t", b"%d" % number) for number in range(20)]) == [[None] * 20]
        assert sorted(good.bodies) == sorted(b"%d" % number for number in range(20))
        assert (writer.stats().published, writer.stats().failed, writer.stats().unknown) == (20, 0, 0)


@pytest.mark.rule("PUB-4")
def test_a_publish_that_is_not_sent_leaves_a_silent_nsqd() -> None:
    with nsqds(2) as (good, silent), Writer([good.address, silent.address], max_connections=1, **QUICK) as writer:
        in_threads(lambda: [writer.publish("t", b"x") for _ in range(4)])
        silent.answer = lambda connection, body: None
        stuck = [threading.Thread(target=lambda: in_threads(lambda: writer.publish("t", b"stuck"))) for _ in range(2)]
        for thread in stuck:
            thread.start()
        wait_for(lambda: silent.bodies.count(b"stuck") == 1)
        began = time.monotonic()
        assert in_threads(*[lambda: writer.publish("t", b"free")] * 8) == [None] * 8
        assert time.monotonic() - began < 10.0  # 1 s, and not the timeout of 15 s
        silent.hang_up()
        for thread in stuck:
            thread.join()


@pytest.mark.rule("PUB-4")
def test_large_publishes_leave_the_connections_of_small_ones_free(nsqd: Nsqd) -> None:
    gate = threading.Event()

    def answer(connection: socket.socket, body: bytes) -> None:
        if len(body) > 100:
            assert gate.wait(30.0)
        connection.sendall(OK)

    nsqd.answer = answer
    with Writer(nsqd.address, max_connections=2) as writer:
        large = [threading.Thread(target=lambda: writer.publish("t", b"l" * 100_000)) for _ in range(3)]
        for thread in large:
            thread.start()
        wait_for(lambda: len(nsqd.bodies) == 2)  # the third waits for one of the two connections for large ones
        assert in_threads(*[lambda: [writer.publish("t", b"x") for _ in range(20)]] * 4) == [[None] * 20] * 4
        gate.set()
        for thread in large:
            thread.join(30.0)
        # Two for the large ones, and one or two for the small ones: a thread that leads one sends for the others too.
        assert (writer.stats().published, len(writer.stats().connections) in (3, 4)) == (83, True)


class NoCalls:
    """A socket that allows only the calls of a publish."""

    def __init__(self, sock: socket.socket) -> None:
        self.fileno, self.send, self.shutdown, self.close = sock.fileno, sock.send, sock.shutdown, sock.close


@pytest.mark.rule("PUB-1")
def test_a_publish_soon_after_the_last_one_makes_no_system_call_but_send_and_receive(nsqd: Nsqd) -> None:
    with Writer(nsqd.address) as writer:
        in_threads(lambda: writer.publish("t", b"x"))
        (connection,) = writer._nsqds.in_turn[0].shared.idle
        connection.read_at = float("inf")  # however slow this machine is
        sock = connection._stream._sock
        connection._stream._sock = NoCalls(sock)
        assert in_threads(lambda: writer.publish("t", b"y")) == [None]
        connection._stream._sock = sock


@pytest.mark.rule("PUB-2")
def test_a_lost_connection_makes_unknown_only_what_was_sent(nsqd: Nsqd) -> None:
    nsqds_of = Nsqds(1, takes_turns=True)
    settings = Writer(nsqd.address)._settings
    connection = SharedConnection(nsqds_of.get(settings.endpoints[0]).shared, settings, SYSTEM_CLOCK)
    publishes = [Publish("t", (b"x" * 10,), 1.0, 1.0) for _ in range(4)]
    for each in publishes:
        each.data = b"PUB t\n" + each.bodies[0]
        connection.unanswered.append(each)
    stream: Any = SimpleNamespace(sending=(b"", [28], publishes[2]), unsent=lambda: 20)
    connection._stream = stream
    # Of the 48 bytes that were to be sent, 20 are not: 4 of the second publish, and 16 of the third.
    assert connection.not_sent() == set(publishes[2:])
    connection._is_coded = True  # a record may hold all three
    assert connection.not_sent() == {publishes[3]}
    stream.sending = (b"", [], publishes[2])
    assert connection.not_sent() == set(publishes)
    connection._stream = None


@pytest.mark.rule("SEC-1")
def test_records_that_openssl_sends_in_a_read_go_behind_the_publish_and_leave_its_mark() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs = listener.accept()[0]
    with closing(BlockingStream(ours, "test")) as stream, theirs:
        mark = object()
        assert stream.send(b"publish", mark)
        stream.send_raw(b"alert")
        assert theirs.recv(12, socket.MSG_WAITALL) == b"publishalert"
        assert (stream.sending[2], stream.unsent()) == (mark, 0)


SIGNALS = """
import signal, sys, time
from gnsq_lite import Writer, errors
writer = Writer(sys.argv[1])
writer.publish("t", b"x")
signal.signal(signal.SIGALRM, lambda *args: None)
signal.setitimer(signal.ITIMER_REAL, float(sys.argv[2]), float(sys.argv[2]))
began = time.monotonic()
try:
    writer.publish("t", b"never answered", timeout=1.0)
except errors.PublishTimeout:
    print(time.monotonic() - began)
signal.setitimer(signal.ITIMER_REAL, 0)
"""


@pytest.mark.program
@pytest.mark.rule("PUB-1")
@pytest.mark.parametrize("every", ["0.3", "0.01"])
def test_signals_do_not_delay_the_deadline_of_a_publish(nsqd: Nsqd, every: str) -> None:
    nsqd.answer = lambda connection, body: connection.sendall(OK) if body == b"x" else None
    done = python(SIGNALS, nsqd.address, every, limit=60.0)
    assert done.returncode == 0, done
    assert float(done.stdout) < 10.0


EXIT = """
import sys, threading, time
from gnsq_lite import Writer, errors
def publish():
    try:
        threads.publish("t", b"never answered")
    except errors.OutcomeUnknown:
        pass  # an uncaught one would be written to standard error while Python ends, which Python may abort
threads, loop = Writer(sys.argv[1], publish_timeout=60.0), Writer(sys.argv[1], publish_timeout=60.0)
for _ in range(2):
    threading.Thread(target=publish, daemon=True).start()
loop.publish_nowait("t", b"never answered")
time.sleep(0.5)
print(time.monotonic(), flush=True)
"""


@pytest.mark.program
@pytest.mark.rule("PUB-2")
def test_the_exit_waits_for_threads_and_loop_together(nsqd: Nsqd) -> None:
    nsqd.answer = lambda connection, body: None
    done = python(EXIT, nsqd.address, limit=60.0)
    assert done.returncode == 0, done
    assert time.monotonic() - float(done.stdout) > 2.0  # tests/unit/net/test_at_exit.py has the upper bound


EXCEPTIONS = """
import ctypes, random, sys, threading, time
from gnsq_lite import Writer, errors
address, topic, moments = sys.argv[1], sys.argv[2], int(sys.argv[3])
class Own(Exception):
    pass
writer = Writer(address, publish_timeout=20.0)
ok, unknown, other, longest, running = [0] * 12, [0] * 12, [], [0.0], [True]
def run(number):
    while running[0]:
        began = time.monotonic()
        try:
            try:
                writer.publish(topic, b"x")
                ok[number] += 1
            except errors.OutcomeUnknown:
                unknown[number] += 1
            except errors.NSQError as error:
                other.append(repr(error))
            longest[0] = max(longest[0], time.monotonic() - began)
        except Own:
            pass
threads = [threading.Thread(target=run, args=(number,)) for number in range(12)]
for thread in threads:
    thread.start()
for _ in range(moments):
    time.sleep(random.uniform(0, 0.004))
    victim = random.choice(threads).ident
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(victim), ctypes.py_object(Own))
time.sleep(0.1)
running[0] = False
for thread in threads:
    thread.join(60.0)
assert not any(thread.is_alive() for thread in threads)
writer.publish(topic, b"last")
assert len(writer.stats().connections) <= 5, writer.stats()  # one is the loop's
assert longest[0] < 30.0, longest
print(sum(ok) + 1, sum(unknown), len(other))
print(other[:3], file=sys.stderr)
"""


@pytest.mark.program
@pytest.mark.rule("PUB-2")
def test_asynchronous_exceptions_leave_every_outcome_true(broker: ServerHandle, topic: str) -> None:
    done = python(EXCEPTIONS, broker.tcp_address, topic, "300", limit=200.0)
    assert done.returncode == 0, done
    ok, unknown, other = map(int, done.stdout.split())
    assert other == 0, done
    assert ok <= depth(broker, topic) <= ok + unknown + 300
