"""``gnsq-lite tail``: print messages as they come, as nsq_tail does."""

from __future__ import annotations

import json
import sys
import threading
import uuid
from typing import Any

import click

from gnsq_lite import Message, Reader
from gnsq_lite.cli import flags
from gnsq_lite.cli.serving import serve
from gnsq_lite.net.runtime import Completion


class Printer:
    """Writes bodies to standard output, whole lines at a time, and stops after so many."""

    def __init__(self, most: int, as_json: bool, print_topic: bool, done: Completion) -> None:
        self._most, self._json, self._topic, self._done = most, as_json, print_topic, done
        self._count = 0
        self._lock = threading.Lock()

    def __call__(self, message: Message) -> None:
        """Print one message."""
        line = self._line(message)
        with self._lock:
            if self._most and self._count >= self._most:
                message.requeue(0.0, backoff=False)
                return
            self._count += 1
            try:
                sys.stdout.buffer.write(line)
                sys.stdout.buffer.flush()
            except OSError as error:  # the disk is full, or the reader of the output has gone
                message.requeue(0.0, backoff=False)
                self._done.settle(error=error)
                return
            if self._count == self._most:
                self._done.settle()

    def _line(self, message: Message) -> bytes:
        if self._json:
            record = {
                "topic": message.topic,
                "id": message.id.decode("ascii", "backslashreplace"),
                "timestamp": message.timestamp.isoformat(),
                "attempts": message.attempts,
                "body": message.body.decode("utf-8", "backslashreplace"),
            }
            return json.dumps(record).encode() + b"\n"
        return (message.topic.encode() + b" | " if self._topic else b"") + message.body + b"\n"


@click.command("tail")
@flags.addresses
@click.option("--topic", "topics", multiple=True, required=True, help="Topic to read; may be repeated.")
@click.option("--channel", help="Channel; by default an ephemeral one of its own, which disturbs nobody.")
@click.option("-n", "most", type=click.IntRange(0), default=0, help="Stop after N messages; 0: never.")
@click.option("--max-in-flight", type=click.IntRange(1), default=200, show_default=True)
@click.option("--print-topic", is_flag=True, help="Print the topic before each message.")
@click.option("--json", "as_json", is_flag=True, help="Print each message, with its metadata, as a line of JSON.")
@flags.security
def command(
    nsqds: tuple[str, ...],
    lookupds: tuple[str, ...],
    topics: tuple[str, ...],
    channel: str | None,
    most: int,
    max_in_flight: int,
    print_topic: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Print the messages of a topic as they come."""
    if sys.stdout is None:
        raise click.UsageError("standard output is closed")
    done = Completion()
    printer = Printer(most, as_json, print_topic, done)
    channel = channel or f"tail{uuid.uuid4().hex[:8]}#ephemeral"
    keywords = {**flags.where(nsqds, lookupds), **flags.secured(options), "max_in_flight": max_in_flight}
    readers = [Reader(topic, channel, printer, concurrency=1, backoff=False, **keywords) for topic in topics]
    serve(readers, drain=2.0, ended=done)
    return 0
