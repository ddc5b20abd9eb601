"""``gnsq-lite pub``: publish lines, as to_nsq does."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import click

from gnsq_lite import Writer
from gnsq_lite.cli import flags
from gnsq_lite.cli.output import Progress, errors
from gnsq_lite.errors import NSQError
from gnsq_lite.wire.names import check_topic

_READ = 64 * 1024


class Read:
    """How much of the input has been read, and how much there is; 0: not known."""

    def __init__(self, files: Iterable[BinaryIO]) -> None:
        self.bytes = 0
        self.total = 0
        for file in files:
            try:
                status = os.fstat(file.fileno())
            except (OSError, AttributeError):
                status = None
            if status is None or not stat.S_ISREG(status.st_mode):
                self.total = 0
                return
            self.total += status.st_size

    def part(self) -> float | None:
        """Return the part that was read, 0 to 1; None where the whole is not known."""
        return min(1.0, self.bytes / self.total) if self.total else None


def pieces(files: Iterable[BinaryIO], delimiter: bytes, count: Read) -> Iterator[bytes]:
    """Yield what stands between delimiters, empty pieces left out; a piece may span two reads."""
    for file in files:
        rest = bytearray()
        read = getattr(file, "read1", file.read)
        while data := read(_READ):
            count.bytes += len(data)
            searched = max(0, len(rest) + 1 - len(delimiter))  # a line may be long: look at each byte of it once
            rest += data
            if rest.find(delimiter, searched) >= 0:
                *whole, last = bytes(rest).split(delimiter)
                rest = bytearray(last)
                yield from (piece for piece in whole if piece)
        if rest:
            yield bytes(rest)


class Rate:
    """Waits so that no more than *per_second* messages pass; 0: no limit.  The clock and the wait are arguments."""

    def __init__(self, per_second: float, now: Any = time.monotonic, wait: Any = time.sleep) -> None:
        self._per_second, self._now, self._wait = per_second, now, wait
        self._next = now()

    def take(self, count: int) -> None:
        """Wait for the time of *count* messages."""
        if self._per_second:
            left = self._next - self._now()
            if left > 0:
                self._wait(left)
            self._next = max(self._next, self._now()) + count / self._per_second


def batches(bodies: Iterable[bytes], size: int) -> Iterator[list[bytes]]:
    """Yield lists of up to *size* bodies."""
    batch: list[bytes] = []
    for body in bodies:
        batch.append(body)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def _separator(delimiter: str) -> bytes:
    try:
        separator = delimiter.encode().decode("unicode_escape").encode("latin-1")
    except UnicodeError as error:
        raise click.UsageError(f"--delimiter {delimiter!r} cannot be understood: {error}") from error
    if not separator:
        raise click.UsageError("--delimiter must not be empty")
    return separator


@click.command("pub")
@click.argument("files", type=click.File("rb"), nargs=-1)
@click.option("--topic", required=True, help="Topic to publish to.")
@flags.addresses
@click.option(
    "--delimiter", default="\\n", show_default=True, help="What separates messages; \\n, \\t, \\0 are understood."
)
@click.option("--rate", type=click.FloatRange(0), default=0.0, help="Messages a second at the most; 0: no limit.")
@click.option("--batch", type=click.IntRange(1), default=1, show_default=True, help="Messages of one MPUB.")
@click.option("--defer", type=click.FloatRange(0), default=0.0, help="Seconds nsqd holds each message back.")
@click.option(
    "--timeout", type=click.FloatRange(0.1), default=15.0, show_default=True, help="Seconds for each publish."
)
@flags.security
def command(
    files: tuple[BinaryIO, ...],
    topic: str,
    nsqds: tuple[str, ...],
    lookupds: tuple[str, ...],
    delimiter: str,
    rate: float,
    batch: int,
    defer: float,
    timeout: float,
    **options: Any,
) -> int:
    """Publish the lines of FILES, or of standard input; each is confirmed by nsqd before the command ends."""
    check_topic(topic)
    separator = _separator(delimiter)
    if defer and batch > 1:
        raise click.UsageError("--defer needs --batch 1: nsqd has no deferred MPUB")
    sent = 0
    limit = Rate(rate)
    writer = Writer(**flags.where(nsqds, lookupds), **flags.secured(options), publish_timeout=timeout)
    if not files and sys.stdin is None:
        raise click.UsageError("standard input is closed; name FILES")
    sources = files or (sys.stdin.buffer,)
    count = Read(sources)
    with writer, Progress("published") as progress:
        try:
            for bodies in batches(pieces(sources, separator, count), batch):
                limit.take(len(bodies))
                if len(bodies) == 1:
                    writer.publish(topic, bodies[0], defer=defer)
                else:
                    writer.multipublish(topic, bodies)
                sent += len(bodies)
                progress.show(part=count.part(), messages=sent)
        except NSQError as error:
            errors.print(f"gnsq-lite pub: {error} ({sent} messages were published)", markup=False)
            return 1
    errors.print(f"{sent} messages published", markup=False)
    return 0
