"""Interpreters that end without close(): what is in flight goes back at once, what was published goes out."""

from __future__ import annotations

import time

import pytest

from tests.servers import ServerHandle
from tests.system.test_process_faults import python

pytestmark = pytest.mark.program

ENDS = """
import sys
mode, pool, how, address, topic = sys.argv[1:]
if mode == "patched":
    from gevent import monkey
    monkey.patch_all()
import time, warnings
warnings.simplefilter("ignore", RuntimeWarning)
import gevent
from gnsq_lite import Reader, Writer
seen = []
def handle(message):
    seen.append(message)
    (gevent.sleep if pool == "greenlet" else time.sleep)(60)
for _ in range(2):
    Reader(topic + "_read", "ch", handle, nsqd_tcp_addresses=address, max_in_flight=5, concurrency=1,
           handler_pool=pool).start(block=False)
writer = Writer(address)
writer.multipublish(topic + "_read", [b"x"] * 10)
while len(seen) < 2:
    time.sleep(0.01)
for _ in range(50):
    writer.publish_nowait(topic, b"x")
if how == "unreachable":
    Writer("127.0.0.1:1").publish_nowait("t", b"x")
del writer
if how == "raise":
    raise RuntimeError("as asked")
if how == "exit":
    sys.exit(5)
"""


@pytest.mark.rule("CLOSE-1")
@pytest.mark.parametrize(("how", "code"), [("end", 0), ("raise", 1), ("exit", 5), ("unreachable", 0)])
@pytest.mark.parametrize("pool", ["thread", "greenlet"])
@pytest.mark.parametrize("mode", ["plain", "patched"])
def test_an_interpreter_that_ends_leaves_nothing_to_nsqds_time_out(
    broker: ServerHandle, topic: str, mode: str, pool: str, how: str, code: int
) -> None:
    broker.prepare(f"{topic}_read", "ch")
    began = time.monotonic()
    done = python(ENDS, mode, pool, how, broker.tcp_address, topic)
    assert done.returncode == code, done
    assert time.monotonic() - began < 30.0  # and not the handlers' sixty
    assert int(broker.stats(topic)["depth"]) == 50
    channel = broker.stats(f"{topic}_read")["channels"][0]
    assert (int(channel["depth"]), int(channel["in_flight_count"])) == (10, 0), channel
    told = [line for line in done.stderr.splitlines() if b"the interpreter exits" in line]
    assert len(told) == (how == "unreachable"), done.stderr
    assert all(b"close(): messages published without an outcome, possibly lost: 1" in line for line in told), told


CLOSES = """
import sys
mode, address, topic = sys.argv[1:]
if mode == "patched":
    from gevent import monkey
    monkey.patch_all()
import time
from gnsq_lite import Reader
begun = []
def handle(message):
    begun.append(message)
    time.sleep(60)
reader = Reader(topic, "ch", handle, nsqd_tcp_addresses=address, max_in_flight=5, concurrency=1)
reader.start(block=False)
while not begun or reader.stats().in_flight < 5:
    time.sleep(0.01)
reader.close(wait=False)
time.sleep(0.2)  # CLS goes out
"""


@pytest.mark.rule("CLOSE-1")
@pytest.mark.parametrize("mode", ["plain", "patched"])
def test_an_exit_while_a_reader_closes_sends_back_the_messages_of_running_handlers(
    broker: ServerHandle, topic: str, mode: str
) -> None:
    broker.prepare(topic, "ch")
    broker.publish(topic, *[b"x"] * 10)
    done = python(CLOSES, mode, broker.tcp_address, topic)
    assert done.returncode == 0, done
    channel = broker.stats(topic)["channels"][0]
    assert (int(channel["depth"]), int(channel["in_flight_count"])) == (10, 0), channel


BLOCKED = """
import sys, time
from gnsq_lite import Reader, Writer
address, topic = sys.argv[1:]
seen = []
reader = Reader(topic, "ch", lambda message: (seen.append(message), time.sleep(60)),
                nsqd_tcp_addresses=address, handler_pool="inline")
Writer(address).publish(topic, b"x")
reader.start(block=False)
while not seen:
    time.sleep(0.01)
"""


@pytest.mark.rule("CLOSE-1")
def test_a_handler_that_blocks_the_loop_keeps_no_interpreter(broker: ServerHandle, topic: str) -> None:
    done = python(BLOCKED, broker.tcp_address, topic)
    assert done.returncode == 0, done
    assert b"blocks the I/O loop" in done.stderr


CHILD = """
import sys
mode, when, address, topic = sys.argv[1:]
if mode == "patched":
    from gevent import monkey
    monkey.patch_all()
import multiprocessing, threading, time
from gnsq_lite import Reader, Writer
seen = []
def handle(message):
    seen.append(message)
    time.sleep(60)
def use():
    Reader(topic + "_read", "ch", handle, nsqd_tcp_addresses=address, max_in_flight=5, concurrency=1).start(block=False)
    while not seen:
        time.sleep(0.01)
    writer = Writer(address)
    for _ in range(50):
        writer.publish_nowait(topic, b"x")
def use_later():
    time.sleep(0.2)
    use()
def child():
    if when == "later":
        threading.Thread(target=use_later).start()
    else:
        use()
    if when == "first":
        threading.Thread(target=use_later).start()
    sys.exit(5)
with Writer(address) as writer:
    writer.multipublish(topic + "_read", [b"x"] * 10)
process = multiprocessing.get_context("fork").Process(target=child)
process.start()
process.join()
sys.exit(process.exitcode)
"""


@pytest.mark.rule("CLOSE-1")
@pytest.mark.rule("PUB-2")
@pytest.mark.parametrize(("when", "count"), [("only", 50), ("first", 100), ("later", 50)])
@pytest.mark.parametrize("mode", ["plain", "patched"])
def test_a_child_of_multiprocessing_leaves_as_an_interpreter_does_and_after_the_threads_it_waits_for(
    broker: ServerHandle, topic: str, mode: str, when: str, count: int
) -> None:
    broker.prepare(f"{topic}_read", "ch")
    done = python(CHILD, mode, when, broker.tcp_address, topic)
    assert (done.returncode, done.stderr) == (5, b"")
    assert int(broker.stats(topic)["depth"]) == count
    channel = broker.stats(f"{topic}_read")["channels"][0]
    assert (int(channel["depth"]), int(channel["in_flight_count"])) == (10, 0), channel


#: Garbage is collected at each chance, with finalizers that let other threads run, while threads begin and end.
COLLECTED = """
import faulthandler, gc, threading, time
from gnsq_lite.net.os_threads import living_threads, start_native_thread
faulthandler.dump_traceback_later(15, exit=True)
class Cycle:
    def __init__(self):
        self.itself = self
    def __del__(self):
        time.sleep(0.0001)
ends = time.monotonic() + 2
def churn():
    while time.monotonic() < ends:
        start_native_thread("short", lambda: None)
gc.set_threshold(2, 1, 1)
threading.Thread(target=churn).start()
while time.monotonic() < ends:
    Cycle()
    assert threading.get_ident() in living_threads()
assert gc.isenabled()
gc.disable()
living_threads()
assert not gc.isenabled()
"""


def test_a_look_at_the_threads_is_not_hung_by_a_garbage_collection() -> None:
    done = python(COLLECTED)
    assert done.returncode == 0, done.stderr
