"""Receives a recorder's messages with one or several Readers.

The receiver passes each message to the recorder, and the recorder finishes the message after its row is durable.  The
Reader does TLS, AUTH, compression, discovery, reconnects, heartbeats and Youzan's partitions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from gnsq_lite.clock import SYSTEM_CLOCK, Clock
from gnsq_lite.consume.rows import Rows
from gnsq_lite.errors import ClosedError
from gnsq_lite.keywords import address_list
from gnsq_lite.message import Message
from gnsq_lite.options import format_address
from gnsq_lite.reader import Reader
from gnsq_lite.recording.options import RecorderOptions

#: The I/O thread calls this function with each received message or Rows.  The function must not block.
OnMessage = Callable[[Message], None]

#: Minimum seconds for which a lost nsqd counts as missing even if nsqlookupd does not list it, because nsqlookupd lists
#: no nsqd that is restarting.
REMEMBERED = 900.0


class RowsReader(Reader):
    """A Reader that passes each read of plain NSQ to its handler as one object (:mod:`gnsq_lite.consume.rows`)."""

    _takes_rows = True


def size_of(message: Message) -> int:
    """Return the bytes of a body, or of the frames of Rows."""
    return message.frames[2] - message.frames[1] if isinstance(message, Rows) else len(message.body)


def oldest_of(message: Message) -> int:
    """Return the publish time of a message, or the least publish time of Rows, in ns."""
    return message.oldest_ns if isinstance(message, Rows) else message.timestamp_ns


def take_some(queue: deque[Message], most: int, most_bytes: int) -> list[Message]:
    """Take up to *most* messages and *most_bytes* from the left of the queue, but at least one item."""
    taken: list[Message] = []
    count = size = 0
    while queue and (not taken or (count + queue[0]._rows <= most and size + size_of(queue[0]) <= most_bytes)):
        taken.append(queue.popleft())
        count, size = count + taken[-1]._rows, size + size_of(taken[-1])
    return taken


class Receiver:
    """Receives with one Reader, or with several (connectionsPerNsqd) if a slow disk needs more messages in flight."""

    def __init__(
        self,
        options: RecorderOptions,
        clock: Clock = SYSTEM_CLOCK,
        *,
        reader_class: type[Reader] = RowsReader,
    ) -> None:
        self._reader_class = reader_class
        self._clock = clock
        self._arguments = reader_arguments(options)
        self._topic, self._channel = options.topic, options.channel
        self._count = options.connections_per_nsqd
        self._readers: list[Reader] = []
        #: Subscriptions of each Reader as (address, topic partition), and the time when each endpoint was lost last.
        self._subscribed: dict[int, set[tuple[str, int | None]]] = {number: set() for number in range(self._count)}
        self._lost: dict[tuple[int, str], float] = {}
        polls = 3 * self._arguments["lookupd_poll_interval"]
        self._remembered = max(REMEMBERED, 2 * options.connect_timeout, polls)
        given = options.client.get("nsqd_tcp_addresses")
        self._named = {
            format_address(address) for address in address_list(given, option="nsqd_tcp_addresses", default_port=4150)
        }
        self._trouble = ""
        #: Number of subscribed connections that have ended.
        self.lost = 0

    def start(self, on_message: OnMessage) -> None:
        """Start the Readers.  Does not wait for their connections."""
        for _ in range(self._count):
            self.add(on_message)

    def add(self, on_message: OnMessage) -> None:
        """Start one more Reader.  nsqd limits the messages in flight on each connection."""

        def take(message: Message) -> None:
            message.enable_async()
            on_message(message)

        number = len(self._readers)
        self._subscribed.setdefault(number, set())
        reader = self._reader_class(
            self._topic,
            self._channel,
            take,
            on_connected=partial(self._on_connected, number),
            on_disconnected=partial(self._on_disconnected, number),
            **self._arguments,
        )
        self._readers.append(reader)
        reader.start(block=False)

    def is_starved(self) -> bool:
        """Return whether an nsqd may send few further messages to the Reader that was started last."""
        return self._readers[-1].is_starved()

    def _on_connected(self, number: int, address: str) -> None:
        """Copy the present subscriptions of the Reader *number*.  Runs in the I/O thread."""
        stats = self._readers[number].stats()
        self._subscribed[number] = {(connection.address, connection.partition) for connection in stats.connections}

    def _on_disconnected(self, number: int, endpoint: str, reason: object) -> None:
        """Update the state after a connection ended, or could not be opened.  Runs in the I/O thread."""
        self.lost += self._is_subscribed(number, endpoint)
        self._on_connected(number, endpoint)
        now = self._clock.now()
        self._lost[number, endpoint] = now
        for one, since in list(self._lost.items()):
            if now - since >= self._remembered:
                self._lost.pop(one, None)
        self._trouble = str(reason)

    def missing(self) -> list[str]:
        """Return the configured or recently lost nsqds to which at least one Reader is not subscribed."""
        now = self._clock.now()
        addresses = [{address for address, _ in here} for here in list(self._subscribed.values())]
        away = {one for one in self._named if not all(one in some for some in addresses)}
        for (number, endpoint), since in list(self._lost.items()):
            if now - since < self._remembered and not self._is_subscribed(number, endpoint):
                away.add(endpoint.partition("/")[0])
        return sorted(away)

    def _is_subscribed(self, number: int, endpoint: str) -> bool:
        """Return whether a Reader is subscribed to *endpoint*: an nsqd, or a topic partition at any leader."""
        lost, _, partition = endpoint.partition("/")
        return any(str(one) == partition if partition else address == lost for address, one in self._subscribed[number])

    def trouble(self) -> str:
        """Return why a connection last ended or failed, or why nsqlookupd gave no nsqd, or ""."""
        return self._trouble if self.is_connected() else self._trouble or self._without_nsqd()

    def _without_nsqd(self) -> str:
        """Return the error of the last poll of an nsqlookupd, or that no nsqd has the topic, or ""."""
        found = {address: health for reader in self._readers for address, health in reader.stats().lookupds.items()}
        failed = [f"nsqlookupd {address}: {health.error}" for address, health in found.items() if health.error]
        if failed:
            return "; ".join(failed)
        has_none = found and all(health.ok and not health.last_nodes for health in found.values())
        return f"no nsqd has topic {self._topic} at {', '.join(found)}" if has_none and not self._named else ""

    def pause(self) -> None:
        """Send RDY 0 on every connection."""
        for reader in self._readers:
            reader.pause()

    def resume(self) -> None:
        """Receive messages again after :meth:`pause`."""
        for reader in self._readers:
            reader.resume()

    def is_connected(self) -> bool:
        """Return whether at least one Reader is subscribed."""
        return any(self._subscribed.values())

    def check(self) -> None:
        """Raise the error that ended a Reader, for example because nsqd refused TLS or the secret."""
        for reader in self._readers:
            try:
                reader.join(timeout=0)
            except ClosedError:
                continue

    def stop(self, timeout: float) -> None:
        """Close every Reader gracefully within *timeout* seconds, so that no message stays in flight."""
        deadline = self._clock.now() + timeout
        for reader in self._readers:
            reader.close(timeout, wait=False)
        for reader in self._readers:
            reader.close(max(0.0, deadline - self._clock.now()))


def reader_arguments(options: RecorderOptions) -> dict[str, Any]:
    """Return a Reader's keyword arguments for these options."""
    arguments: dict[str, Any] = {
        "handler_pool": "inline",
        "delivery": "prompt",
        "max_in_flight": options.max_in_flight,
        "max_attempts": 0,
        "backoff": False,
        "handle_signals": False,
        "reconnect_delay": 0.5,
        "max_reconnect_delay": 15.0,
        "lookupd_poll_interval": 15.0,
        "ordered": options.ordered,
        **options.client,
    }
    if options.partitions:
        arguments["partitions"] = list(options.partitions)
    if options.msg_timeout is not None:
        arguments["msg_timeout"] = options.msg_timeout
    return arguments
