"""A publish from a thread ends at its deadline, also if the I/O loop is blocked."""

from __future__ import annotations

import pytest

from tests.programs import python
from tests.servers import ServerHandle
from tests.stub_nsqd import drain, granting, steps
from tests.system.http_stub import scripted

pytestmark = pytest.mark.program

BLOCKED = """
import sys, threading, time
from gnsq_lite import Reader, Writer, errors
address, topic, silent = sys.argv[1:]
blocks, go = threading.Event(), threading.Event()
def handle(message):
    blocks.set()
    go.wait(60)
quick, slow = Writer(address), Writer(silent)
quick.publish(topic, b"x")
sent = slow.publish_nowait("t", b"sent", timeout=1.0)
limit = time.monotonic() + 20
while not sent._publish.sent:
    assert time.monotonic() < limit
    time.sleep(0.01)
reader = Reader(topic, "ch", handle, nsqd_tcp_addresses=address, handler_pool="inline")
reader.start(block=False)
blocks.wait(20)
def fails(kind, call):
    began = time.monotonic()
    try:
        call()
    except kind as error:
        assert type(error) is kind, error
    else:
        raise AssertionError("it came back")
    return time.monotonic() - began
late = quick.publish_nowait(topic, b"late", timeout=0.5)
assert not late.wait(0.01)
first = Writer(address)
took = [
    fails(errors.NotSent, lambda: quick.publish(topic, b"y", timeout=0.5)),
    fails(errors.NotSent, lambda: quick.multipublish(topic, [b"y", b"z"], timeout=0.5)),
    fails(errors.NotSent, late.result),
    fails(errors.PublishTimeout, sent.result),
    fails(TimeoutError, lambda: quick.flush(0.5)),
]
first.publish(topic, b"y", timeout=10.0)  # nothing of it is unanswered, so it needs no loop
assert late.done() and sent.done()
assert quick._core.outcomes._cells[1] == 0  # which the loop counts
go.set()
for writer, counts in ((quick, (1, 3 + 1, 0)), (first, (1, 0, 0)), (slow, (0, 0, 1))):
    limit = time.monotonic() + 20
    while (stats := writer.stats()) and (stats.published, stats.failed, stats.unknown) != counts:
        assert time.monotonic() < limit, (stats, counts)
        time.sleep(0.01)
    assert writer is first or writer._core.outcomes.backlog == 0
reader.close()
quick.publish(topic, b"after")
quick.close()
print(max(took), flush=True)  # os._exit() flushes nothing
import os
os._exit(0)
"""


@pytest.mark.rule("PUB-2")
def test_a_publish_fails_in_time_while_a_handler_blocks_the_loop(broker: ServerHandle, topic: str) -> None:
    with scripted(steps(granting(), drain)) as silent:
        done = python(BLOCKED, broker.tcp_address, topic, silent)
    assert done.returncode == 0, done
    assert float(done.stdout) < 15.0  # at most 1 s each; the handler blocks the loop for 60 s
    assert int(broker.stats(topic)["depth"]) + int(broker.stats(topic)["channels"][0]["depth"]) <= 2
