"""Readers and Writers in a parent and in its forked child."""

from __future__ import annotations

import pytest

from tests.certs import Certificates
from tests.programs import python
from tests.servers import ServerHandle

pytestmark = pytest.mark.program

FORKS = """
import faulthandler, os, sys, threading, time, traceback
from gnsq_lite import Writer
from tests.tls_variants import options
address, topic, kind, ca = sys.argv[1:]
writer = Writer(address, **options(kind, ca))
stop = threading.Event()
sent = [0]
def publish():
    while not stop.is_set():
        writer.publish(topic, b"parent")
        sent[0] += 1
thread = threading.Thread(target=publish)
thread.start()
children = []
for _ in range(20):
    time.sleep(0.003)  # the first while the parent connects
    pid = os.fork()
    if pid == 0:
        code = 1
        faulthandler.dump_traceback_later(8.0)
        try:
            writer.publish(topic, b"child", timeout=10)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    children.append(pid)
codes = [os.waitpid(pid, 0)[1] for pid in children]
stop.set()
thread.join()
writer.close()
print(sent[0], codes)
sys.exit(any(codes))
"""


@pytest.mark.rule("PUB-1")
@pytest.mark.parametrize("kind", ["plain", "tls+deflate"])
def test_parent_and_child_can_publish_after_a_fork_during_publishes(
    secured: ServerHandle, certs: Certificates, topic: str, kind: str
) -> None:
    done = python(FORKS, secured.tcp_address, topic, kind, certs.ca)
    assert done.returncode == 0, done
    parent = int(done.stdout.split()[0])
    assert int(secured.stats(topic)["depth"]) == parent + 20


PARENTS = """
import os, signal, sys
from gnsq_lite import Reader, Writer, errors
address, topic = sys.argv[1:]
seen = []
reader = Reader(topic, "ch", lambda message: seen.append(message.body), nsqd_tcp_addresses=address)
reader.start(block=False)
unreachable = Writer("127.0.0.1:1", publish_timeout=60)
publication = unreachable.publish_nowait(topic, b"x")
pid = os.fork()
if pid == 0:
    signal.alarm(20)
    for call in (reader.stats, reader.pause, reader.resume, lambda: reader.set_max_in_flight(2), reader.join):
        try:
            call()
        except errors.ClosedError as error:
            print("ClosedError", "parent" in str(error))
    try:
        publication.result()
    except errors.OutcomeUnknown as error:
        print("OutcomeUnknown", "parent" in str(error))
    reader.close()
    sys.stdout.flush()
    os._exit(0)
code = os.waitpid(pid, 0)[1]
with Writer(address) as writer:
    writer.publish(topic, b"x")
while not seen:
    reader.join(0.01)
reader.close()
unreachable.close(0)
sys.exit(code)
"""


@pytest.mark.rule("PUB-2")
def test_a_forked_child_gets_an_error_for_its_parents_objects_and_never_waits(broker: ServerHandle, topic: str) -> None:
    done = python(PARENTS, broker.tcp_address, topic)
    assert done.returncode == 0, done
    assert done.stdout == b"ClosedError True\n" * 5 + b"OutcomeUnknown True\n", done


QUEUED = """
from gevent import monkey
monkey.patch_all()
import os, sys
import gevent.event
from gnsq_lite import Reader
address, topic = sys.argv[1:]
seen, go = [], gevent.event.Event()

def handle(message):
    seen.append(message.body)
    go.wait()

reader = Reader(topic, "ch", handle, nsqd_tcp_addresses=address, max_in_flight=6, concurrency=2)
reader.start(block=False)
while len(seen) < 2 or reader.stats().queued < 4:
    gevent.sleep(0.01)
pid = os.fork()
if pid == 0:
    go.set()
    gevent.sleep(0.3)
    os._exit(len(seen))
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
go.set()
while reader.stats().finished < 6:
    gevent.sleep(0.01)
reader.close()
sys.exit(code - 2)
"""


def test_a_forked_child_handles_no_message_of_its_parent(broker: ServerHandle, topic: str) -> None:
    broker.prepare(topic, "ch")
    broker.publish(topic, *(b"%d" % n for n in range(6)))
    done = python(QUEUED, broker.tcp_address, topic)
    assert done.returncode == 0, done


FORKING_HANDLER = """
import sys
if "patched" in sys.argv:
    from gevent import monkey
    monkey.patch_all()
import os, socket, time
import gevent
from gnsq_lite import Reader
address, topic, raises, pool = sys.argv[1:5]
parent, children = os.getpid(), []
of_parent, of_child = socket.socketpair()
wait = gevent.sleep if pool == "greenlet" else time.sleep

def handle(message):
    if os.getpid() != parent:
        os.write(of_child.fileno(), b"the child handled a message")
    if not children:
        while pool != "inline" and reader.stats().queued < 4:
            wait(0.01)
        children.append(os.fork())
        if raises and not children[0]:
            raise ValueError

reader = Reader(topic, "ch", handle, nsqd_tcp_addresses=address, max_in_flight=6, concurrency=1, handler_pool=pool)
reader.start(block=False)
while os.getpid() == parent and reader.stats().finished < 6:
    time.sleep(0.01)
while os.getpid() != parent:
    time.sleep(0.01)
reader.close()
of_child.close()
of_parent.settimeout(10)
sys.exit(of_parent.recv(100).decode() or 0)  # until the child ends (gevent misses some)
"""


@pytest.mark.parametrize(  # gevent's os.fork() does not work in native threads
    ("pool", "patched", "raises"),
    [
        ("thread", "", ""),
        ("thread", "", "raises"),
        ("greenlet", "", "raises"),
        ("inline", "", ""),
        ("greenlet", "patched", ""),
        ("inline", "patched", "raises"),
    ],
)
def test_a_child_forked_in_a_handler_ends_when_the_handler_returns(
    broker: ServerHandle, topic: str, pool: str, patched: str, raises: str
) -> None:
    broker.prepare(topic, "ch")
    broker.publish(topic, *(b"%d" % n for n in range(6)))
    done = python(FORKING_HANDLER, broker.tcp_address, topic, raises, pool, patched)
    assert done.returncode == 0, done
