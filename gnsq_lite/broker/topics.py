"""Topics of one nsqd.  This module does no I/O, and callers pass the clock."""

from __future__ import annotations

import functools
import random
import re
from collections import deque
from collections.abc import Iterable
from typing import Protocol

from gnsq_lite.broker.channels import Channel, Shared
from gnsq_lite.broker.messages import MESSAGE_OVERHEAD, IdFactory, StoredMessage, Subscriber
from gnsq_lite.broker.options import BrokerOptions
from gnsq_lite.clock import Clock

_NAME = re.compile(r"[.a-zA-Z0-9_-]+(#ephemeral)?")


@functools.lru_cache(maxsize=1024)
def is_valid_name(name: str) -> bool:
    """Whether *name* is valid for a topic or a channel (internal/protocol/names.go @v1.3.0)."""
    return 1 <= len(name) <= 64 and _NAME.fullmatch(name) is not None


class PutRefused(Exception):
    """A topic refuses a publish.  ``str()`` is the reason."""


class Observer(Protocol):
    """A lookupd that is notified of created and deleted topics and channels."""

    def registered(self, topic: str, channel: str | None) -> None:
        """Register the new *channel*, or the new *topic* if *channel* is None."""

    def unregistered(self, topic: str, channel: str | None) -> None:
        """Unregister the deleted *channel*, or the deleted *topic* if *channel* is None."""

    def channels_of(self, topic: str) -> Iterable[str]:
        """Return the names of the channels to create with the new *topic*."""


class Topic:
    """One topic.  It copies each message to every channel.  Without channels, or if paused, a topic keeps a backlog."""

    def __init__(self, name: str, shared: Shared) -> None:
        self.name = name
        self.ephemeral = name.endswith("#ephemeral")
        self.paused = False
        self.exiting = False
        self.channels: dict[str, Channel] = {}
        self.message_count = self.message_bytes = 0
        self.queue: deque[StoredMessage] = deque()
        self.ids = IdFactory(shared.options.node_id)
        self._shared = shared

    def put(self, messages: list[StoredMessage], now: float) -> None:
        """Add all *messages*, or raise PutRefused and add none.  A full ephemeral backlog drops messages."""
        if self.exiting:
            raise PutRefused("exiting")
        size = sum([len(message.body) for message in messages])
        cost = (size + MESSAGE_OVERHEAD * len(messages)) * max(1, len(self.channels))
        if not self._shared.meter.has_room(cost):
            raise PutRefused(f"memory limit of {self._shared.meter.limit} bytes reached")
        self.message_count += len(messages)
        self.message_bytes += size
        if self.channels and not self.paused:  # drain() has emptied the backlog
            for message in messages:
                self._spread(message, now)
            return
        limit = self._shared.options.mem_queue_size
        for message in messages:
            if len(self.queue) >= limit:
                if self.ephemeral:
                    return
                if self._shared.options.like_nsqd:
                    message.deferred = 0.0  # nsqd writes it to disk, without the delay
            self.queue.append(message)
            self._shared.meter.used += len(message.body) + MESSAGE_OVERHEAD

    def _spread(self, message: StoredMessage, now: float) -> None:
        first = True
        for channel in self.channels.values():
            own = message if first else message.copy()
            first = False
            if own.deferred:
                channel.put_deferred(own, own.deferred, now)
            else:
                channel.put(own)

    def drain(self, now: float) -> None:
        """Move the backlog to the channels, if there are channels and the topic is not paused."""
        while self.queue and self.channels and not self.paused:
            message = self.queue.popleft()
            self._shared.meter.used -= len(message.body) + MESSAGE_OVERHEAD
            self._spread(message, now)

    @property
    def depth(self) -> int:
        """Number of messages in the backlog."""
        return len(self.queue)

    @property
    def backend_depth(self) -> int:
        """Number of backlog messages that nsqd would keep on disk."""
        return 0 if self.ephemeral else max(0, len(self.queue) - self._shared.options.mem_queue_size)

    def empty(self) -> None:
        """Drop the backlog, but not the messages of the channels."""
        for message in self.queue:
            self._shared.meter.used -= len(message.body) + MESSAGE_OVERHEAD
        self.queue.clear()


class Topics:
    """All topics of one nsqd, by name."""

    def __init__(
        self,
        options: BrokerOptions,
        clock: Clock,
        *,
        rng: random.Random | None = None,
        observers: Iterable[Observer] = (),
    ) -> None:
        self.shared = Shared(options, rng)
        self.by_name: dict[str, Topic] = {}
        self.observers: list[Observer] = list(observers)
        self._clock = clock
        #: The channels that exist since the last :meth:`learn_channels`.
        self._learned: set[Channel] = set()

    def now(self) -> float:
        """Return the monotonic time in seconds."""
        return self._clock.now()

    def get(self, name: str) -> Topic:
        """Return the topic *name*.  Create a missing topic, with the durable channels that lookupds list for it."""
        topic = self.by_name.get(name)
        if topic is None:
            topic = self.by_name[name] = Topic(name, self.shared)
            for observer in self.observers:
                observer.registered(name, None)
            for observer in self.observers:
                for channel in observer.channels_of(name):
                    if not channel.endswith("#ephemeral"):
                        self.get_channel(topic, channel)
        return topic

    def get_channel(self, topic: Topic, name: str) -> Channel:
        """Return the channel *name*.  Create a missing channel, and move the topic's backlog to the new channel."""
        channel = topic.channels.get(name)
        if channel is None:
            channel = topic.channels[name] = Channel(topic.name, name, self.shared)
            for observer in self.observers:
                observer.registered(topic.name, name)
            topic.drain(self.now())
        return channel

    def publish(self, topic: Topic, bodies: Iterable[bytes], defer: float = 0.0) -> int:
        """Publish all *bodies* to *topic*, and return how many.  If this raises PutRefused, no body is published."""
        wall_ns = int(self._clock.wall() * 1e9)
        next_id = topic.ids.next
        messages = [StoredMessage(next_id(wall_ns), body, wall_ns, defer) for body in bodies]
        topic.put(messages, self._clock.now())
        return len(messages)

    def delete_topic(self, name: str) -> bool:
        """Delete a topic with its channels and messages.  Return whether the topic existed."""
        topic = self.by_name.get(name)
        if topic is None or topic.exiting:
            return False
        topic.exiting = True
        for channel in list(topic.channels.values()):
            channel.close(delete=True)
            self._unregister(name, channel.name)
        topic.channels.clear()
        topic.empty()
        del self.by_name[name]
        self._unregister(name, None)
        return True

    def delete_channel(self, topic: Topic, name: str) -> bool:
        """Delete a channel, and then an ephemeral topic without channels.  Return whether the channel existed."""
        channel = topic.channels.get(name)
        if channel is None or channel.exiting:
            return False
        channel.close(delete=True)
        del topic.channels[name]
        self._unregister(topic.name, name)
        if topic.ephemeral and not topic.channels:
            self.delete_topic(topic.name)
        return True

    def _unregister(self, topic: str, channel: str | None) -> None:
        for observer in self.observers:
            observer.unregistered(topic, channel)

    def leave(self, channel: Channel, client: Subscriber) -> None:
        """Remove *client* from *channel*.  Delete an ephemeral channel that has no client left."""
        if channel.remove_client(client):
            topic = self.by_name.get(channel.topic_name)
            if topic is not None and topic.channels.get(channel.name) is channel:
                self.delete_channel(topic, channel.name)

    def set_topic_paused(self, topic: Topic, paused: bool) -> None:
        """Pause or unpause a topic.  A paused topic keeps messages in its backlog."""
        topic.paused = paused
        topic.drain(self.now())

    def scan(self) -> None:
        """Requeue messages that have timed out, and queue deferred messages that are due."""
        now, known = self.now(), self._learned if self.shared.options.like_nsqd else None
        for topic in self.by_name.values():
            for channel in topic.channels.values():
                if known is None or channel in known:
                    channel.scan(now)

    def learn_channels(self) -> None:
        """Let :meth:`scan` check the channels that exist now.  Called every 5 s, and needed only like nsqd."""
        self._learned = {channel for topic in self.by_name.values() for channel in topic.channels.values()}

    def close(self) -> Saved:
        """Disconnect every client.  Return the unfinished messages, which :meth:`restore` accepts."""
        saved: Saved = {}
        for topic in self.by_name.values():
            topic.exiting = True
            for channel in topic.channels.values():
                channel.close(delete=False)
            if not topic.ephemeral:
                kept = {c.name: (c.paused, c.unfinished()) for c in topic.channels.values() if not c.ephemeral}
                saved[topic.name] = (topic.paused, list(topic.queue), kept)
        self.by_name.clear()
        return saved

    def restore(self, saved: Saved) -> None:
        """Restore the messages that :meth:`close` returned.  All restored messages are queued, none deferred."""
        for name, (paused, backlog, channels) in saved.items():
            topic = self.get(name)
            topic.paused = paused
            for channel_name, (channel_paused, messages) in channels.items():
                channel = self.get_channel(topic, channel_name)
                channel.paused = channel_paused
                for message in messages:
                    message.client, message.deferred = None, 0.0
                    channel.put(message)
                channel.message_count = 0
            for message in backlog:
                message.deferred = 0.0
                topic.queue.append(message)
                self.shared.meter.used += message.cost
            topic.drain(self.now())


Saved = dict[str, tuple[bool, list[StoredMessage], dict[str, tuple[bool, list[StoredMessage]]]]]
