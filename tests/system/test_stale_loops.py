"""A thread's hub that has not turned for a while has a stale idea of now: no wait may end early for that."""

from __future__ import annotations

import threading
import time

import gevent
import gevent.monkey

from gnsq_lite import Writer
from gnsq_lite.net.waiting import Completion
from tests.servers import ServerHandle

#: Seconds that this thread does not turn its hub, longer than the waits that follow.
STALE = 0.8


def doze() -> None:
    """Have a hub in this thread, and do not turn it for a while."""
    gevent.sleep(0.01)
    time.sleep(STALE) if not gevent.monkey.is_module_patched("time") else burn()


def burn() -> None:
    """Compute, which is what keeps a patched process from turning its hub."""
    ends = time.monotonic() + STALE
    while time.monotonic() < ends:
        pass


def test_a_wait_with_a_limit_lasts_as_long_as_it_says() -> None:
    doze()
    began = time.monotonic()
    assert not Completion().wait(STALE / 2)
    assert time.monotonic() - began >= STALE / 2


def test_what_comes_within_the_limit_is_not_missed() -> None:
    outcome = Completion()
    threading.Timer(0.1 + STALE, outcome.settle, ["in time"]).start()
    doze()
    assert outcome.result(STALE * 0.9) == "in time"


def test_a_writers_first_publish_after_a_while_has_all_of_its_time(broker: ServerHandle, topic: str) -> None:
    with Writer(broker.tcp_address, publish_timeout=STALE / 2) as writer:
        doze()
        writer.publish(topic, b"x")
