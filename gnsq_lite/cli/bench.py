"""``gnsq-lite bench``: what this machine and an nsqd reach, publishing and consuming."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import click

from gnsq_lite import Message, Reader, Writer
from gnsq_lite.broker import Broker
from gnsq_lite.cli import flags
from gnsq_lite.cli.goflags import go_command
from gnsq_lite.cli.lists import show
from gnsq_lite.cli.output import echo, errors


def measured(name: str, count: int, run: Callable[[], None]) -> dict[str, Any]:
    """Run it and return its rates."""
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {
        "what": name,
        "messages": count,
        "per second": round(count / max(wall, 1e-9)),
        "per CPU-second": round(count / max(cpu, 1e-9)),
    }


class Counter:
    """A handler that only counts, and says when all have come."""

    def __init__(self, most: int) -> None:
        self._left, self._lock = most, threading.Lock()
        self.done = threading.Event()

    def __call__(self, message: Message) -> None:
        """Count one."""
        with self._lock:
            self._left -= 1
            if self._left == 0:
                self.done.set()


@go_command("bench", example="bench -n 10000 --nsqd-tcp-address 127.0.0.1:4150")
@click.option("--nsqd-tcp-address", "nsqd", metavar="HOST:PORT", help="Use this nsqd instead of an embedded one.")
@click.option("-n", "count", type=click.IntRange(100), default=20_000, show_default=True, help="Messages.")
@click.option("--size", type=click.IntRange(1), default=100, show_default=True, help="Bytes of a body.")
@click.option("--max-in-flight", type=click.IntRange(1), default=200, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@flags.security
def command(nsqd: str | None, count: int, size: int, max_in_flight: int, as_json: bool, **options: Any) -> int:
    """Publish one at a time, pipelined and in batches, then consume all of it; print messages a second.

    The embedded nsqd shares this process, so its work is in the figures; name a real one to measure the client alone.
    """
    security = flags.secured(options)
    topic, body = f"bench-{int(time.time())}", b"x" * size
    single = max(100, count // 10)
    with ExitStack() as stack:
        if nsqd is None:
            nsqd = stack.enter_context(Broker(lookupd=False)).nsqd_tcp_address
            errors.print("embedded nsqd; all in memory", markup=False)
        writer = stack.enter_context(Writer(nsqd, **security))
        writer.publish(topic, body)

        def one_by_one() -> None:
            for _ in range(single):
                writer.publish(topic, body)

        def pipelined() -> None:
            for publication in [writer.publish_nowait(topic, body) for _ in range(count)]:
                publication.result()

        def batched() -> None:
            for _ in range(count // 100):
                writer.multipublish(topic, [body] * 100)

        rows = [
            measured("publish, one at a time", single, one_by_one),
            measured("publish, pipelined", count, pipelined),
            measured("publish, batches of 100", count // 100 * 100, batched),
        ]
        total = 1 + single + count + count // 100 * 100
        counter = Counter(total)
        reader = Reader(topic, "bench", counter, nsqd_tcp_addresses=nsqd, max_in_flight=max_in_flight, **security)

        def consume() -> None:
            with reader:
                if not counter.done.wait(120.0):
                    raise click.ClickException("not all messages came within 120 s")

        rows.append(measured("consume", total, consume))
    if as_json:
        echo(json.dumps(rows))
    else:
        show(
            "bench",
            list(rows[0]),
            [[f"{v:,}" if isinstance(v, int) else v for v in row.values()] for row in rows],
            False,
        )
    return 0
