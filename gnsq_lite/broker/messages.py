"""Stored messages, their ids, the client interface of a channel, and the memory limit."""

from __future__ import annotations

#: Bytes that :class:`MemoryMeter` counts for a message in addition to its body.
MESSAGE_OVERHEAD = 256

_NODE_SHIFT, _TIME_SHIFT, _SEQUENCE_LIMIT = 12, 22, 1 << 12
_EPOCH = 1288834974288  # nsqd/guid.go:24 @v1.3.0, in units of 2**20 ns


class StoredMessage:
    """One message on one channel, or in the backlog of its topic."""

    __slots__ = ("attempts", "body", "client", "deadline", "deferred", "delivered_at", "id", "timestamp_ns")

    def __init__(self, message_id: bytes, body: bytes, timestamp_ns: int, deferred: float = 0.0) -> None:
        self.id = message_id
        self.body = body
        self.timestamp_ns = timestamp_ns
        self.deferred = deferred
        self.attempts = 0
        self.client: Subscriber | None = None
        self.delivered_at = 0.0
        self.deadline = 0.0

    def copy(self) -> StoredMessage:
        """Copy the message for another channel.  Each channel delivers its own copy, and counts the copy's attempts."""
        return StoredMessage(self.id, self.body, self.timestamp_ns, self.deferred)

    @property
    def cost(self) -> int:
        """Number of bytes that count towards the broker's memory limit."""
        return len(self.body) + MESSAGE_OVERHEAD


class Subscriber:
    """Interface through which a channel uses a subscribed client.  Sessions are subclasses."""

    def __init__(self, client_id: int, msg_timeout: float) -> None:
        self.client_id = client_id
        self.msg_timeout = msg_timeout
        self.sample_rate = 0
        self.ready_count = 0
        self.in_flight_count = 0
        self.message_count = 0
        self.finish_count = 0
        self.requeue_count = 0

    def room(self) -> int:
        """Return how many messages the client may receive now: RDY minus its messages in flight."""
        return self.ready_count - self.in_flight_count

    def deliver(self, messages: list[StoredMessage]) -> None:
        """Send *messages*, which the channel has marked as in flight."""
        raise NotImplementedError

    def disconnect(self) -> None:
        """Close the connection, because the channel is being deleted or the nsqd stops."""
        raise NotImplementedError


class IdFactory:
    """Generates unique message ids of 16 lower-case hex digits, in nsqd's layout.  A later id is greater.

    An id consists of the time in units of 2**20 ns, 10 bits for the node, and 12 bits for the sequence number.  After
    4,096 ids in one unit of time, nsqd sleeps, but this class uses ids of the next unit.
    """

    __slots__ = ("_node", "_sequence", "_unit")

    def __init__(self, node_id: int) -> None:
        self._node = node_id
        self._unit = 0
        self._sequence = 0

    def next(self, wall_ns: int) -> bytes:
        """Return a new id for the time *wall_ns*, in nanoseconds since 1970."""
        unit = (wall_ns >> 20) - _EPOCH
        if unit > self._unit:
            self._unit, self._sequence = unit, 0
        else:
            self._sequence += 1
            if self._sequence == _SEQUENCE_LIMIT:
                self._unit, self._sequence = self._unit + 1, 0
        value = (self._unit << _TIME_SHIFT) | (self._node << _NODE_SHIFT) | self._sequence
        return b"%016x" % (value & 0xFFFFFFFFFFFFFFFF)


class MemoryMeter:
    """Counts the bytes of all stored messages against a limit."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    def has_room(self, size: int) -> bool:
        """Whether *size* more bytes may be stored."""
        return self.used + size <= self.limit
