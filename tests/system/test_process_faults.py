"""What becomes of work when the process around it misbehaves: docs/guarantees.rst states each outcome."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from typing import Any

import gevent
import pytest

from gnsq_lite import Message, Reader, Writer
from tests.programs import piped, python, wait_for
from tests.servers import ServerHandle
from tests.system.clients import QUICK

pytestmark = pytest.mark.program


class Own(BaseException):
    """Some user's own."""


@pytest.mark.rule("MSG-1")
@pytest.mark.parametrize(
    "error",
    [
        Own(),
        gevent.GreenletExit(),
        gevent.Timeout(5),
        MemoryError(),
        RecursionError(),
        StopIteration(),
        GeneratorExit(),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("pool", ["greenlet", "thread", "inline"])
def test_whatever_a_handler_raises_its_message_is_requeued_and_the_reader_goes_on(
    broker: ServerHandle, topic: str, pool: Any, error: BaseException
) -> None:
    seen: Counter[bytes] = Counter()

    def handle(message: Message) -> None:
        seen[message.body] += 1
        if message.body == b"bad" and message.attempts == 1:
            raise error

    broker.prepare(topic, "ch")
    broker.publish(topic, b"bad", b"good", b"fine")
    options: dict[str, Any] = {"handler_pool": pool, "requeue_delay": 0.0, "backoff": False, **QUICK}
    with Reader(topic, "ch", handle, nsqd_tcp_addresses=broker.tcp_address, **options) as reader:
        wait_for(lambda: seen == {b"bad": 2, b"good": 1, b"fine": 1})
        wait_for(lambda: reader.stats().finished == 3)
        assert reader.stats().requeued == 1


SIGNALS = """
import os, signal, sys, threading, time
from gnsq_lite import Writer
address, topic = sys.argv[1:]
struck = [0]
def strike(number, frame):
    struck[0] += 1
signal.signal(signal.SIGUSR1, strike)
def shoot():
    while not stop.is_set():
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.001)
stop = threading.Event()
thread = threading.Thread(target=shoot)
thread.start()
with Writer(address) as writer:
    for number in range(500):
        writer.publish(topic, b"x")
stop.set()
thread.join()
sys.exit(0 if struck[0] > 5 else 3)
"""


@pytest.mark.rule("PUB-1")
def test_signals_that_arrive_during_publishes_change_no_outcome(broker: ServerHandle, topic: str) -> None:
    done = python(SIGNALS, broker.tcp_address, topic)
    assert done.returncode == 0, done
    assert int(broker.stats(topic)["depth"]) == 500


RAISES = """
import os, signal, sys, threading
from gnsq_lite import Writer
address, topic, silent = sys.argv[1:]
class Stop(Exception): pass
def strike(number, frame): raise Stop()
signal.signal(signal.SIGUSR1, strike)
writer = Writer(address)
writer.publish(topic, b"before")
other = Writer(silent, publish_timeout=20)
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR1)).start()
try:
    other.publish(topic, b"x")
except Stop:
    writer.publish(topic, b"after")
    writer.close()
    other.close(timeout=0.2)
    sys.exit(0)
sys.exit(4)
"""


@pytest.mark.rule("PUB-1")
def test_a_signal_handler_that_raises_ends_the_wait_and_the_writer_is_usable(broker: ServerHandle, topic: str) -> None:
    from tests.system.http_stub import scripted

    with scripted(lambda connection: time.sleep(30)) as silent:
        began = time.monotonic()
        done = python(RAISES, broker.tcp_address, topic, silent)
    assert done.returncode == 0, done
    assert time.monotonic() - began < 15.0
    assert int(broker.stats(topic)["depth"]) == 2


def test_a_reader_whose_process_is_killed_leaves_its_message_to_another(make_broker: Any, topic: str) -> None:
    broker = make_broker(msg_timeout=1.0)
    broker.prepare(topic, "ch")
    broker.publish(topic, b"x")
    text = (
        "import sys, time; from gnsq_lite import Reader; "
        "Reader(sys.argv[2], 'ch', lambda m: (print('here', flush=True), time.sleep(60)), "
        "nsqd_tcp_addresses=sys.argv[1]).start()"
    )
    with piped(["-c", text, broker.tcp_address, topic]) as program:
        assert program.read_line() == b"here\n"
        program.stop(signal.SIGKILL)
    seen: list[Message] = []
    with Reader(topic, "ch", seen.append, nsqd_tcp_addresses=broker.tcp_address, **QUICK):
        wait_for(lambda: seen)
    assert seen[0].attempts == 2


@pytest.mark.rule("PUB-1")
def test_five_hundred_publishing_threads_that_come_and_go_leave_nothing(broker: ServerHandle, topic: str) -> None:
    with Writer(broker.tcp_address) as writer:
        writer.publish(topic, b"x")
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            threads = [threading.Thread(target=writer.publish, args=(topic, b"x")) for _ in range(25)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        # At most a connection for each of 25 threads, and the embedded broker's end of it.
        assert len(os.listdir("/proc/self/fd")) <= before + 2 * 25 + 5
    assert int(broker.stats(topic)["depth"]) == 501


NO_THREADS = """
import sys, threading
from gnsq_lite import Reader, Writer, errors
address, topic = sys.argv[1:]
writer, got = Writer(address), threading.Event()
reader = Reader(topic, "ch", lambda message: got.set(), nsqd_tcp_addresses=address)
calls = {
    "publish": lambda: writer.publish(topic, b"x"),
    "publish_nowait": lambda: writer.publish_nowait(topic, b"x").result(),
    "multipublish": lambda: writer.multipublish(topic, [b"x"]),
    "start": lambda: reader.start(block=False),
}
threading.stack_size(1 << 45)  # more than there is
for call in calls.values():
    try:
        call()
    except errors.NSQError as error:
        cause = error.__cause__.__cause__ or error.__cause__
        print(type(error).__name__, "I/O thread" in str(error), type(cause).__name__)
threading.stack_size(0)
for call in calls.values():
    call()
print(got.wait(20))
reader.close()
writer.close()
"""


@pytest.mark.rule("PUB-2")
def test_where_the_system_gives_no_thread_nothing_is_sent_or_begun_and_all_goes_on_when_it_does(
    broker: ServerHandle, topic: str
) -> None:
    done = python(NO_THREADS, broker.tcp_address, topic)
    assert (done.returncode, done.stderr) == (0, b"")
    # publish() and multipublish() of a plain thread need no other thread.
    assert done.stdout == b"NotSent True RuntimeError\nNSQError True RuntimeError\nTrue\n"
    assert int(broker.stats(topic, "ch")["message_count"]) == 5
