"""The router for plain NSQ, which sends publishes to the nsqds in turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from gnsq_lite.dialect import Endpoint, Router
from gnsq_lite.net.loop import current_greenlet
from gnsq_lite.publish.node import Node, NodeOwner
from gnsq_lite.publish.publication import Publish


class Rotation(Router):
    """A router that sends publishes to the nsqds in turn.  Call all methods in the loop's thread.

    The router skips silent and failed nsqds (PUB-4), and nsqds with too many unsent bytes.  If all connected nsqds are
    silent or have failed, the router chooses the nsqd with the fewest unanswered publishes.
    """

    def __init__(self, owner: NodeOwner) -> None:
        self._owner, self._settings, self._outcomes = owner, owner.settings, owner.outcomes
        self._loop, self._now, self._connected = owner.loop, owner.clock.now, owner.connected
        #: The held publishes, which no node could accept yet, in order.
        self._waiting: deque[Publish] = deque()
        self._turn = 0

    def publish(self, topic: str, body: bytes, timeout: float) -> Any:
        """Publish one message and wait.  Call this method in a greenlet of the loop's thread, with a checked body.

        Raises the publish's error, and InvalidName.
        """
        with self._loop.guard:
            publish = self._outcomes.begin(topic, body, timeout, self._settings.retries)
            self.send(publish)
        return publish.wait_in(current_greenlet())

    def send(self, publish: Any) -> None:
        """Send a publish to the next node, or hold it until a node accepts it."""
        if not self._send_now(publish):
            self._waiting.append(publish)

    def _send_now(self, publish: Publish) -> bool:
        while (node := self._next_node()) is not None:
            if node.connection.send_publish(publish):
                return True
        return False

    def _next_node(self) -> Node | None:
        self._turn = turn = self._turn + 1
        connected = self._connected
        if connected:
            node = connected[turn % len(connected)]
            if not (node.nsqd.silent or node.full or node.nsqd.failed_until):
                return node
        now = self._now()
        with_room = [each for each in connected if not each.full]
        answering = [each for each in with_room if not each.nsqd.is_avoided(now)]
        if answering:
            return answering[turn % len(answering)]
        if any(not each.nsqd.is_avoided(now) for each in connected):
            return None  # wait for a node that is full, and neither silent nor failed
        return min(with_room, key=lambda each: len(each.unanswered), default=None)

    def put_back(self, publishes: Iterable[Any], lost: Endpoint) -> None:
        """Send *publishes* again, in order.  The lost nsqd has not confirmed them."""
        for publish in publishes:
            self.send(publish)

    def on_room(self, endpoint: Endpoint) -> None:
        """Send the held publishes, in order, as long as a node accepts them."""
        waiting = self._waiting
        while waiting and (waiting[0].done() or self._send_now(waiting[0])):
            waiting.popleft()

    def waiting(self) -> list[Publish]:
        """Return the held publishes."""
        return list(self._waiting)

    def forget_done(self) -> None:
        """Drop the held publishes that have an outcome."""
        waiting = [publish for publish in self._waiting if not publish.done()]
        self._waiting.clear()
        self._waiting.extend(waiting)
