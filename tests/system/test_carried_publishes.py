"""Plain publishes of threads go the short way, and on it nobody is left behind whatever the others do."""

from __future__ import annotations

import pytest

from gnsq_lite.publish import carrying
from tests.servers import ServerHandle
from tests.system.test_process_faults import python

#: All that is queued while somebody else sends is sent, and answered, at once where that is asked for.
SHORT = """
import sys, threading, time
from gnsq_lite import Writer
from gnsq_lite.publish.answer_queue import AnswerQueue
from gnsq_lite.publish.publication import Publication
from gnsq_lite.publish.shared_connection import SharedConnection
from tests.answering import OK, answering
from tests.calls import note_calls
called = note_calls(Writer, SharedConnection, AnswerQueue, Publication)
coalesce = sys.argv[1] == "coalesced"
writer = Writer(answering(lambda nsqd, count: nsqd.sendall(OK)), coalesce=coalesce)
writer.publish("t", b"first")
called.clear()
def start(count):
    threads = [threading.Thread(target=lambda: [writer.publish("t", b"x") for _ in range(count)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    return threads
for thread in start(200):
    thread.join()
stats = writer.stats()
assert stats.published == 801, stats
before = stats.connections[0]
if not coalesce:
    assert before.bytes_in >= 8010 and before.bytes_out >= 801 * len("PUB t\\n....x"), before
connection, limit = next(iter(writer._core.destinations.values())).connection, time.monotonic() + 20
connection._sender = "another"
threads = start(1)
while len(connection._queue) < 4:
    assert time.monotonic() < limit
    time.sleep(0.01)
connection._sender = None
writer.publish("t", b"last")
for thread in threads:
    thread.join()
stats = writer.stats()
assert (stats.published, stats.pending) == (806, 0), stats
assert stats.connections[0].bytes_in - before.bytes_in == (10 if coalesce else 50), stats
assert "publish" in called
print(*(called & {"_begin", "_send_for_all", "_read_for_all", "_follow", "_quit", "take_oks", "settle"}))
"""


@pytest.mark.program
@pytest.mark.skipif(not carrying.is_accelerated, reason="Python goes the long way")
@pytest.mark.parametrize("kind", ["plain", "coalesced"])
def test_plain_publishes_of_threads_are_carried_by_c(kind: str) -> None:
    done = python(SHORT, kind, limit=60.0)
    assert (done.returncode, done.stdout.split()) == (0, []), done


#: The server answers four publishes at once, and the others when the four have ended, or have come on; where the others
#: are busy, it always owes them one answer until then.
TURNS = """
import sys, threading
from gnsq_lite import Writer
from tests.answering import OK, answering
case = sys.argv[1]
others = {"nobody": 0, "busy": 2}.get(case, 1)
come_on = {"one comes on": 1, "all come on": 4}.get(case, 0)
arrived, ended, lock, owed = threading.Semaphore(0), threading.Semaphore(0), threading.Lock(), 0
def answer(nsqd, count):
    global owed
    arrived.release()
    with lock:
        owed += 1
        if count <= 2 or over or (case == "busy" and owed > 1 and count > 6 + others):
            nsqd.sendall(OK)
            owed -= 1
        elif count == 6 + others:
            nsqd.sendall(OK * 4)
            owed -= 4
            threading.Thread(target=answer_the_others, args=(nsqd,)).start()
def answer_the_others(nsqd):
    global owed, over
    for _ in range(4):
        ended.acquire()
    for _ in range(come_on):
        arrived.acquire()
    with lock:
        over = True
        nsqd.sendall(OK * owed)
over = False
writer = Writer(answering(answer), publish_timeout=20)
writer.publish("t", b"first")
for _ in range(2):
    arrived.acquire()
def publish():
    writer.publish("t", b"x")
    ended.release()
    if threading.current_thread() in threads[:come_on]:
        writer.publish("t", b"y")
def last():
    writer.publish("t", b"z")
    while case == "busy" and not over:
        writer.publish("t", b"z")
threads = [threading.Thread(target=publish) for _ in range(4)] + [threading.Thread(target=last) for _ in range(others)]
for thread in threads:
    thread.start()
    arrived.acquire()
for thread in threads:
    thread.join(15)
    assert not thread.is_alive()
assert writer.stats().unknown == writer.stats().failed == writer.stats().pending == 0
writer.close()
"""


@pytest.mark.program
@pytest.mark.rule("PUB-2")
@pytest.mark.parametrize("case", ["somebody", "nobody", "one comes on", "all come on", "busy"])
def test_who_was_answered_goes_on_whatever_the_others_do(case: str) -> None:
    """Whether or not somebody still reads, and although who has its turn publishes no more, or only once more."""
    done = python(TURNS, case, limit=60.0)
    assert done.returncode == 0, done


STUCK = """
import sys, threading, time
from gnsq_lite import Writer
from tests.answering import OK, answering
go = threading.Event()
def answer(nsqd, count):
    if count > 2:
        go.wait(20)
    nsqd.sendall(OK)
writer = Writer(answering(answer), publish_timeout=20)
writer.publish("t", b"first")
ok = []
def publish():
    for _ in range(2):
        writer.publish("t", b"x" * 1_000_000)
        ok.append(1)
threads = [threading.Thread(target=publish) for _ in range(24)]
for thread in threads:
    thread.start()
limit = time.monotonic() + 20
connection = next(iter(writer._core.destinations.values())).connection
while connection._stream.stuck_since is None:
    assert time.monotonic() < limit
    time.sleep(0.01)
go.set()
for thread in threads:
    thread.join(20)
assert len(ok) == 48
limit = time.monotonic() + 20
while connection.traffic()[1] <= 48_000_000:  # who writes may be answered before it has counted
    assert time.monotonic() < limit
    time.sleep(0.01)
writer.close()
"""


@pytest.mark.program
@pytest.mark.rule("PUB-2")
def test_what_nsqd_does_not_take_at_once_is_written_by_the_loop() -> None:
    done = python(STUCK, limit=90.0)
    assert done.returncode == 0, done


#: Each child is forked while threads of its parent wait for their turn, and has threads of its own that publish once.
FORKS = """
import os, sys, threading, time
from gnsq_lite import Writer
writer = Writer(sys.argv[1], publish_timeout=20)
def publish_on():
    while True:
        writer.publish(sys.argv[2], b"x")
for _ in range(20):
    threading.Thread(target=publish_on, daemon=True).start()
def publish_once(together):
    together.wait()
    writer.publish(sys.argv[2], b"x")
def run_child():
    writer.publish(sys.argv[2], b"x")
    together = threading.Barrier(8)
    threads = [threading.Thread(target=publish_once, args=(together,), daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    limit = time.monotonic() + 10
    for thread in threads:
        thread.join(max(0, limit - time.monotonic()))
    os._exit(any(thread.is_alive() for thread in threads))
for _ in range(40):
    time.sleep(0.003)
    child = os.fork()
    if child == 0:
        run_child()
    if os.waitpid(child, 0)[1]:
        os._exit(1)
os._exit(0)
"""


@pytest.mark.program
@pytest.mark.rule("PUB-1")
def test_no_thread_of_a_forked_child_waits_for_the_turn_of_one_of_its_parent(broker: ServerHandle, topic: str) -> None:
    done = python(FORKS, broker.tcp_address, topic, limit=90.0)
    assert done.returncode == 0, done


#: A signal comes while the main thread reads for all, or waits in line; the server answers once the handler has begun,
#: the thread that is before the main one in line first.
SIGNALLED = """
import os, signal, sys, threading, time
from gnsq_lite import Writer
from tests.answering import OK, answering
role, act = sys.argv[1:]
begun, answered, before = threading.Event(), threading.Event(), int(role == "waits")
def answer(nsqd, count):
    if count <= 2:
        nsqd.sendall(OK)
    if count == 3 + before:
        threading.Thread(target=answer_all, args=(nsqd,)).start()
    if count == 4 + before:
        begun.set()
def answer_all(nsqd):
    time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGUSR1)
    begun.wait()
    if before:
        nsqd.sendall(OK)
        answered.wait()
    nsqd.sendall(OK * (2 if act == "publish" else 1))
writer = Writer(answering(answer), publish_timeout=20)
writer.publish("t", b"first")
def handle(number, frame):
    if act == "publish":
        return writer.publish("t", b"handler's")
    begun.set()
    {"flush": writer.flush, "close": writer.close}[act]()
signal.signal(signal.SIGUSR1, handle)
def publish():
    writer.publish("t", b"before")
    answered.set()
if before:
    threading.Thread(target=publish, daemon=True).start()
    while not writer.stats().pending:
        time.sleep(0.01)
began = time.monotonic()
writer.publish("t", b"main")
took = time.monotonic() - began
print(took, flush=True)
os._exit(took > 10)
"""


@pytest.mark.program
@pytest.mark.rule("PUB-2")
@pytest.mark.parametrize("role", ["reads", "waits"])
@pytest.mark.parametrize("act", ["publish", "flush", "close"])
@pytest.mark.skipif(not carrying.is_accelerated, reason="Python's own waits handle signals where they are")
def test_a_signal_handler_may_use_the_writer_that_it_interrupted(role: str, act: str) -> None:
    done = python(SIGNALLED, role, act, limit=60.0)
    assert done.returncode == 0, done
