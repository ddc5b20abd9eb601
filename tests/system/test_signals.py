"""How a Reader that blocks its program ends: the first signal drains, the second ends at once."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.programs import running, wait_for
from tests.servers import ServerHandle

pytestmark = pytest.mark.program

PROGRAM = """
import sys, threading, time
if sys.argv[2] == "patched":
    from gevent import monkey; monkey.patch_all()
from gnsq_lite import Reader

def handle(message):
    if sys.argv[2] == "without another thread":
        threading.stack_size(1 << 45)
    print("begun", flush=True)
    ends = time.monotonic() + float(sys.argv[3])
    while time.monotonic() < ends:
        time.sleep(0.05)
    print("done", flush=True)

Reader("t", "ch", handle, nsqd_tcp_addresses=sys.argv[1]).start()
print("returned", flush=True)
"""


@pytest.mark.rule("CLOSE-1")
@pytest.mark.parametrize(
    ("kind", "number"),
    [
        ("plain", signal.SIGTERM),
        ("patched", signal.SIGTERM),
        ("patched", signal.SIGINT),
        ("without another thread", signal.SIGINT),
    ],
)
def test_the_first_signal_lets_the_handler_finish(
    broker: ServerHandle, tmp_path: Path, kind: str, number: signal.Signals
) -> None:
    broker.prepare("t", "ch")
    broker.publish("t", b"x")
    with running(["-c", PROGRAM, broker.tcp_address, kind, "0.5"], tmp_path) as program:
        program.says("begun")
        program.signal(number)
        assert program.ends() == 0
        assert program.output.count("begun") == program.output.count("done") == 1
        assert "returned" in program.output
        assert "Traceback" not in program.output
    stats = broker.stats("t", "ch")
    assert (stats["depth"], stats["in_flight_count"], stats["requeue_count"]) == (0, 0, 0)


@pytest.mark.rule("CLOSE-1")
@pytest.mark.parametrize(("kind", "number"), [("plain", signal.SIGINT), ("patched", signal.SIGTERM)])
def test_the_second_signal_ends_it_at_once_and_the_message_goes_back(
    broker: ServerHandle, tmp_path: Path, kind: str, number: signal.Signals
) -> None:
    broker.prepare("t", "ch")
    broker.publish("t", b"x")
    with running(["-c", PROGRAM, broker.tcp_address, kind, "60"], tmp_path) as program:
        program.says("begun")
        program.signal(number)
        time.sleep(0.3)
        assert program.process.poll() is None  # it drains
        program.signal(number)
        assert program.ends() == 0  # it fails after 40 s; the handler would take 60 s
        assert "done" not in program.output
    # by REQ 0: a connection that merely broke would count no requeue
    wait_for(lambda: broker.stats("t", "ch")["depth"] == 1)
    assert broker.stats("t", "ch")["requeue_count"] == 1


EARLY = """
import os, sys
if sys.argv[2] == "patched":
    from gevent import monkey; monkey.patch_all()
from gnsq_lite import Reader
from gnsq_lite.consume.consumer import Consumer
start = Consumer.start
def start_and_signal(self):
    start(self)
    os.kill(os.getpid(), int(sys.argv[3]))
Consumer.start = start_and_signal
reader = Reader("t", "ch", print, nsqd_tcp_addresses=sys.argv[1])
reader.start()
print(reader.stats().state, flush=True)
"""


@pytest.mark.rule("CLOSE-1")
@pytest.mark.parametrize(("kind", "number"), [("plain", signal.SIGINT), ("patched", signal.SIGTERM)])
def test_a_signal_that_comes_while_it_starts_drains_as_well(
    broker: ServerHandle, tmp_path: Path, kind: str, number: signal.Signals
) -> None:
    with running(["-c", EARLY, broker.tcp_address, kind, str(int(number))], tmp_path) as program:
        assert program.ends() == 0, program.output
        assert program.output == "closed\n"


CLOSES_ON_SIGTERM = """
import signal, sys, time
address, kind, pool = sys.argv[1:]
if kind == "patched":
    from gevent import monkey; monkey.patch_all()
import gevent
from gnsq_lite import Reader

sleep = gevent.sleep if pool == "greenlet" else time.sleep

def handle(message):
    print("begun", flush=True)
    ends = time.monotonic() + 0.3
    while time.monotonic() < ends:  # waits, and works: the signal meets either
        sleep(0.005)
        sum(range(5000))
    print("done", flush=True)

options = {} if pool == "inline" else {"concurrency": 3}
reader = Reader("t", "ch", handle, nsqd_tcp_addresses=address, handler_pool=pool, max_in_flight=5, **options)
signal.signal(signal.SIGTERM, lambda *_: reader.close())
reader.start()
print("returned", reader.stats().state, flush=True)
"""


@pytest.mark.rule("CLOSE-1")
@pytest.mark.parametrize(
    ("kind", "pool"), [("plain", "thread"), ("plain", "inline"), ("patched", "greenlet"), ("patched", "thread")]
)
def test_a_program_whose_sigterm_handler_closes_the_reader_ends_in_order(
    broker: ServerHandle, tmp_path: Path, kind: str, pool: str
) -> None:
    broker.prepare("t", "ch")
    broker.publish("t", *[b"%d" % n for n in range(100)])
    (tmp_path / "closes.py").write_text(CLOSES_ON_SIGTERM)
    with running(["-W", "ignore", "closes.py", broker.tcp_address, kind, pool], tmp_path) as program:
        program.says("begun", 4)
        program.signal(signal.SIGTERM)
        began = time.monotonic()
        assert program.ends() == 0, program.output
        assert time.monotonic() - began < 10.0
        assert program.output.endswith("returned closed\n")
        assert program.output.count("begun") == program.output.count("done") < 20
        handled = program.output.count("done")
    wait_for(lambda: broker.stats("t", "ch")["depth"] == 100 - handled)
    assert broker.stats("t", "ch")["in_flight_count"] == 0


SEVERAL = """
import sys
mode, how, address = sys.argv[1:]
if mode == "patched":
    from gevent import monkey; monkey.patch_all()
import logging, time
logging.basicConfig(level="INFO")
from gnsq_lite import Reader

def handle(message):
    print("begun", flush=True)
    time.sleep(0.6)
    print("done", flush=True)

def make(channel):
    return Reader("t", channel, handle, nsqd_tcp_addresses=address)

make("b").start(block=False)  # the program keeps no reference
if how == "start":
    make("a").start()
elif how == "with":
    with make("a") as reader:
        reader.join()
else:
    reader = make("a")
    reader.start(block=False)
    while not reader.join(5.0):
        pass
print("returned", flush=True)
"""


@pytest.mark.rule("CLOSE-1")
@pytest.mark.parametrize(("kind", "how"), [("plain", "start"), ("plain", "join"), ("patched", "with")])
def test_sigterm_drains_every_reader_of_the_program(broker: ServerHandle, tmp_path: Path, kind: str, how: str) -> None:
    broker.prepare("t", "a", "b")
    broker.publish("t", b"x")
    with running(["-c", SEVERAL, kind, how, broker.tcp_address], tmp_path) as program:
        program.says("begun", times=2)
        program.signal(signal.SIGTERM)
        assert program.ends() == 0, program.output
        assert program.output.count("done") == 2
        assert "returned" in program.output
    for channel in "ab":
        stats = broker.stats("t", channel)
        assert (stats["depth"], stats["in_flight_count"], stats["requeue_count"]) == (0, 0, 0)


@pytest.mark.rule("CLOSE-1")
def test_a_second_sigterm_ends_every_reader_at_once(broker: ServerHandle, tmp_path: Path) -> None:
    broker.prepare("t", "a", "b")
    broker.publish("t", b"x")
    code = SEVERAL.replace("time.sleep(0.6)", "time.sleep(60.0)")
    with running(["-c", code, "plain", "with", broker.tcp_address], tmp_path) as program:
        program.says("begun", times=2)
        program.signal(signal.SIGTERM)
        program.says("closing")
        program.signal(signal.SIGTERM)
        assert program.ends() == 0, program.output
    for channel in "ab":
        wait_for(lambda: broker.stats("t", channel)["depth"] == 1)  # noqa: B023
        assert broker.stats("t", channel)["requeue_count"] == 1
