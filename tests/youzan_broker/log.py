"""One partition of one topic: a log with an end, and channels that read it.  No I/O; the clock is given.

Differences from nsqd 1.3.0: a new channel starts at the log's end; an ordered channel has one message in flight; a
client that goes gives its messages back at once.  Source: nsqd/channel.go, nsqd/message.go @0.3.7-HA.1.13.0.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from gnsq_lite.broker.channels import AnswerRefused, Channel, Shared
from gnsq_lite.broker.messages import MESSAGE_OVERHEAD, StoredMessage, Subscriber
from gnsq_lite.broker.topics import PutRefused

PARTITION_SHIFT = 50
MAX_ATTEMPTS = 4000
#: Bytes of a message on the server's disk beside body and header, from its trace replies.
DISK_OVERHEAD = 30  # of an ext topic one more


class PartitionMessage(StoredMessage):
    """A message with its place in the partition."""

    __slots__ = ("header", "offset", "raw_size", "tag")

    def __init__(self, message_id: bytes, body: bytes, timestamp_ns: int, header: bytes | None, tag: str) -> None:
        super().__init__(message_id, body, timestamp_ns)
        self.header, self.tag = header, tag
        self.offset = self.raw_size = 0

    def copy(self) -> PartitionMessage:
        twin = PartitionMessage(self.id, self.body, self.timestamp_ns, self.header, self.tag)
        twin.offset, twin.raw_size = self.offset, self.raw_size
        return twin


class PartitionChannel(Channel):
    """A channel of one partition."""

    def __init__(
        self, topic_name: str, name: str, shared: Shared, *, ordered: bool, forget: Callable[[str], None]
    ) -> None:
        super().__init__(topic_name, name, shared)
        self.ordered, self._forget = ordered, forget
        self.by_internal: dict[bytes, bytes] = {}

    # -- out --------------------------------------------------------------------------------------------------------

    def pump(self, now: float) -> None:
        """Send what may be sent: one message at a time where ordered, by tag and filter where clients have them."""
        while self.queue and not self.paused and not self.exiting and not (self.ordered and self.in_flight):
            takers = [client for client in self.clients.values() if client.room() > 0]
            if not takers:
                return
            message: Any = self.queue[0]
            chosen = [client for client in takers if getattr(client, "desired_tag", "") == self._tag_for(message)]
            if not chosen:
                return  # the next message waits too: nsqd reads its log in order
            self._rounds += 1
            client: Any = chosen[self._rounds % len(chosen)]
            if not client.passes(message):
                self.queue.popleft()
                self._discard(message)
                continue
            attempts = message.attempts
            self._deliver(client, 1, now)
            message.attempts = min(attempts + 1, MAX_ATTEMPTS)

    def _tag_for(self, message: PartitionMessage) -> str:
        wanted = message.tag
        known = {getattr(client, "desired_tag", "") for client in self.clients.values()}
        return wanted if wanted in known else ""

    # -- answers ----------------------------------------------------------------------------------------------------

    def held_id(self, message_id: bytes) -> bytes:
        """Return the whole id of what is in flight under the first 8 bytes, which are all the server looks at."""
        if message_id in self.in_flight:
            return message_id
        return next((known for known in self.in_flight if known[:8] == message_id[:8]), message_id)

    def _take(self, client: Subscriber, message_id: bytes) -> StoredMessage:
        if message_id in self.deferred:
            raise AnswerRefused("client does not own message : 0 vs 0")
        try:
            return super()._take(client, message_id)
        except AnswerRefused as error:
            if "not in flight" in str(error):
                raise AnswerRefused("Message ID not in flight") from None
            raise

    def _enqueue(self, message: StoredMessage) -> None:
        if message.attempts:  # it was read before: it stands before what was not
            self.queue.appendleft(message)
        else:
            self.queue.append(message)  # an ephemeral channel reads the same log, and drops nothing of it
        if self.clients:
            self._shared.wake(self)

    # -- clients ----------------------------------------------------------------------------------------------------

    def remove_client(self, client: Subscriber) -> bool:
        """Forget *client*; what it had in flight is ready at once, with the attempts it had before."""
        if self.clients.get(client.client_id) is not client:
            return False
        held = [message for message in self.in_flight.values() if message.client is client]
        was_last = super().remove_client(client)
        self._give_back(held)
        if was_last:
            self._forget(self.name)
        return was_last

    def _give_back(self, held: list[StoredMessage]) -> None:
        for message in reversed(held):
            del self.in_flight[message.id]
            message.client = None
            message.attempts = max(0, message.attempts - 1)
            self.queue.appendleft(message)
        self.wake()

    def change_leader(self) -> None:
        """Disconnect all clients.  Messages in flight are ready again, and this delivery is no attempt."""
        for client in list(self.clients.values()):
            client.disconnect()
        self.clients.clear()
        self._give_back(list(self.in_flight.values()))
        self.queue.extend(self.deferred.values())
        self.deferred.clear()
        self.queue = deque(sorted(self.queue, key=lambda message: message.id[:8]))
        for message in self.queue:
            message.attempts = 0
        if self.ephemeral:  # replicas know nothing of it
            self._forget(self.name)

    def start_from(self, messages: list[PartitionMessage]) -> None:
        """Read *messages* next, and nothing of what was to be read."""
        self.empty()
        for message in messages:
            self.put(message.copy())


class Partition:
    """The log of one partition, wherever its leader is."""

    def __init__(self, topic: str, number: int, shared: Shared, *, ordered: bool, ext: bool) -> None:
        self.topic, self.number, self.ordered, self.ext = topic, number, ordered, ext
        self.log: list[PartitionMessage] = []
        self.channels: dict[str, PartitionChannel] = {}
        self.end = 0
        #: Messages that retention has removed from the log's beginning.
        self.removed = 0
        self._next = 1
        self._shared = shared

    def put(self, made: list[PartitionMessage], traces: list[int]) -> None:
        """Append all of *made*, giving them ids and places, or, raising PutRefused, none."""
        cost = sum(len(message.body) + MESSAGE_OVERHEAD for message in made) * (1 + len(self.channels))
        if not self._shared.meter.has_room(cost):
            raise PutRefused(f"memory limit of {self._shared.meter.limit} bytes reached")
        for message, trace in zip(made, traces, strict=True):
            self._next += 1
            internal = (self.number << PARTITION_SHIFT) + self._next
            message.id = internal.to_bytes(8, "big") + trace.to_bytes(8, "big")
            message.offset = self.end
            extra = int(self.ext) + (0 if message.header is None else 2 + len(message.header))
            message.raw_size = DISK_OVERHEAD + len(message.body) + extra
            self.end += message.raw_size
            self.log.append(message)
            self._shared.meter.used += len(message.body) + MESSAGE_OVERHEAD
            for channel in self.channels.values():
                channel.put(message.copy())

    def channel(self, name: str) -> PartitionChannel:
        """Return the channel, made at the log's end if need be."""
        found = self.channels.get(name)
        if found is None:
            found = self.channels[name] = PartitionChannel(
                self.topic, name, self._shared, ordered=self.ordered, forget=self.delete_channel
            )
        return found

    def delete_channel(self, name: str) -> None:
        """Forget a channel, if there is one of that name."""
        channel = self.channels.pop(name, None)
        if channel is not None:
            channel.close(delete=True)

    def messages_from(self, kind: str, value: int) -> list[PartitionMessage]:
        """Return the log from a start offset on.  Raises ValueError with the server's text."""
        if kind == "special":
            if value != -1:
                raise ValueError("not known special offset")
            return []
        if not self.log:
            raise ValueError("commit log end of file")
        if kind == "virtual_queue":
            return [message for message in self.log if message.offset >= value]
        if kind == "timestamp":
            return [message for message in self.log if message.timestamp_ns >= value * 1_000_000_000]
        return self.log[max(value - 1, 0) :]

    @property
    def begin(self) -> int:
        """The place of the first message that is kept."""
        return self.log[0].offset if self.log else self.end

    def trim(self, place: int) -> None:
        """Remove the messages before *place*; channels keep what they had not delivered."""
        kept = [message for message in self.log if message.offset >= place]
        self.removed += len(self.log) - len(kept)
        self.log = kept

    def numbered(self, kind: str, value: int) -> tuple[int, PartitionMessage] | None:
        """Return (number, message) of the first one from a place, or a number, on; the first one ever has 1."""
        for number, message in enumerate(self.log, self.removed + 1):
            if (message.offset if kind == "virtual_offset" else number) >= value:
                return number, message
        return None

    def scan(self, now: float) -> None:
        """Requeue what has timed out and release what was deferred."""
        for channel in self.channels.values():
            channel.scan(now)
