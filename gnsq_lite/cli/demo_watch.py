"""``gnsq-lite demo --watch``: a Worker that runs on, so that its live page has something to show."""

from __future__ import annotations

import itertools
import math
import random
import threading
import time
from collections.abc import Sequence
from typing import Any

from gnsq_lite import Message, Worker, Writer
from gnsq_lite.contrib.launching import StatusAt, run_worker
from gnsq_lite.errors import NSQError
from gnsq_lite.worker import Handler

#: Messages per second on average, the amplitude of their wave, and its period in seconds.
RATE, SWING, PERIOD = 600.0, 400.0, 40.0
#: Seconds between two batches.
EVERY = 0.1
#: One of this many messages fails once.
FAILS = 1000


class Handling:
    """Takes a moment for each line, as real work does; one of FAILS lines fails at its first attempt."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def __call__(self, message: Message) -> None:
        """Handle one line."""
        time.sleep(random.uniform(0.0, 0.004))
        if next(self._numbers) % FAILS == 0 and message.attempts == 1:
            raise ValueError("this line fails once, so that a retry is seen")


def publish(writer: Writer, topic: str, lines: Sequence[bytes], ended: threading.Event) -> None:
    """Publish *lines* over and over until *ended*, at a varying rate."""
    source = itertools.cycle(lines)
    while not ended.wait(EVERY):
        rate = RATE + SWING * math.sin(2 * math.pi * time.monotonic() / PERIOD)
        try:
            writer.multipublish(topic, list(itertools.islice(source, max(1, int(rate * EVERY)))))
        except NSQError:
            continue  # the page shows that nothing comes


def watch(writer: Writer, topic: str, lines: Sequence[bytes], concurrency: int, where: dict[str, Any]) -> int:
    """Run a Worker on *lines*, print the address of its live page, and return its exit code."""
    worker = Worker(lookupd_poll_interval=1.0, max_attempts=0, requeue_delay=1.0, drain_timeout=5.0, **where)
    worker.add(Handler(topic, "demo", Handling(), {"concurrency": concurrency, "max_in_flight": 10 * concurrency}))
    ended = threading.Event()
    publisher = threading.Thread(target=publish, args=(writer, topic, lines, ended), daemon=True)
    publisher.start()
    try:
        return run_worker(worker, None, status=StatusAt(port=0))
    finally:
        ended.set()
        publisher.join()
