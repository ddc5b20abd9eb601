"""``gnsq-lite pub``: publish lines of files or standard input."""

from __future__ import annotations

import os
import signal
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, BinaryIO

import click

from gnsq_lite import Writer
from gnsq_lite.cli import flags
from gnsq_lite.cli.completion import topic_names
from gnsq_lite.cli.hints import in_flags
from gnsq_lite.cli.output import Progress, errors
from gnsq_lite.cli.params import CONNECTION, Duration, option
from gnsq_lite.cli.params import command as tool
from gnsq_lite.clock import Pace
from gnsq_lite.errors import NSQError
from gnsq_lite.net.signals import in_main_thread
from gnsq_lite.wire.names import check_topic

_READ = 64 * 1024


class Read:
    """Counts the bytes read from the input.  ``total`` is the size of the input, or 0 if the size is unknown."""

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
        """Return the fraction that was read, or None if the size is unknown."""
        return min(1.0, self.bytes / self.total) if self.total else None


def pieces(files: Iterable[BinaryIO], delimiter: bytes, count: Read) -> Iterator[bytes]:
    """Yield the bytes between delimiters, but no empty pieces."""
    for file in files:
        rest = bytearray()
        read = getattr(file, "read1", file.read)
        while data := read(_READ):
            count.bytes += len(data)
            searched = max(0, len(rest) + 1 - len(delimiter))  # a line may be long: search each byte only once
            rest += data
            if rest.find(delimiter, searched) >= 0:
                *whole, last = bytes(rest).split(delimiter)
                rest = bytearray(last)
                yield from (piece for piece in whole if piece)
        if rest:
            yield bytes(rest)


class Stopped(BaseException):
    """The signal *number* arrived.  This is no subclass of Exception, so ``except Exception`` does not catch it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def stoppable(*more: int) -> Iterator[None]:
    """Make SIGINT, SIGTERM and *more* raise :class:`Stopped` in the block.  Outside the main thread, do nothing."""

    def stop(number: int, frame: Any) -> None:
        raise Stopped(number)

    if not in_main_thread():
        yield
        return
    before = [(number, signal.signal(number, stop)) for number in (signal.SIGINT, signal.SIGTERM, *more)]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


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
    if len(delimiter.encode("utf-8", "surrogateescape")) == 1:  # one byte, perhaps not UTF-8
        return delimiter.encode("utf-8", "surrogateescape")
    try:
        separator = delimiter.encode().decode("unicode_escape").encode("latin-1")
    except UnicodeError as error:
        raise click.UsageError(f"--delimiter {delimiter!r} is invalid: {error}") from error
    if not separator:
        raise click.UsageError("--delimiter must not be empty")
    return separator


class Publisher:
    """Publishes each message with every Writer, and counts messages."""

    def __init__(self, writers: Sequence[Writer], topic: str, defer: float) -> None:
        self._writers, self._topic, self._defer = writers, topic, defer
        self.sent = self.confirmed = 0
        self._copies = 0

    def publish(self, bodies: list[bytes]) -> None:
        """Publish *bodies*.  Count them as sent at once, and as confirmed after every nsqd's OK."""
        self.sent += len(bodies)
        self._copies = 0
        for writer in self._writers:
            if len(bodies) == 1:
                writer.publish(self._topic, bodies[0], defer=self._defer)
            else:
                writer.multipublish(self._topic, bodies)
            self._copies += 1
        self.confirmed += len(bodies)

    def outcome(self) -> str:
        """Return how many messages were published before an error."""
        where = (
            f" to each nsqd, and {self.sent - self.confirmed} more to {self._copies} of them" if self._copies else ""
        )
        return f"{self.confirmed} messages were published{where}"

    def close_soon(self) -> None:
        """Close the writers without waiting for confirmations."""
        for writer in self._writers:
            writer.close(0.0)

    def __str__(self) -> str:
        return f"{self.sent} lines sent, {self.confirmed} confirmed by nsqd"


@tool("pub", example="pub --topic clicks --nsqd-tcp-address 127.0.0.1:4150 --rate 100 lines.txt")
@click.argument("files", type=click.File("rb"), nargs=-1)
@option("--topic", required=True, shell_complete=topic_names, help="Topic to publish to.")
@flags.addresses
@option("--any-nsqd", is_flag=True, section=CONNECTION, help="Publish to one of several nsqds, not to each of them.")
@option("--delimiter", default="\\n", show_default=True, help="Separator of messages; \\n, \\t and \\0 are escapes.")
@option("--rate", type=click.FloatRange(0), default=0.0, help="Maximum messages per second; 0 sets no limit.")
@option("--batch", type=click.IntRange(1), default=1, show_default=True, help="Messages per MPUB.")
@option("--defer", type=Duration(), default=0.0, help="Delay before nsqd delivers each message.")
@flags.publish_timeout
@flags.security
def command(
    files: tuple[BinaryIO, ...],
    topic: str,
    nsqds: tuple[str, ...],
    lookupds: tuple[str, ...],
    any_nsqd: bool,
    delimiter: str,
    rate: float,
    batch: int,
    defer: float,
    timeout: float,
    **options: Any,
) -> int:
    """Publish the lines of FILES, or of standard input.  Exit when nsqd has confirmed every line, or at an error.

    With several --nsqd-tcp-address, the command publishes every line to each nsqd.  After Ctrl-C or SIGTERM it prints
    the numbers of sent and confirmed lines, and exits with 130 or 143.
    """
    check_topic(topic)
    separator = _separator(delimiter)
    if defer and batch > 1:
        raise click.UsageError("--defer needs --batch 1: nsqd has no deferred MPUB")
    if not files and sys.stdin is None:
        raise click.UsageError("standard input is closed; name FILES")
    settings = {**flags.secured(options), "publish_timeout": timeout}
    each = nsqds if len(nsqds) > 1 and not any_nsqd else (nsqds,)
    sources = files or (sys.stdin.buffer,)
    count, limit = Read(sources), Pace(rate)
    with ExitStack() as stack:
        found = [flags.where((one,) if isinstance(one, str) else one, lookupds) for one in each]
        publisher = Publisher([stack.enter_context(Writer(**where, **settings)) for where in found], topic, defer)
        progress = stack.enter_context(Progress("published"))
        try:
            with stoppable():
                for bodies in batches(pieces(sources, separator, count), batch):
                    limit.take(len(bodies))
                    publisher.publish(bodies)
                    progress.show(part=count.part(), messages=publisher.confirmed)
        except NSQError as error:
            errors.print(f"gnsq-lite pub: {in_flags(error)} ({publisher.outcome()})", markup=False)
            return 1
        except Stopped as stopped:
            errors.print(f"gnsq-lite pub: {signal.Signals(stopped.number).name}: {publisher}", markup=False)
            publisher.close_soon()
            return 128 + stopped.number
    errors.print(f"{publisher.confirmed} messages published", markup=False)
    return 0
