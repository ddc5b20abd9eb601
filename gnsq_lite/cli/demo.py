"""``gnsq-lite demo``: publish and consume lines of text, and prove that no message was lost."""

from __future__ import annotations

import hashlib
import itertools
import sys
import sysconfig
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import click

from gnsq_lite import Message, Reader, Requeue, Writer
from gnsq_lite.broker import Broker
from gnsq_lite.cli.output import Progress, console
from gnsq_lite.cli.params import command as tool
from gnsq_lite.supervise import logs

#: Number of messages in one MPUB.
BATCH = 200
#: The handler requeues one line in this many, so that the demo shows retries.
FAILS = 5000


@dataclass
class Tally:
    """Count and checksum of the published or the handled records.  The checksum does not depend on the order."""

    count: int = 0
    checksum: int = 0
    seen: set[int] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, number: int, record: bytes) -> bool:
        """Count *record*.  Return False, and do not count, if *number* was counted before."""
        digest = int.from_bytes(hashlib.blake2b(record, digest_size=8).digest(), "big")
        with self.lock:
            if number in self.seen:
                return False
            self.seen.add(number)
            self.count += 1
            self.checksum = (self.checksum + digest) % 2**64
            return True


def standard_library() -> Iterator[bytes]:
    """Yield the lines of the top-level modules of Python's standard library."""
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        yield from path.read_bytes().splitlines()


def records(lines: Iterable[bytes], limit: int | None) -> Iterator[tuple[int, bytes]]:
    """Yield (number, record).  A record starts with its number, so that each record is unique and not empty."""
    for number, line in enumerate(itertools.islice(lines, limit)):
        yield number, b"%d\t%b" % (number, line.rstrip(b"\r\n"))


class Publishing(threading.Thread):
    """Thread that publishes the records while the Reader runs.  ``failed`` is the error that ended the thread."""

    def __init__(self, writer: Writer, topic: str, source: Iterable[tuple[int, bytes]], sent: Tally) -> None:
        super().__init__(daemon=True)
        self._job = (writer, topic, source, sent)
        self.failed: Exception | None = None

    def run(self) -> None:
        """Publish all records."""
        try:
            publish_all(*self._job)
        except Exception as error:
            self.failed = error


class Handler:
    """Handler that counts each line once.  It requeues one line in FAILS at the line's first attempt."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.retries = 0
        self.doubles = 0

    def __call__(self, message: Message) -> None:
        """Handle one line."""
        number = int(message.body.partition(b"\t")[0])
        if number % FAILS == FAILS - 1 and message.attempts == 1:
            self.retries += 1
            raise Requeue(0.0, backoff=False)
        if not self.tally.add(number, message.body):
            self.doubles += 1


def publish_all(writer: Writer, topic: str, source: Iterable[tuple[int, bytes]], sent: Tally) -> None:
    """Publish the records in batches."""
    numbered = iter(source)
    while batch := list(itertools.islice(numbered, BATCH)):
        writer.multipublish(topic, [record for _, record in batch])
        for number, record in batch:
            sent.add(number, record)


def wait_for_all(sent: Tally, handler: Handler, progress: Progress, timeout: float) -> None:
    """Return when all records were handled, or when no message has arrived for *timeout* seconds."""
    last, since = -1, time.monotonic()
    while (done := handler.tally.count) < sent.count:
        if done != last:
            last, since = done, time.monotonic()
        elif time.monotonic() - since > timeout:
            return
        progress.show(published=sent.count, handled=done)
        time.sleep(0.05)


def summary(sent: Tally, handler: Handler, seconds: float) -> bool:
    """Print the result.  Return whether no message was lost."""
    handled = handler.tally
    whole = sent.count == handled.count and sent.checksum == handled.checksum
    rows: list[tuple[str, Any]] = [
        ("lines published", f"{sent.count:,}"),
        ("lines handled", f"{handled.count:,}"),
        ("throughput", f"{handled.count / max(seconds, 1e-9):,.0f} lines/s"),
        ("retries", handler.retries),
        ("seen twice", handler.doubles),
        ("checksum", f"{sent.checksum:016x} published, {handled.checksum:016x} handled"),
        ("result", "nothing was lost" if whole else f"LOST {sent.count - handled.count} lines"),
    ]
    for name, value in rows:
        console.print(f"{name + ':':17}{value}", style=None if whole or name != "result" else "bold red", markup=False)
    return whole


@tool("demo", example="demo access.log")
@click.argument("file", type=click.File("rb"), required=False)
@click.option("--nsqd", metavar="HOST:PORT", help="Use this nsqd instead of an embedded one.")
@click.option("--lookupd", metavar="HOST:PORT", help="With --nsqd: consume through this nsqlookupd (HTTP address).")
@click.option("--topic", help="Topic to use; default: a new topic, such as demo-1735689600.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Publish at most N lines.")
def command(
    file: BinaryIO | None,
    nsqd: str | None,
    lookupd: str | None,
    topic: str | None,
    limit: int | None,
) -> int:
    """Publish the lines of FILE ('-' is standard input), consume them, and prove that no line was lost.

    Without FILE, the demo publishes source code of Python's standard library.  Without --nsqd, the demo runs an nsqd
    and an nsqlookupd in this process.
    """
    sent, handler = Tally(), Handler()
    logs.configure("brief", "warning", "main")  # names an nsqlookupd that fails: without it, all lines would seem lost
    with ExitStack() as stack:
        where: dict[str, Any] = {}
        if nsqd is None:
            broker = stack.enter_context(Broker())
            nsqd, lookupd = broker.nsqd_tcp_address, broker.lookupd_http_address
            console.print(f"embedded nsqd at {nsqd}, nsqlookupd at {lookupd}; all in memory", markup=False)
        topic = topic or f"demo-{int(time.time())}"
        where = {"lookupd_http_addresses": lookupd} if lookupd else {"nsqd_tcp_addresses": nsqd}
        writer = stack.enter_context(Writer(nsqd))
        source = records(file if file is not None else standard_library(), limit)
        first = list(itertools.islice(source, 1))
        if not first:
            print("gnsq-lite demo: there are no lines to publish", file=sys.stderr)
            return 1
        started = time.monotonic()
        publish_all(writer, topic, first, sent)  # creates the topic, so that nsqlookupd knows it
        reader = Reader(
            topic,
            "demo",
            handler,
            max_in_flight=1000,
            concurrency=4,
            lookupd_poll_interval=1.0,
            max_attempts=0,
            **where,
        )
        with Progress("demo") as progress, reader:
            publishing = Publishing(writer, topic, source, sent)
            publishing.start()
            while publishing.is_alive():
                progress.show(published=sent.count, handled=handler.tally.count)
                publishing.join(0.1)
            if publishing.failed is not None:  # checksums of some of the lines would prove nothing
                raise publishing.failed
            wait_for_all(sent, handler, progress, timeout=30.0)
            seconds = time.monotonic() - started
        is_whole = summary(sent, handler, seconds)
    return 0 if is_whole else 1
