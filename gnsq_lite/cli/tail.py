"""``gnsq-lite tail``: print the messages of topics as they arrive."""

from __future__ import annotations

import base64
import json
import logging
import sys
import threading
import uuid
from collections.abc import Sequence
from typing import Any

import click

from gnsq_lite import Message, Reader
from gnsq_lite.cli import flags
from gnsq_lite.cli.completion import channel_names
from gnsq_lite.cli.hints import in_flags
from gnsq_lite.cli.output import visible
from gnsq_lite.cli.params import CONNECTION, OUTPUT, option
from gnsq_lite.cli.params import command as tool
from gnsq_lite.net.signals import until_signal
from gnsq_lite.net.waiting import Completion
from gnsq_lite.supervise import logs

#: Time limit of Reader.close(), in seconds.
_CLOSE_TIMEOUT = 2.0


def as_record(message: Message) -> bytes:
    """Return a message as a line of ASCII JSON.  The field ``encoding`` is "utf-8" or "base64"."""
    try:
        body, encoding = message.body.decode(), "utf-8"
    except UnicodeDecodeError:
        body, encoding = base64.b64encode(message.body).decode(), "base64"
    record = {
        "topic": message.topic,
        "id": message.id.decode("ascii", "backslashreplace"),
        "timestamp": message.timestamp.isoformat(),
        "timestamp_ns": message.timestamp_ns,
        "attempts": message.attempts,
        "encoding": encoding,
        "body": body,
    }
    return json.dumps(record).replace("\x7f", "\\u007f").encode() + b"\n"


class Printer:
    """Handler that prints a line for each message.  After *most* (0: no limit) or a failed write it settles *done*.

    As JSON, or on a terminal, control characters are escaped.  Otherwise bodies are written unchanged.
    """

    def __init__(self, most: int, as_json: bool, print_topic: bool, done: Completion) -> None:
        self._most, self._json, self._topic, self._done = most, as_json, print_topic, done
        self._is_terminal = sys.stdout.isatty()
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
            except OSError as error:  # the disk is full, or the reader of the output has closed the pipe
                message.requeue(0.0, backoff=False)
                self._done.settle(error=error)
                return
            if self._count == self._most:
                self._done.settle()

    def _line(self, message: Message) -> bytes:
        if self._json:
            return as_record(message)
        body = visible(message.body.decode("utf-8", "backslashreplace")).encode() if self._is_terminal else message.body
        return (message.topic.encode() + b" | " if self._topic else b"") + body + b"\n"


@tool("tail", example="tail --topic clicks -n 10 --lookupd-http-address 127.0.0.1:4161")
@flags.addresses
@flags.topics
@option(
    "--channel",
    shell_complete=channel_names,
    help="Channel; default: a new ephemeral channel, so that no other consumer misses a message.",
)
@option("-n", "most", type=click.IntRange(0), default=0, help="Stop after N messages; 0 sets no limit.")
@option(
    "--max-in-flight",
    type=click.IntRange(1),
    default=200,
    show_default=True,
    section=CONNECTION,
    help="Maximum messages in flight.",
)
@option("--print-topic", is_flag=True, section=OUTPUT, help="Print the topic before each message.")
@option("--json", "as_json", is_flag=True, section=OUTPUT, help="Print a line of JSON for each message.")
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
    """Print the messages of topics as they arrive.

    With --json or on a terminal, control characters of a body are escaped.  Otherwise bodies are written unchanged.
    """
    if sys.stdout is None:
        raise click.UsageError("standard output is closed")
    done = Completion()
    printer = Printer(most, as_json, print_topic, done)
    channel = channel or f"tail{uuid.uuid4().hex[:8]}#ephemeral"
    # No limit of attempts, because after the last printed message the handler may requeue a message many times.
    limits = {"max_in_flight": min(most or max_in_flight, max_in_flight), "concurrency": 1, "max_attempts": 0}
    keywords = {"backoff": False, **flags.where(nsqds, lookupds), **flags.secured(options), **limits}
    readers = [Reader(topic, channel, printer, **keywords) for topic in dict.fromkeys(topics)]
    _run(readers, done)
    return 0


class _Formatter(logging.Formatter):
    """Format the library's log lines with flags in place of option names."""

    def __init__(self, inner: logging.Formatter | None) -> None:
        super().__init__()
        self._inner = inner or logging.Formatter()

    def format(self, record: logging.LogRecord) -> str:
        return in_flags(self._inner.format(record))


def _run(readers: Sequence[Reader], done: Completion) -> None:
    """Run *readers* until Ctrl-C, SIGTERM, *done* or an error.  Then close the readers, and raise the error."""
    logs.configure("brief", "warning", "main")
    for handler in logging.getLogger().handlers:
        handler.setFormatter(_Formatter(handler.formatter))

    def begin() -> None:
        for reader in readers:
            reader.start(block=False)
            threading.Thread(target=_join, args=(reader, done), daemon=True).start()

    try:
        until_signal(done, lambda timeout=0.0: done.settle(), begin)
        done.result(0)
    finally:
        threads = [threading.Thread(target=reader.close, args=(_CLOSE_TIMEOUT,)) for reader in readers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def _join(reader: Reader, done: Completion) -> None:
    try:
        reader.join()
    except BaseException as error:
        done.settle(error=error)
    else:
        done.settle()
