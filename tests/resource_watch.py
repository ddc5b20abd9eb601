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

#: Seconds that no publish to the healthy nsqd may take; on a quiet machine they take milliseconds.
LONGEST = 2.0
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
    """Publish beside the test; fail it where a publish took long, or the memory that it took stays."""
    slowest, over, before = 0.0, threading.Event(), resident_kib()

    def publish() -> None:
        nonlocal slowest
        while not over.wait(PAUSE):
            began = time.monotonic()
            healthy.publish("bystander", b"x")
            slowest = max(slowest, time.monotonic() - began)

    thread = threading.Thread(target=publish)
    thread.start()
    yield
    over.set()
    thread.join()
    assert slowest < LONGEST, f"a publish to a healthy nsqd took {slowest:.2f} s meanwhile"
    grown = resident_kib() - before
    assert grown < getattr(request.module, "MOST_GROWTH", MOST_GROWTH), f"the process grew by {grown} KiB"
