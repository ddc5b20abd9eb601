"""A hub that has not run for a while has an old clock: no wait may end early because of it."""

from __future__ import annotations

import time

import gevent

from gnsq_lite import Writer
from tests.native import native_sleep
from tests.servers import ServerHandle, refusing_port

#: Seconds for which the hub of this thread does not run, longer than the waits that follow.
STALE = 0.8


def doze() -> None:
    """Make a hub in this thread, and do not run it for STALE seconds."""
    gevent.sleep(0.01)
    native_sleep(STALE)


def test_a_wait_for_a_publication_lasts_for_its_whole_timeout(topic: str) -> None:
    with refusing_port() as port, Writer(f"127.0.0.1:{port}") as writer:
        publication = writer.publish_nowait(topic, b"x", timeout=10.0)
        doze()
        began = time.monotonic()
        assert not publication.wait(STALE / 2)
        assert time.monotonic() - began >= STALE / 2
        writer.close(timeout=0.0)


def test_a_writers_first_publish_after_a_while_has_all_of_its_time(broker: ServerHandle, topic: str) -> None:
    with Writer(broker.tcp_address, publish_timeout=STALE / 2) as writer:
        doze()
        writer.publish(topic, b"x")
