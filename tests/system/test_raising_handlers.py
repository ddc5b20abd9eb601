"""A signal handler that raises anywhere in a monkey-patched process, whose program goes on, leaves nothing broken.

CPython runs signal handlers in whatever greenlet, or callback of the hub, the main thread is in: the library's too.
"""

from __future__ import annotations

import pytest

from tests.conftest import MakeBroker
from tests.servers import ServerHandle
from tests.system.test_process_faults import python

#: One place after the other is struck; after each, the Writer and the Reader work, and each publish has its outcome.
STRUCK = """
from gevent import monkey; monkey.patch_all()
import faulthandler, logging, sys, time
from functools import partial
import gevent
from gnsq_lite import Reader, Writer, errors
from tests.youzan_broker import YouzanBroker
from tests.struck import EachPlace, surviving
faulthandler.dump_traceback_later(90, exit=True)
logging.disable()
address, topic, kind, what, every, share = sys.argv[1:]
where, by_key = {"nsqd_tcp_addresses": address}, {}
if kind in ("led", "ordered"):
    broker = YouzanBroker(nsqds=2, msg_timeout=0.3).start()
    broker.youzan.create_topic(topic, partitions=2, ordered=kind == "ordered")
    where = {"lookupd_http_addresses": broker.lookupd_http_address, "dialect": "youzan", "lookupd_poll_interval": 0.1}
    by_key = {"key": b"a key"}
class Alarm(Exception):
    pass
error = KeyboardInterrupt if what == "interrupt" else Alarm
gevent.get_hub().exception_stream = None  # it prints what is raised in it
handled = set()
def handle(message):
    handled.add(message.body)
    if message.body.endswith(b"w"):
        gevent.sleep(0.001)
    if message.body.endswith(b"f") and message.attempts == 1:
        raise ValueError
soon = {"reconnect_delay": 0.01, "max_reconnect_delay": 0.02}
quick = {"backoff": False, "requeue_delay": 0.0, "handler_pool": "inline" if kind == "inline" else "auto", **soon}
reader = Reader(topic, "ch", handle, max_in_flight=5, ordered=kind == "ordered", **where, **quick)
reader.start(block=False)
writer = Writer(publish_timeout=10, coalesce=kind == "coalesced", **where, **soon)
count, ok = 0, set()
def body(end=b""):
    global count
    count += 1
    return b"%d" % count + end
def publish():
    try:
        writer.publish(topic, body(), **by_key)
    except errors.NSQError:
        pass
def queue():
    for each in map(body, (b"", b"w", b"f")):
        queued.append((each, writer.publish_nowait(topic, each, **by_key)))
def use():
    queue()
    gevent.sleep(0.002)
    queue()
    greenlets = [gevent.spawn(publish) for _ in range(2)]
    writer.publish(topic, body(), **by_key)
    gevent.joinall(greenlets)
    writer.multipublish(topic, [body(), body()], **by_key)
    queue()
    reader.pause()
    reader.set_max_in_flight(6)
    gevent.sleep(0.001)
    reader.set_max_in_flight(5)
    reader.resume()
    writer.flush(5)
    gevent.sleep(0.005)
survived = partial(surviving, (error, errors.OutcomeUnknown))
def until(condition):
    ends = time.monotonic() + 8
    while not condition():
        assert time.monotonic() < ends
        survived(lambda: gevent.sleep(0.002))
def works():
    survived(reader.resume)
    last, began = body(), time.monotonic()
    survived(lambda: writer.publish(topic, last, timeout=5, **by_key))
    assert time.monotonic() < began + 4.5  # else that has timed out, and was done again
    until(lambda: all(publication.done() for _, publication in queued))
    ok.update(body for body, publication in queued if publication._error is None)
    survived(lambda: writer.flush(5))
    assert writer.stats().pending == writer._core.outcomes.backlog.size == 0
    until(lambda: last in handled)
places = EachPlace(error, handle.__code__, every=int(every), share=int(share))
strikes, unstruck, queued = 0, 0, []
until(lambda: len(reader.stats().connections) == (2 if by_key else 1))
works()
while unstruck < 3:
    try:
        with places:
            use()
    except (error, errors.OutcomeUnknown):
        pass
    strikes, unstruck = strikes + 1, 0 if places.struck else unstruck + 1
    try:
        works()
    except BaseException as failed:
        sys.exit(f"after {places.struck}: {failed!r}")
    queued.clear()
until(lambda: ok <= handled)
until(lambda: not reader.stats().in_flight)
began = time.monotonic()
reader.close()
writer.close()
assert time.monotonic() < began + 5
print(strikes)
"""


@pytest.mark.program
@pytest.mark.rule("PUB-2")
@pytest.mark.parametrize(
    ("kind", "what", "every", "share"),
    [
        ("plain", "interrupt", 4, 0),
        ("coalesced", "alarm", 4, 1),
        pytest.param("plain", "alarm", 1, 0, marks=pytest.mark.slow),
        pytest.param("coalesced", "interrupt", 1, 0, marks=pytest.mark.slow),
        pytest.param("inline", "alarm", 1, 0, marks=pytest.mark.slow),
    ],
)
def test_a_signal_handler_may_raise_anywhere(
    make_broker: MakeBroker, topic: str, kind: str, what: str, every: int, share: int
) -> None:
    broker = make_broker(msg_timeout=0.3)
    done = python(STRUCK, broker.tcp_address, topic, kind, what, str(every), str(share), limit=100.0)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 60


@pytest.mark.program
@pytest.mark.rule("YZ-6")
@pytest.mark.rule("PUB-2")
@pytest.mark.parametrize(
    ("kind", "what", "every", "share"),
    [
        ("ordered", "alarm", 8, 2),
        *(pytest.param("led", "interrupt", 4, share, marks=pytest.mark.slow) for share in range(4)),
        *(pytest.param("ordered", "alarm", 4, share, marks=pytest.mark.slow) for share in range(4)),
    ],
)
def test_it_may_where_partitions_are_led(topic: str, kind: str, what: str, every: int, share: int) -> None:
    done = python(STRUCK, "", topic, kind, what, str(every), str(share), limit=100.0)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 30


#: One place of close() after the other is struck; called again, it closes.
CLOSED = """
from gevent import monkey; monkey.patch_all()
import faulthandler, logging, sys, time
from functools import partial
import gevent
from gnsq_lite import Reader, Writer
from tests.struck import EachPlace, surviving
faulthandler.dump_traceback_later(60, exit=True)
logging.disable()
address, topic = sys.argv[1:]
gevent.get_hub().exception_stream = None  # it prints what is raised in it
def handle(message):
    gevent.sleep(0.001)
def close():
    reader.close(5)
    writer.close(5)
survived = partial(surviving, KeyboardInterrupt)
places, strikes, unstruck = EachPlace(KeyboardInterrupt, handle.__code__, every=2), 0, 0
while unstruck < 3:
    reader = Reader(f"{topic}_{strikes}", "ch", handle, nsqd_tcp_addresses=address, max_in_flight=5)
    reader.start(block=False)
    writer = Writer(address)
    writer.publish(f"{topic}_{strikes}", b"x")
    queued = [writer.publish_nowait(f"{topic}_{strikes}", b"x") for _ in range(5)]
    gevent.sleep(0.004)
    began = time.monotonic()
    try:
        with places:
            close()
    except KeyboardInterrupt:
        pass
    strikes, unstruck = strikes + 1, 0 if places.struck else unstruck + 1
    survived(close)
    survived(lambda: gevent.sleep(0.001))
    done = reader._core.ended.done() and writer._core.ended and all(publication.done() for publication in queued)
    is_open = reader._core.connections or any(each.connection for each in writer._core.destinations.values())
    if is_open or not done or time.monotonic() > began + 4:
        sys.exit(f"after {places.struck}: {reader.stats()} {writer.stats()}")
print(strikes)
"""


@pytest.mark.program
@pytest.mark.rule("CLOSE-1")
def test_a_signal_handler_may_raise_in_the_middle_of_a_close(broker: ServerHandle, topic: str) -> None:
    done = python(CLOSED, broker.tcp_address, topic, limit=100.0)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 60
