"""A thread that is interrupted in the middle of a publish, or dies there, holds up nobody and loses nothing."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import gevent
import pytest
from gevent import monkey

from gnsq_lite import Writer
from gnsq_lite.publish.pipelined import STALE
from tests.certs import Certificates
from tests.servers import ServerHandle
from tests.system.test_plain_threads import stored
from tests.system.test_process_faults import python
from tests.system.test_writer import QUICK, depth, wait_for

#: A greenlet hands nothing over: what is interrupted there is not there.
PLAIN = pytest.mark.skipif(monkey.is_module_patched("socket"), reason="greenlets publish in the loop's own thread")

INTERRUPTED = """
import os, random, signal, sys, threading, time
from gnsq_lite import Writer, errors
from tests.wrapped import options
address, topic, kind, ca = sys.argv[1:]
writer = Writer(address, publish_timeout=20, reconnect_delay=0.05, max_reconnect_delay=0.2, **options(kind, ca))
writer.publish(topic, b"first")
main_ok, ok, failed, stop, ready = [], [], [], False, threading.Event()
def others(number):
    count = 0
    while not stop:
        count += 1
        body = b"%d-%d" % (number, count)
        try:
            writer.publish(topic, body)
            ok.append(body)
        except errors.OutcomeUnknown as error:
            failed.append(error)
def interrupt():
    chance = random.Random(1)
    while not stop:
        if ready.wait(0.1):  # once each time: who is interrupted is to catch it
            ready.clear()
            time.sleep(chance.random() * 0.004)
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
threads = [threading.Thread(target=others, args=(number,)) for number in range(int(os.environ["OTHERS"]))]
for thread in threads:
    thread.start()
interrupter = threading.Thread(target=interrupt)
interrupts = 0
interrupter.start()
count = 0
while interrupts < 300:
    try:
        ready.set()
        while True:
            count += 1
            body = b"main-%d" % count
            try:
                writer.publish(topic, body)
            except errors.OutcomeUnknown as error:
                failed.append(error)
            else:
                main_ok.append(body)
    except KeyboardInterrupt:
        interrupts += 1
while True:
    try:
        stop = True
        interrupter.join()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        break
    except KeyboardInterrupt:
        pass
for thread in threads:
    thread.join()
writer.publish(topic, b"last", timeout=10)
writer.flush()
assert writer.stats().pending == 0
writer.close()
print(len(failed), file=sys.stderr)
print(*(body.decode() for body in main_ok + ok), sep=" ")
"""


@pytest.mark.program
@pytest.mark.rule("PUB-2")
@pytest.mark.parametrize("others", [0, 4])
@pytest.mark.parametrize("kind", ["plain", "coalesced", "tls", "snappy", "tls+deflate"])
def test_a_publish_may_be_interrupted_anywhere(
    secured: ServerHandle, certs: Certificates, topic: str, others: int, kind: str
) -> None:
    env = {**os.environ, "OTHERS": str(others)}
    done = python(INTERRUPTED, secured.tcp_address, topic, kind, certs.ca, env=env, limit=120.0)
    assert done.returncode == 0, done.stderr
    seen = stored(secured, topic)
    assert set(done.stdout.split()) - set(seen) == set()
    assert max(seen.values()) == 1


KILLED = """
import ctypes, sys, threading, time
from gnsq_lite import Writer, errors
from tests.wrapped import options
address, topic, kind, ca = sys.argv[1:]
writer = Writer(address, publish_timeout=20, reconnect_delay=0.05, max_reconnect_delay=0.2, **options(kind, ca))
writer.publish(topic, b"first")
class Killed(BaseException):
    pass
ok, stop = [], False
def victim():
    try:
        while True:
            writer.publish(topic, b"victim")
    except Killed:
        pass
def others():
    while not stop:
        try:
            writer.publish(topic, b"x")
            ok.append(1)
        except errors.OutcomeUnknown:
            pass
threads = [threading.Thread(target=others) for _ in range(4)]
for thread in threads:
    thread.start()
for _ in range(50):
    thread = threading.Thread(target=victim)
    thread.start()
    time.sleep(0.005)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Killed))
    thread.join()
before = len(ok)
while len(ok) < before + 100:
    time.sleep(0.01)
stop = True
for thread in threads:
    thread.join()
writer.publish(topic, b"last")
writer.close()
"""


WAITING = """
import signal, socket, struct, sys, threading, time
from gnsq_lite import Writer
OK = b"\\0\\0\\0\\6\\0\\0\\0\\0OK"
listener = socket.create_server(("127.0.0.1", 0))
arrived = threading.Semaphore(0)
def serve():
    global nsqd
    nsqd, _ = listener.accept()
    commands = nsqd.makefile("rb")
    commands.read(4)
    for line in commands:
        commands.read(struct.unpack(">I", commands.read(4))[0])
        if line.startswith(b"PUB"):
            arrived.release()
        else:
            nsqd.sendall(OK)
threading.Thread(target=serve, daemon=True).start()
writer = Writer("127.0.0.1:%d" % listener.getsockname()[1], publish_timeout=20)
def answer():
    arrived.acquire()
    nsqd.sendall(OK)
threading.Thread(target=answer).start()
writer.publish("t", b"first")
def publish():
    writer.publish("t", b"x")
def others():
    first.start()
    arrived.acquire()
    go.release()
    arrived.acquire()
    second.start()
    arrived.acquire()
    time.sleep(0.1)
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
go = threading.Semaphore(0)
first, second = threading.Thread(target=publish), threading.Thread(target=publish)
other = threading.Thread(target=others)
other.start()
go.acquire()
try:
    writer.publish("t", b"interrupted")
except KeyboardInterrupt:
    pass
else:
    raise SystemExit("not interrupted")
other.join()
for thread in (first, None, second):
    nsqd.sendall(OK)
    time.sleep(0.1)
    if thread is not None:
        thread.join(5)
        assert not thread.is_alive()
assert writer.stats().published == 4
threading.Thread(target=answer).start()
writer.publish("t", b"last", timeout=5)
writer.close()
"""


@pytest.mark.program
@pytest.mark.rule("PUB-2")
def test_a_thread_that_is_interrupted_in_the_line_is_not_given_the_reading() -> None:
    done = python(WAITING, limit=60.0)
    assert done.returncode == 0, done


@pytest.mark.program
@pytest.mark.rule("PUB-2")
@pytest.mark.parametrize("kind", ["plain", "coalesced", "tls+snappy"])
def test_a_thread_that_dies_in_the_middle_of_a_publish_holds_up_nobody(
    secured: ServerHandle, certs: Certificates, topic: str, kind: str
) -> None:
    done = python(KILLED, secured.tcp_address, topic, kind, certs.ca, limit=120.0)
    assert done.returncode == 0, done


class Interrupted(BaseException):
    """As KeyboardInterrupt may, anywhere."""


def interrupt_after(function: str, call: str) -> None:
    """Interrupt this thread, once, when *call*, which is written in C, has returned to *function*."""

    def look(frame: Any, event: str, called: Any) -> None:
        if event == "c_return" and (frame.f_code.co_name, called.__name__) == (function, call):
            sys.setprofile(None)
            raise Interrupted

    sys.setprofile(look)


@PLAIN
@pytest.mark.rule("PUB-2")
def test_who_is_interrupted_while_it_hands_a_publish_over_holds_up_none_after_it(
    broker: ServerHandle, topic: str
) -> None:
    gevent.get_hub()  # a thread with one hands over what comes to a connection that was idle
    with Writer(broker.tcp_address, publish_timeout=5.0, **QUICK) as writer:
        writer.publish(topic, b"first")
        time.sleep(10 * STALE)
        interrupt_after("hand_over", "append")
        with pytest.raises(Interrupted):
            writer.publish(topic, b"interrupted")
        writer.flush()
        for number in range(5):
            writer.publish(topic, b"%d" % number)
        wait_for(lambda: writer.stats().pending == 0)
        time.sleep(10 * STALE)
        interrupt_after("hand_over", "append")
        with pytest.raises(Interrupted):
            writer.publish_nowait(topic, b"interrupted")
        wait_for(lambda: writer.stats().published == 8)
    assert depth(broker, topic) == 8


@PLAIN
@pytest.mark.rule("PUB-2")
@pytest.mark.parametrize(("function", "call"), [("_enqueue", "append"), ("put_in_thread", "__exit__")])
def test_who_is_interrupted_while_it_queues_a_publish_holds_up_none_after_it(
    broker: ServerHandle, topic: str, function: str, call: str
) -> None:
    def queue(writer: Writer) -> None:
        for _ in range(10_000):  # until one finds the connection in use
            writer.publish_nowait(topic, b"x")

    with Writer(broker.tcp_address, publish_timeout=5.0, **QUICK) as writer:
        writer.publish(topic, b"first")
        interrupt_after(function, call)
        with pytest.raises(Interrupted):
            queue(writer)
        writer.flush()
        queued = [writer.publish_nowait(topic, b"%d" % number) for number in range(5)]
        assert [publication.result() for publication in queued] == [None] * 5
        assert writer.stats().failed == 0


TORN = """
import sys, time
from gnsq_lite import Writer
from tests.answering import OK, answering
def answer(nsqd, count):
    time.sleep(0.05)
    nsqd.sendall(OK)
writer = Writer(answering(answer), publish_timeout=5, reconnect_delay=0.05, max_pending=1000)
writer.publish("t", b"first")
class Interrupted(BaseException):
    pass
def look(frame, event, called):
    at = (frame, called.__name__) if event == "c_return" else (frame.f_back, frame.f_code.co_name)
    if event in ("call", "c_return") and [at[0] and at[0].f_code.co_name, at[1]] == sys.argv[1:]:
        sys.setprofile(None)
        raise Interrupted
queued = [writer.publish_nowait("t", b"x" * 100) for _ in range(2)]
time.sleep(0.02)
writer._core.loop.call_soon(lambda: time.sleep(0.5))
queued += [writer.publish_nowait("t", b"x" * 100) for _ in range(7)]
sys.setprofile(look)
try:
    writer.publish("t", b"interrupted")
except Interrupted:
    pass
else:
    raise SystemExit("not interrupted")
time.sleep(0.7)
writer.flush()
assert all(publication.done() for publication in queued)
assert writer._core.outcomes.backlog.size == 0
"""


@pytest.mark.program
@pytest.mark.rule("PUB-2")
@pytest.mark.parametrize(("function", "called"), [("take_oks", "settle"), ("_take_queue", "append")])
def test_who_is_interrupted_in_the_middle_of_a_queue_loses_nothing_of_others(function: str, called: str) -> None:
    # C, which would take the queue, is interrupted nowhere in there.
    done = python(TORN, function, called, limit=60.0, env={**os.environ, "GNSQ_LITE_IMPL": "python"})
    assert done.returncode == 0, done


REFUSED = """
import struct, sys, threading, time
from gnsq_lite import Writer
from tests.answering import OK, answering
def answer(nsqd, count):
    if count == 3:
        time.sleep(0.3)
        nsqd.sendall(struct.pack(">II", 19, 1) + b"E_FIN_FAILED no")
        time.sleep(0.3)
    else:
        nsqd.sendall(OK)
writer = Writer(answering(answer), publish_timeout=5, reconnect_delay=0.05, max_pending=1000)
writer.publish("t", b"first")
class Interrupted(BaseException):
    pass
def look(frame, event, called):
    if event == "return" and frame.f_code.co_name == "count_oks":
        sys.setprofile(None)
        raise Interrupted
refused = writer.publish_nowait("t", b"refused")
time.sleep(0.05)
def other():
    time.sleep(0.1)
    try:
        writer.publish("t", b"other")
    except Exception:
        pass
threading.Thread(target=other).start()
threading.Timer(0.2, lambda: writer._core.loop.call_soon(lambda: time.sleep(1))).start()
sys.setprofile(look)
try:
    writer.publish("t", b"interrupted")
except Interrupted:
    pass
else:
    raise SystemExit("not interrupted")
refused.wait(4)
assert refused._error is not None
"""


@pytest.mark.program
@pytest.mark.rule("PUB-2")
def test_who_is_interrupted_with_an_answer_in_hand_has_no_other_answer_taken_for_it() -> None:
    done = python(REFUSED, limit=60.0)
    assert done.returncode == 0, done
