"""Fixtures for tests of hostile peers: watch other clients of the process, and its memory.

A test module imports both; every test of it then runs beside a Writer that publishes to a healthy nsqd all the time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from gnsq_lite import Writer
from gnsq_lite.broker import Broker
from tests.floods import resident_kib

#: Seconds of wall time that a publish to the healthy nsqd may take, and of CPU time that the process may use meanwhile.
#: Publishes take milliseconds, and 0.1 s of wall time while an answer with 100,000 nsqds is decoded.
LONGEST, LONGEST_CPU = 10.0, 1.0
#: KiB that one test may leave the process larger by; a module whose servers send large valid answers has its own.
MOST_GROWTH = 50 * 1024
#: Seconds between two publishes.
PAUSE = 0.02


@pytest.fixture(scope="module")
def healthy() -> Iterator[Writer]:
    """A Writer that is connected to a healthy nsqd."""
    with Broker(lookupd=False) as broker, Writer(broker.nsqd_tcp_address) as writer:
        writer.publish("bystander", b"x")
        yield writer


@pytest.fixture(autouse=True)
def bystander(request: pytest.FixtureRequest, healthy: Writer) -> Iterator[None]:
    """Publish beside the test; fail the test if a publish took long, or if the process has grown."""
    slowest, busiest, over, before = 0.0, 0.0, threading.Event(), resident_kib()

    def publish() -> None:
        nonlocal slowest, busiest
        while not over.wait(PAUSE):
            began, used = time.monotonic(), time.process_time()
            healthy.publish("bystander", b"x")
            slowest, busiest = max(slowest, time.monotonic() - began), max(busiest, time.process_time() - used)

    thread = threading.Thread(target=publish)
    thread.start()
    yield
    over.set()
    thread.join()
    assert slowest < LONGEST, f"a publish to a healthy nsqd took {slowest:.2f} s meanwhile"
    assert busiest < LONGEST_CPU, f"the process used {busiest:.2f} s of CPU time during a publish to a healthy nsqd"
    grown = resident_kib() - before
    assert grown < getattr(request.module, "MOST_GROWTH", MOST_GROWTH), f"the process grew by {grown} KiB"
