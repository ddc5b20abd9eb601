"""A signal handler that uses the very Writer it has interrupted never waits for itself; nor does it lose anything."""

from __future__ import annotations

import os

import pytest

from tests.certs import Certificates
from tests.servers import ServerHandle
from tests.system.test_plain_threads import stored
from tests.system.test_process_faults import python

pytestmark = [pytest.mark.program, pytest.mark.rule("PUB-2")]

#: The main thread publishes, and each millisecond a handler comes in between, wherever it is.
STRUCK = """
import sys
mode, kind, main, act, address, topic, ca = sys.argv[1:]
if mode == "patched":
    from gevent import monkey; monkey.patch_all()
import faulthandler, os, signal, threading, time
from gnsq_lite import Reader, Writer
from gnsq_lite.errors import NotSent
from tests.wrapped import options
faulthandler.dump_traceback_later(60, exit=True)
writer = Writer(address, publish_timeout=20, **options(kind, ca))
writer.publish(topic, b"first")
reader = Reader(topic + "_other", "ch", lambda message: None, nsqd_tcp_addresses=address)
reader.start(block=False)
if mode == "plain":  # it keeps the loop and the lock at work
    threading.Thread(target=lambda: [writer.publish(topic, b"other-%d" % i) for i in range(200)]).start()
taken, queued, refused, struck, longest = ["first"], [], 0, 0, 0.0
def publish(how, body):
    if how == "publish":
        writer.publish(topic, body)
        taken.append(body.decode())
    else:
        queued.append((writer.publish_nowait(topic, body), body))
def strike(number, frame):
    global refused, struck, longest, busy
    if busy:
        return
    busy, began = True, time.monotonic()
    struck += 1
    try:
        if act == "stats":
            assert writer.stats().published > reader.stats().received
            reader.set_max_in_flight(1 + struck % 2)
        elif act == "flush":
            writer.flush(0.2)
        else:
            publish(act, b"handler-%d" % struck)
    except (NotSent, TimeoutError) as error:
        assert "would wait for itself" in str(error) or act == "flush", error
        refused += 1
    longest, busy = max(longest, time.monotonic() - began), False
busy = False
signal.signal(signal.SIGALRM, strike)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
ends, number, enough = time.monotonic() + 20, 0, 40 if act == "flush" else 200
while (number < 300 or struck < enough) and time.monotonic() < ends:
    number += 1
    publish(main, b"main-%d" % number)
signal.setitimer(signal.ITIMER_REAL, 0)
for publication, body in queued:
    publication.result()
    taken.append(body.decode())
assert writer.flush() is None and writer._core.outcomes.backlog.size == 0
assert writer.stats().failed == writer.stats().unknown == 0, writer.stats()
assert longest < 10, longest
assert struck >= 20, struck
reader.close()
writer.close()
print(refused, struck, file=sys.stderr)
print(*taken)
"""


@pytest.mark.parametrize("act", ["publish", "nowait", "flush", "stats"])
@pytest.mark.parametrize(
    ("mode", "impl", "kind", "main"),
    [
        ("plain", "auto", "plain", "publish"),
        ("plain", "auto", "plain", "nowait"),
        ("plain", "auto", "tls+snappy", "publish"),
        ("plain", "auto", "coalesced", "publish"),
        ("plain", "python", "plain", "publish"),
        ("patched", "auto", "plain", "publish"),
        ("patched", "auto", "plain", "nowait"),
        ("patched", "auto", "coalesced", "publish"),
        ("patched", "auto", "coalesced", "nowait"),
    ],
)
def test_a_signal_handler_that_uses_the_writer_it_interrupted_comes_back(
    secured: ServerHandle, certs: Certificates, topic: str, mode: str, impl: str, kind: str, main: str, act: str
) -> None:
    env = {**os.environ, "GNSQ_LITE_IMPL": impl}
    done = python(STRUCK, mode, kind, main, act, secured.tcp_address, topic, certs.ca, limit=120.0, env=env)
    assert done.returncode == 0, done.stderr.decode()
    seen = stored(secured, topic)
    assert set(done.stdout.split()) - set(seen) == set()
    assert max(seen.values()) == 1


#: A script that closes its Writer when it is asked to end, wherever it is.
ENDED = """
import sys
mode, kind, main, how, address, topic, ca = sys.argv[1:]
if mode == "patched":
    from gevent import monkey; monkey.patch_all()
import faulthandler, os, random, signal, threading, time
from gnsq_lite import Reader, Writer
from gnsq_lite.errors import ClosedError
from tests.wrapped import options
faulthandler.dump_traceback_later(60, exit=True)
writer = Writer(address, publish_timeout=20, **options(kind, ca))
reader = Reader(topic + "_other", "ch", lambda message: None, nsqd_tcp_addresses=address)
reader.start(block=False)
def end(number, frame):
    reader.close()
    writer.close()
    if how == "exit":
        sys.exit(0)
writer.publish(topic, b"first")
count = 0
signal.signal(signal.SIGALRM, end)
signal.setitimer(signal.ITIMER_REAL, 0.05 + random.random() * 0.01)
try:
    while True:
        count += 1
        if main == "publish":
            writer.publish(topic, b"x")
        else:
            writer.publish_nowait(topic, b"x")
except ClosedError:
    assert how == "return"
    reader.join(30)
    print("closed", count)
"""


@pytest.mark.parametrize("how", ["exit", "return"])
@pytest.mark.parametrize(
    ("mode", "impl", "kind", "main"),
    [
        ("plain", "auto", "plain", "publish"),
        ("plain", "auto", "plain", "nowait"),
        ("plain", "auto", "tls", "publish"),
        ("plain", "python", "plain", "publish"),
        ("patched", "auto", "plain", "publish"),
    ],
)
def test_a_signal_handler_that_closes_the_writer_it_interrupted_ends_the_program(
    secured: ServerHandle, certs: Certificates, topic: str, mode: str, impl: str, kind: str, main: str, how: str
) -> None:
    env = {**os.environ, "GNSQ_LITE_IMPL": impl}
    for _ in range(3):
        done = python(ENDED, mode, kind, main, how, secured.tcp_address, topic, certs.ca, limit=120.0, env=env)
        assert done.returncode == 0, done.stderr.decode()
        assert (b"closed" in done.stdout) == (how == "return")
        assert b"Traceback" not in done.stderr, done.stderr.decode()


#: A handler that comes once the publish is taken, and before it is sent.
CLOSED = """
import sys
from gevent import monkey; monkey.patch_all()
from gnsq_lite import Writer
from gnsq_lite.errors import ClosedError
writer = Writer(sys.argv[1])
writer.publish(sys.argv[2], b"x")
send = writer._core._send
def close_and_send(publication):
    writer.close()
    send(publication)
writer._core._send = close_and_send
try:
    writer.publish(sys.argv[2], b"y")
except ClosedError:
    print("closed")
"""


def test_a_publish_that_a_handler_closed_the_writer_under_is_told_so(secured: ServerHandle, topic: str) -> None:
    done = python(CLOSED, secured.tcp_address, topic, limit=60.0)
    assert done.stdout == b"closed\n", done.stderr.decode()
    assert stored(secured, topic) == {b"x": 1}


#: A handler that comes while a connection is being taken in.
JOINING = """
import sys, time
from gevent import monkey; monkey.patch_all()
from gnsq_lite import Reader
from gnsq_lite.policy.losses import Losses
joined, seen = Losses.joined, []
def look_and_join(self, key):
    seen.extend(reader.stats().connections)
    joined(self, key)
Losses.joined = look_and_join
reader = Reader(sys.argv[2], "ch", lambda message: None, nsqd_tcp_addresses=sys.argv[1])
reader.start(block=False)
while not reader.stats().ready:
    time.sleep(0.01)
reader.close()
print(len(seen))
"""


def test_a_connection_that_is_being_taken_in_is_in_the_stats(secured: ServerHandle, topic: str) -> None:
    done = python(JOINING, secured.tcp_address, topic, limit=60.0)
    assert (done.stdout, done.stderr) == (b"1\n", b""), done.stderr.decode()
