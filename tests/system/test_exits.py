"""Programs that exit without close() requeue messages in flight at once, and publishes get their outcome."""

from __future__ import annotations

import time

import pytest

from tests.programs import python
from tests.servers import ServerHandle

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
    Writer(["127.0.0.1:1", "localhost:1"]).publish_nowait("t", b"x")
del writer
if how == "raise":
    raise RuntimeError("as asked")
if how == "exit":
    sys.exit(5)
"""


@pytest.mark.rule("CLOSE-1")
@pytest.mark.parametrize(
    ("mode", "pool", "how", "code"),
    [
        *((mode, pool, "end", 0) for mode in ("plain", "patched") for pool in ("thread", "greenlet")),
        *(("plain", "thread", how, code) for how, code in (("exit", 5), ("unreachable", 0))),
        *(("patched", "greenlet", how, code) for how, code in (("raise", 1), ("unreachable", 0))),
    ],
)
def test_an_exit_without_close_requeues_messages_at_once_and_sends_publishes(
    broker: ServerHandle, topic: str, mode: str, pool: str, how: str, code: int
) -> None:
    broker.prepare(f"{topic}_read", "ch")
    began = time.monotonic()
    done = python(ENDS, mode, pool, how, broker.tcp_address, topic)
    assert done.returncode == code, done
    assert time.monotonic() - began < 30.0  # the handlers would take 60 s
    assert int(broker.stats(topic)["depth"]) == 50
    channel = broker.stats(f"{topic}_read")["channels"][0]
    assert (int(channel["depth"]), int(channel["in_flight_count"])) == (10, 0), channel
    lost = done.stderr.count(b"Python exits: 1 published messages have no outcome and may be lost")
    assert lost == (how == "unreachable"), done.stderr


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
def test_an_exit_while_a_reader_closes_requeues_the_messages_of_running_handlers(
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
def test_a_handler_that_blocks_the_io_thread_does_not_block_the_exit(broker: ServerHandle, topic: str) -> None:
    done = python(BLOCKED, broker.tcp_address, topic)
    assert done.returncode == 0, done
    assert b"something blocks the I/O loop" in done.stderr


STOPPED = """
import atexit, sys, threading, time

@atexit.register
def runs_last():
    names = [thread.name for thread in threading.enumerate()]
    print([name for name in names if name.startswith("gnsq_lite-io")], time.monotonic() - began < 10.0)

from gnsq_lite import Reader, Writer
address, topic = sys.argv[1:]
writer = Writer(address)
reader = Reader(topic, "ch", lambda message: None, nsqd_tcp_addresses=address)
reader.start(block=False)
writer.publish_nowait(topic, b"x").result()
while not reader.stats().finished or reader.stats().handlers_running:
    time.sleep(0.01)  # the exit would log a running handler
print([thread.name for thread in threading.enumerate() if thread.name.startswith("gnsq_lite-io")])
began = time.monotonic()
"""


@pytest.mark.rule("CLOSE-1")
def test_the_io_thread_has_ended_before_python_ends(broker: ServerHandle, topic: str) -> None:
    done = python(STOPPED, broker.tcp_address, topic)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == b"['gnsq_lite-io']\n[] True\n"


LEAVES_LATE = """
from gevent import monkey
monkey.patch_all()
import os, sys, time
from gnsq_lite import Reader, Writer
from gnsq_lite.net import io_thread
address, topic = sys.argv[1:]
destroy, sleep = io_thread.destroy_unused_hub, monkey.get_original("time", "sleep")
def destroy_late():
    sleep(0.3)
    destroy()
    os.write(1, b"thread has left")
io_thread.destroy_unused_hub = destroy_late
def handle(message):
    time.sleep(0.001)
    reader.close(wait=False)
reader = Reader(topic, "ch", handle, nsqd_tcp_addresses=address, handler_pool="thread", concurrency=1)
Writer(address).publish(topic, b"x")
reader.start()
"""


@pytest.mark.rule("CLOSE-1")
def test_the_exit_of_a_patched_process_waits_for_ending_handler_threads(broker: ServerHandle, topic: str) -> None:
    # Without the wait, 3 of 100 exits crash: a thread waits for the GIL in its hub while Python ends.
    done = python(LEAVES_LATE, broker.tcp_address, topic)
    assert (done.returncode, done.stdout) == (0, b"thread has left")


CLOSES_FIRST = """
import atexit, sys
from gnsq_lite import Writer
address, topic = sys.argv[1:]
writer = Writer(address)
@atexit.register
def publish_the_rest():
    writer.publish(topic, b"y")
    writer.close()
writer.publish(topic, b"x")
"""


@pytest.mark.rule("PUB-2")
def test_an_atexit_function_of_the_program_can_publish(broker: ServerHandle, topic: str) -> None:
    done = python(CLOSES_FIRST, broker.tcp_address, topic)
    assert (done.returncode, done.stderr) == (0, b"")
    assert int(broker.stats(topic)["depth"]) == 2


RUNS_GREENLETS = """
import os, sys, time, types
import gevent
from gnsq_lite import Reader, Writer
address, topic = sys.argv[1:]
begun = []

def handle(message):
    begun.append(message)
    while True:
        gevent.joinall([gevent.spawn(gevent.sleep, 0.0001) for _ in range(5)])

class SlowToFinalize:
    def __del__(self, sleep=time.sleep, write=os.write):
        sleep(0.5)
        write(1, b"finalized")

# Python deletes the object of a module late: when no other thread can have the GIL any more.
sys.modules["slow"] = types.ModuleType("slow")
sys.modules["slow"].object = SlowToFinalize()
Reader(topic, "ch", handle, nsqd_tcp_addresses=address, handler_pool="thread", concurrency=4,
       max_in_flight=4).start(block=False)
Writer(address).multipublish(topic, [b"x"] * 4)
while len(begun) < 4:
    time.sleep(0.01)
"""


@pytest.mark.rule("CLOSE-1")
def test_a_slow_exit_while_handler_threads_run_greenlets_does_not_crash(broker: ServerHandle, topic: str) -> None:
    for _ in range(6):  # without parked hubs, half of these exits crash
        done = python(RUNS_GREENLETS, broker.tcp_address, topic)
        assert (done.returncode, done.stdout) == (0, b"finalized"), done
