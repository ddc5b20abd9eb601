"""A client under fire, as a process of its own: ``python -m tests.floods JSON`` prints what it felt, as JSON.

One nsqd floods it; another one, a healthy one, is published to all the while.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

from gnsq_lite import Message, Reader, Writer
from gnsq_lite.errors import NSQError


def resident_kib(what: str = "VmRSS") -> int:
    """Return the resident size of this process, KiB; of VmHWM the highest so far."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(what + ":"))


class _Counting(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def main(hostile: str, healthy: str, beating: str, seconds: float, writes: bool, options: dict[str, Any]) -> None:
    """Be flooded by *hostile* as a Writer or a Reader, publish to *healthy* and read *beating* meanwhile."""
    told = _Counting()
    logging.getLogger("gnsq_lite").addHandler(told)
    errors = handled = 0

    def on_error(error: Any) -> None:
        nonlocal errors
        errors += 1

    def handle(message: Message) -> None:
        nonlocal handled
        handled += 1

    writer = Writer(healthy, publish_timeout=30.0)
    writer.publish("t", b"warm")
    beats = Reader("t", "beats", print, nsqd_tcp_addresses=beating)
    beats.start(block=False)
    time.sleep(0.3)
    before = resident_kib()
    victim: Any
    if writes:
        victim = Writer(hostile, publish_timeout=1.0, **options)
        try:
            victim.publish_nowait("t", b"x")
        except NSQError:
            pass
    else:
        victim = Reader("t", "ch", handle, nsqd_tcp_addresses=hostile, on_error=on_error, max_in_flight=10, **options)
        victim.start(block=False)
    slowest = max(_publish(writer, seconds))
    found = {
        "grown_mib": (resident_kib("VmHWM") - before) / 1024,
        "slowest": slowest,
        "lines": told.lines[:1000],
        "errors": errors,
        "handled": handled,
        "received": 0 if writes else victim.stats().received,
    }
    print(json.dumps(found), flush=True)
    os._exit(0)  # the rest is no longer of interest, and no nsqd here answers CLS


def _publish(writer: Writer, seconds: float) -> Iterator[float]:
    ends = time.monotonic() + seconds
    while (began := time.monotonic()) < ends:
        writer.publish("t", b"x")
        yield time.monotonic() - began
        time.sleep(0.02)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
