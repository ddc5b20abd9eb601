"""A channel keeps queued, in-flight and deferred messages, and chooses the client that receives the next message.

This module does no I/O and never blocks.  Callers pass the time.  A client is a :class:`Subscriber`.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush

from gnsq_lite.broker.messages import MESSAGE_OVERHEAD, MemoryMeter, StoredMessage, Subscriber
from gnsq_lite.broker.options import BrokerOptions

#: Number of bytes after which the channel delivers to the next client.
_BATCH_BYTES = 1 << 20


class AnswerRefused(Exception):
    """A client sent FIN, REQ or TOUCH for a message that is not in flight to it.  ``str()`` is nsqd's error text."""


class TooManyConsumers(Exception):
    """The channel has ``max_channel_consumers`` clients, or is being deleted.  ``str()`` is nsqd's error text."""


class Shared:
    """State that all topics and channels of one nsqd share."""

    def __init__(self, options: BrokerOptions, rng: random.Random | None = None) -> None:
        self.options = options
        self.rng = rng or random.Random()
        self.meter = MemoryMeter(options.max_memory)
        self.dirty: dict[Channel, None] = {}
        self.on_dirty: Callable[[], None] = lambda: None

    def wake(self, channel: Channel) -> None:
        """Mark that *channel* may have messages to deliver.  The nsqd then schedules a call of :meth:`pump`."""
        if not self.dirty:
            self.on_dirty()
        self.dirty[channel] = None

    def pump(self, now: float) -> None:
        """Deliver messages of all marked channels."""
        while self.dirty:
            channel, _ = self.dirty.popitem()
            channel.pump(now)


class Channel:
    """One channel of a topic.  Times are seconds of the caller's monotonic clock."""

    def __init__(self, topic_name: str, name: str, shared: Shared) -> None:
        self.topic_name, self.name = topic_name, name
        self.ephemeral = name.endswith("#ephemeral")
        self.paused = False
        self.exiting = False
        self.clients: dict[int, Subscriber] = {}
        self.message_count = self.requeue_count = self.timeout_count = 0
        self.queue: deque[StoredMessage] = deque()
        self.in_flight: dict[bytes, StoredMessage] = {}
        self.deferred: dict[bytes, StoredMessage] = {}
        self._shared = shared
        self._timeouts: list[tuple[float, int, StoredMessage]] = []
        self._delays: list[tuple[float, int, StoredMessage]] = []
        self._sequence = 0
        self._rounds = 0

    # -- input ------------------------------------------------------------------------------------------------------

    def put(self, message: StoredMessage) -> None:
        """Queue a new message."""
        self.message_count += 1
        self._shared.meter.used += len(message.body) + MESSAGE_OVERHEAD
        self._enqueue(message)

    def put_deferred(self, message: StoredMessage, delay: float, now: float) -> None:
        """Add a new message, which is queued *delay* seconds after *now*."""
        self.message_count += 1
        self._shared.meter.used += len(message.body) + MESSAGE_OVERHEAD
        self._defer(message, delay, now)

    def _enqueue(self, message: StoredMessage) -> None:
        if self.ephemeral and len(self.queue) >= self._shared.options.mem_queue_size:
            self._discard(message)  # nsqd/dummy_backend_queue.go @v1.3.0
            return
        self.queue.append(message)
        if self.clients:
            self._shared.wake(self)

    def _defer(self, message: StoredMessage, delay: float, now: float) -> None:
        message.client = None
        message.deadline = now + delay
        self.deferred[message.id] = message
        self._sequence += 1
        heappush(self._delays, (message.deadline, self._sequence, message))

    def _discard(self, message: StoredMessage) -> None:
        self._shared.meter.used -= len(message.body) + MESSAGE_OVERHEAD

    # -- output -----------------------------------------------------------------------------------------------------

    def pump(self, now: float) -> None:
        """Distribute queued messages evenly among clients that may receive more."""
        while self.queue and not self.paused and not self.exiting:
            ready = [client for client in self.clients.values() if client.room() > 0]
            if not ready:
                return
            self._rounds += 1
            start = self._rounds % len(ready)
            share = -(-len(self.queue) // len(ready))
            for client in ready[start:] + ready[:start]:
                self._deliver(client, min(share, client.room()), now)

    def _deliver(self, client: Subscriber, count: int, now: float) -> None:
        queue, in_flight, timeouts = self.queue, self.in_flight, self._timeouts
        deadline, sequence, size = now + client.msg_timeout, self._sequence, 0
        batch: list[StoredMessage] = []
        while queue and len(batch) < count and size < _BATCH_BYTES:
            message = queue.popleft()
            if client.sample_rate and self._shared.rng.randrange(100) > client.sample_rate:
                self._discard(message)  # nsqd/protocol_v2.go:351 @v1.3.0: messages outside the sample are dropped
                continue
            message.attempts = (message.attempts + 1) & 0xFFFF
            message.client = client
            message.delivered_at = now
            message.deadline = deadline
            in_flight[message.id] = message
            sequence += 1
            heappush(timeouts, (deadline, sequence, message))
            size += len(message.body)
            batch.append(message)
        self._sequence = sequence
        if len(timeouts) > 2 * len(in_flight) + 64:
            self._drop_stale_timeouts()
        if batch:
            client.in_flight_count += len(batch)
            client.message_count += len(batch)
            client.deliver(batch)

    def _drop_stale_timeouts(self) -> None:
        """Remove stale timeouts of answered and touched messages.  Otherwise the heap would grow without limit."""
        held = self.in_flight.get
        self._timeouts = [e for e in self._timeouts if held(e[2].id) is e[2] and e[2].deadline == e[0]]
        heapify(self._timeouts)

    # -- answers ----------------------------------------------------------------------------------------------------

    def _take(self, client: Subscriber, message_id: bytes) -> StoredMessage:
        message = self.in_flight.get(message_id)
        if message is None:
            raise AnswerRefused("ID not in flight")
        if message.client is not client:
            raise AnswerRefused("client does not own message")
        return message

    def finish(self, client: Subscriber, message_id: bytes) -> None:
        """Finish a message in flight.  Raises AnswerRefused."""
        message = self._take(client, message_id)
        del self.in_flight[message_id]
        self._shared.meter.used -= len(message.body) + MESSAGE_OVERHEAD
        client.finish_count += 1
        client.in_flight_count -= 1
        if self.queue:
            self._shared.wake(self)

    def requeue(self, client: Subscriber, message_id: bytes, delay: float, now: float) -> None:
        """Requeue a message in flight.  The message is queued *delay* seconds after *now*.  Raises AnswerRefused."""
        message = self._take(client, message_id)
        del self.in_flight[message_id]
        self.requeue_count += 1
        client.requeue_count += 1
        client.in_flight_count -= 1
        message.client = None
        if delay > 0:
            self._defer(message, delay, now)
        else:
            self._enqueue(message)
        if self.queue:
            self._shared.wake(self)

    def touch(self, client: Subscriber, message_id: bytes, now: float) -> None:
        """Restart a message's timeout.  Raises AnswerRefused.

        The message still times out at the latest ``max_msg_timeout`` seconds after its delivery.
        """
        message = self._take(client, message_id)
        longest = message.delivered_at + self._shared.options.max_msg_timeout
        deadline = min(now + client.msg_timeout, longest)
        if deadline == message.deadline:
            return  # max_msg_timeout allows no later deadline
        message.deadline = deadline
        self._sequence += 1
        heappush(self._timeouts, (deadline, self._sequence, message))
        if len(self._timeouts) > 2 * len(self.in_flight) + 64:
            self._drop_stale_timeouts()

    # -- time -------------------------------------------------------------------------------------------------------

    def scan(self, now: float) -> None:
        """Requeue messages that have timed out at *now*, and queue deferred messages that are due."""
        if self._timeouts and self._timeouts[0][0] <= now:
            for message in _due(self._timeouts, self.in_flight, now):
                self.timeout_count += 1
                client = message.client
                if client is not None and self.clients.get(client.client_id) is client:
                    client.in_flight_count -= 1
                message.client = None
                self._enqueue(message)
        if self._delays and self._delays[0][0] <= now:
            for message in _due(self._delays, self.deferred, now):
                self._enqueue(message)

    # -- clients ----------------------------------------------------------------------------------------------------

    def add_client(self, client: Subscriber) -> None:
        """Subscribe *client*.  Raises TooManyConsumers."""
        if self.exiting:
            raise TooManyConsumers("exiting")
        limit = self._shared.options.max_channel_consumers
        if limit and len(self.clients) >= limit:
            raise TooManyConsumers(f"consumers for {self.topic_name}:{self.name} exceeds limit of {limit}")
        self.clients[client.client_id] = client
        self.wake()

    def remove_client(self, client: Subscriber) -> bool:
        """Remove *client*.  Return whether the channel is ephemeral and has no client left.

        The client's messages stay in flight until they time out, as in nsqd (nsqd/channel.go:435 @v1.3.0).
        """
        if self.exiting or self.clients.pop(client.client_id, None) is None:
            return False
        return self.ephemeral and not self.clients

    def wake(self) -> None:
        """Schedule the delivery of queued messages."""
        if self.queue and self.clients and not self.paused:
            self._shared.wake(self)

    # -- administration ---------------------------------------------------------------------------------------------

    @property
    def depth(self) -> int:
        """Number of queued messages, which are neither in flight nor deferred."""
        return len(self.queue)

    @property
    def backend_depth(self) -> int:
        """Number of queued messages that nsqd would keep on disk."""
        return 0 if self.ephemeral else max(0, len(self.queue) - self._shared.options.mem_queue_size)

    def pause(self) -> None:
        """Stop delivering messages until :meth:`unpause`."""
        self.paused = True

    def unpause(self) -> None:
        """Deliver messages again."""
        self.paused = False
        self.wake()

    def empty(self) -> None:
        """Drop all queued, in-flight and deferred messages."""
        for held in (self.queue, self.in_flight.values(), self.deferred.values()):
            for message in held:
                self._discard(message)
        self.queue.clear()
        self.in_flight.clear()
        self.deferred.clear()
        self._timeouts.clear()
        self._delays.clear()
        for client in self.clients.values():
            client.in_flight_count = 0

    def close(self, *, delete: bool) -> None:
        """Disconnect every client.  If *delete* is true, also drop every message."""
        self.exiting = True
        for client in list(self.clients.values()):
            client.disconnect()
        if delete:
            self.empty()

    def unfinished(self) -> list[StoredMessage]:
        """Return all unfinished messages.  A real nsqd writes these messages to disk when it exits."""
        return [*self.queue, *self.in_flight.values(), *self.deferred.values()]


def _due(
    heap: list[tuple[float, int, StoredMessage]], held: dict[bytes, StoredMessage], now: float
) -> list[StoredMessage]:
    """Remove and return the messages in *held* that are due at *now*.  Remove stale entries from *heap* too."""
    due = []
    while heap and heap[0][0] <= now:
        deadline, _, message = heappop(heap)
        if held.get(message.id) is message and message.deadline == deadline:
            del held[message.id]
            due.append(message)
    return due
