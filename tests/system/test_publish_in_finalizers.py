"""Publishes that the garbage collector makes while the same thread publishes: no lock may be held then."""

from __future__ import annotations

import pytest

from tests.programs import python
from tests.servers import ServerHandle
from tests.system.clients import depth

pytestmark = [pytest.mark.unpatched, pytest.mark.program]

PROGRAM = """
import gc, sys, threading, weakref
from gnsq_lite import Writer
address, topic, connections, act = sys.argv[1:]
writer = Writer(address, max_connections=int(connections))
writer.publish(topic, b"first")
count = {"plain": 1, "collected": 0}
inside = threading.local()
def act_in_collector(*_):
    if getattr(inside, "depth", 0) > 1 or finished:
        return
    inside.depth = getattr(inside, "depth", 0) + 1
    try:
        if act == "publish":
            writer.publish(topic, b"d")
        elif act == "publish_nowait":
            writer.publish_nowait(topic, b"d")
        elif act == "stats":
            writer.stats()
        count["collected"] += act.startswith("publish")
    finally:
        inside.depth -= 1
class Cycle:
    def __init__(self):
        self.me = self
    def __del__(self):
        act_in_collector()
finished, references, lock = [], [], threading.Lock()
def run():
    for _ in range(300):
        Cycle()
        other = Cycle()
        references.append(weakref.ref(other, act_in_collector))
        del other, references[:-20]
        writer.publish(topic, b"x")
        with lock:
            count["plain"] += 1
gc.set_threshold(1)
threads = [threading.Thread(target=run) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(100)
assert not any(thread.is_alive() for thread in threads), "a publish hangs"
gc.set_threshold(700)
finished.append(True)
writer.flush(10)
print(count["plain"] + count["collected"], writer.stats().published, writer.stats().pending)
writer.close()
"""


@pytest.mark.rule("PUB-1")
@pytest.mark.parametrize("act", ["publish", "publish_nowait", "stats"])
@pytest.mark.parametrize("connections", [1, 4])
def test_a_publish_inside_a_publish_of_the_same_thread_does_not_hang(
    broker: ServerHandle, topic: str, act: str, connections: int
) -> None:
    done = python(PROGRAM, broker.tcp_address, topic, str(connections), act, limit=120.0)
    assert done.returncode == 0, done
    made, published, pending = map(int, done.stdout.split())
    assert (published, pending) == (depth(broker, topic), 0)
    assert act == "stats" or made >= published - 10  # the collector's counts are not exact
