"""A queued message, its id, the client that gets it, and the count of what is queued."""

from __future__ import annotations

#: What a message costs beside its body, for :class:`MemoryMeter`.
MESSAGE_OVERHEAD = 256

_NODE_SHIFT, _TIME_SHIFT, _SEQUENCE_LIMIT = 12, 22, 1 << 12
_EPOCH = 1288834974288  # nsqd/guid.go:24 @v1.3.0, in units of 2**20 ns


class StoredMessage:
    """One message on one channel (or waiting in its topic)."""

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
        """Return the same message for another channel: it is answered and counted on its own."""
        return StoredMessage(self.id, self.body, self.timestamp_ns, self.deferred)

    @property
    def cost(self) -> int:
        """Bytes it counts for in the broker's memory limit."""
        return len(self.body) + MESSAGE_OVERHEAD


class Subscriber:
    """A subscribed client as its channel sees it; the connection's session is a subclass."""

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
        """Return how many messages it may be sent now: RDY less what it has in flight."""
        return self.ready_count - self.in_flight_count

    def deliver(self, messages: list[StoredMessage]) -> None:
        """Send *messages*; they are in flight already."""
        raise NotImplementedError

    def disconnect(self) -> None:
        """Close the connection: the channel is being deleted or the broker stops."""
        raise NotImplementedError


class IdFactory:
    """Gives ids that never repeat and grow with time: 16 lower-case hex digits, as nsqd's.

    Layout as in nsqd: time in units of 2**20 ns, 10 bits node, 12 bits sequence.  Where nsqd sleeps when one unit's
    4,096 ids are used up, this borrows from the next unit.
    """

    __slots__ = ("_node", "_sequence", "_unit")

    def __init__(self, node_id: int) -> None:
        self._node = node_id
        self._unit = 0
        self._sequence = 0

    def next(self, wall_ns: int) -> bytes:
        """Return a new id, given nanoseconds since 1970."""
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
    """Counts what is queued and says when no more may be."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    def has_room(self, size: int) -> bool:
        """Whether *size* more bytes may be queued."""
        return self.used + size <= self.limit
