"""A signal handler may set flags and call close(wait=False); what it raises ends connections, never the program's work.

CPython runs signal handlers in the main thread, between any two bytecodes: in a monkey-patched process in the library's
greenlets and in callbacks of gevent's hub too.
"""

from __future__ import annotations

from functools import partial

import pytest

from tests.profiles import repeats
from tests.programs import python, wait_for
from tests.servers import ServerHandle

pytestmark = [pytest.mark.program, pytest.mark.rule("PUB-2")]

#: Publishes and consumes while signals raise at random moments, and catches what they raise.
CATCHES = """
import sys
mode, what, kind, address, topic, count = sys.argv[1:]
if mode == "patched":
    from gevent import monkey
    monkey.patch_all()
import faulthandler, logging, os, random, signal, threading, time
import gevent
from gnsq_lite import Reader, Writer, errors
from gnsq_lite.policy import reconnect
reconnect.LONGEST_PAUSE = reconnect.FIRST_PAUSE  # many exceptions follow each other here
faulthandler.dump_traceback_later(100 + int(count) * 0.2, exit=True)
logging.disable()
class Alarm(Exception):
    pass
error = KeyboardInterrupt if what == "interrupt" else Alarm
uncertain = (errors.OutcomeUnknown, errors.NotSent)
if mode == "patched":
    gevent.get_hub().exception_stream = None  # it prints what is raised in greenlets
handled, ok = set(), set()
def handle(message):
    handled.add(message.body)
quick = {"reconnect_delay": 0.01, "max_reconnect_delay": 0.05}
reading = {"max_in_flight": 10, "backoff": False, "requeue_delay": 0.0, "msg_timeout": 1.0, **quick}
reader = Reader(topic, "ch", handle, nsqd_tcp_addresses=address, **reading)
reader.start(block=False)
writer = Writer(address, coalesce=kind == "coalesced", max_connections=20, **quick)
writer.publish(topic, b"first")
is_armed, strikes, number, worst = False, 0, 0, 0.0
def strike(number, frame):
    global is_armed, strikes
    while frame is not None:
        if frame.f_code is handle.__code__:
            return  # a KeyboardInterrupt in a handler ends its Reader
        frame = frame.f_back
    if is_armed:
        is_armed = False
        strikes += 1
        raise error
def publish():
    global number
    number += 1
    body = b"%d" % number
    writer.publish(topic, body)
    ok.add(body)
    return body
def use():
    publish()
    queued = [(body, writer.publish_nowait(topic, body)) for body in (b"%d-%d" % (number, n) for n in range(3))]
    if mode == "patched":
        gevent.joinall([gevent.spawn(publish) for _ in range(3)])
    writer.multipublish(topic, [b"a", b"b"])
    for body, publication in queued:
        publication.result()
        ok.add(body)
def catching(act):  # what is raised in the hub reaches the main greenlet a moment later
    while True:
        try:
            return act()
        except (error, *uncertain):
            pass
def use_until(struck):  # a function: CPython 3.13's "except" misses what is raised as a loop in its "try" goes back
    while strikes < struck:
        use()
signal.signal(signal.SIGALRM, strike)
chance = random.Random(int(count))
before = len(os.listdir("/proc/self/fd"))
while strikes < int(count):
    signal.setitimer(signal.ITIMER_REAL, 0.0001 + chance.random() * 0.004, 0.0013)
    try:
        is_armed = True
        use_until(strikes + 1)
    except (error, *uncertain):
        pass
    is_armed = False
    signal.setitimer(signal.ITIMER_REAL, 0)
    began = time.monotonic()
    last = catching(publish)
    while last not in handled:
        catching(lambda: time.sleep(0.001))
        if time.monotonic() > began + 15:
            sys.exit(f"after {strikes} strikes nothing is consumed: {reader.stats()} {writer.stats()}")
    worst = max(worst, time.monotonic() - began)
ends = time.monotonic() + 20
while not ok <= handled and time.monotonic() < ends:
    time.sleep(0.01)
assert ok <= handled, ok - handled
assert writer.stats().pending == 0
if mode == "plain":
    threads = [threading.Thread(target=publish) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
assert len(os.listdir("/proc/self/fd")) <= before + 25
began = time.monotonic()
reader.close()
writer.close()
assert time.monotonic() < began + 15
print(strikes, len(ok), worst)
"""


LONG = [pytest.mark.slow, pytest.mark.timeout(1200.0)]


@pytest.mark.parametrize(
    ("mode", "what", "kind", "count"),
    [
        ("plain", "interrupt", "plain", 100),
        ("plain", "alarm", "coalesced", 50),
        ("patched", "interrupt", "coalesced", 50),
        ("patched", "alarm", "plain", 100),
        pytest.param("plain", "alarm", "plain", 2000, marks=LONG),
        pytest.param("patched", "interrupt", "plain", 2000, marks=LONG),
    ],
)
def test_a_program_that_catches_what_signal_handlers_raise_goes_on_within_a_second(
    broker: ServerHandle, topic: str, mode: str, what: str, kind: str, count: int
) -> None:
    broker.prepare(topic, "ch")
    done = python(CATCHES, mode, what, kind, broker.tcp_address, topic, str(count), limit=110.0 + 0.2 * count)
    assert done.returncode == 0, done
    strikes, _, worst = done.stdout.split()
    assert int(strikes) == count
    print(f"the longest of {count} pauses took {float(worst):.2f} s")
    assert float(worst) < 10.0  # a second; the program itself ends after 15 s without a message


#: Does not catch what a signal handler raises at a random moment.
ENDS = """
import sys
mode, what, address, topic, seed = sys.argv[1:]
if mode == "patched":
    from gevent import monkey
    monkey.patch_all()
import random, signal, time
from gnsq_lite import Reader, Writer
class Alarm(Exception):
    pass
def strike(number, frame):
    raise KeyboardInterrupt if what == "interrupt" else Alarm
reading = {"max_in_flight": 5, "msg_timeout": 2.0}
reader = Reader(topic + "_read", "ch", lambda message: time.sleep(60), nsqd_tcp_addresses=address, **reading)
reader.start(block=False)
writer = Writer(address)
writer.multipublish(topic + "_read", [b"x"] * 10)
while reader.stats().in_flight < 5:
    time.sleep(0.01)
signal.signal(signal.SIGALRM, strike)
signal.setitimer(signal.ITIMER_REAL, 0.05 + random.Random(int(seed)).random() * 0.01)
while True:
    writer.publish(topic, b"x")
"""


@pytest.mark.rule("CLOSE-1")
@pytest.mark.parametrize("what", ["interrupt", "alarm"])
@pytest.mark.parametrize("mode", ["plain", "patched"])
def test_a_program_that_does_not_catch_it_exits_in_order(
    broker: ServerHandle, topic: str, mode: str, what: str
) -> None:
    for seed in range(repeats(3, 1)):
        broker.prepare(f"{topic}_{seed}_read", "ch")
        done = python(ENDS, mode, what, broker.tcp_address, f"{topic}_{seed}", str(seed))
        assert done.returncode in (1, -2), done  # Python ends by SIGINT after a KeyboardInterrupt
        assert (b"KeyboardInterrupt" if what == "interrupt" else b"Alarm") in done.stderr, done
        assert b"Fatal" not in done.stderr, done
        # At once, unless the exception has ended the connection in the library's code: then after msg_timeout.
        wait_for(partial(all_went_back, broker, f"{topic}_{seed}_read"))


def all_went_back(broker: ServerHandle, topic: str) -> bool:
    channel = broker.stats(topic)["channels"][0]
    return (int(channel["depth"]), int(channel["in_flight_count"])) == (10, 0)


#: Closes from a signal handler, at a random moment, without waiting.
CLOSES = """
import sys
mode, main, address, topic, seed = sys.argv[1:]
if mode == "patched":
    from gevent import monkey
    monkey.patch_all()
import faulthandler, random, signal
from gnsq_lite import Reader, Writer
from gnsq_lite.errors import ClosedError
faulthandler.dump_traceback_later(30, exit=True)
writer = Writer(address)
reader = Reader(topic + "_other", "ch", lambda message: None, nsqd_tcp_addresses=address)
reader.start(block=False)
def end(number, frame):
    reader.close(wait=False)
    writer.close(wait=False)
count = 0
writer.publish(topic, b"first")
signal.signal(signal.SIGTERM, end)
signal.signal(signal.SIGALRM, end)
signal.setitimer(signal.ITIMER_REAL, 0.05 + random.Random(int(seed)).random() * 0.01)
try:
    while True:
        if main == "publish":
            writer.publish(topic, b"x")
        else:
            writer.publish_nowait(topic, b"x").result()
        count += 1
except ClosedError:
    assert reader.join(20)
    writer.close()
    print(count + 1)
"""


@pytest.mark.rule("CLOSE-1")
@pytest.mark.parametrize("main", ["publish", "nowait"])
@pytest.mark.parametrize("mode", ["plain", "patched"])
def test_a_signal_handler_may_close_without_waiting(broker: ServerHandle, topic: str, mode: str, main: str) -> None:
    for seed in range(repeats(3, 1)):
        done = python(CLOSES, mode, main, broker.tcp_address, f"{topic}_{seed}", str(seed))
        assert (done.returncode, done.stderr) == (0, b""), done
        assert int(broker.stats(f"{topic}_{seed}")["depth"]) - int(done.stdout) in (0, 1)
