"""Publish numbered messages for tests of recordings."""

from __future__ import annotations

import time

from gnsq_lite import Writer


def publish(address: str, topic: str, first: int, count: int, pause: float = 0.0) -> None:
    with Writer(address) as writer:
        for at in range(first, first + count, 200):
            writer.multipublish(topic, [b"%d" % n for n in range(at, min(at + 200, first + count))])
            time.sleep(pause)
