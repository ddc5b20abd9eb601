"""A Writer's core with nodes that have no network."""

from __future__ import annotations

from typing import Any

import gevent

from gnsq_lite import errors
from gnsq_lite.dialect import Dialect, Endpoint
from gnsq_lite.net.link import Again
from gnsq_lite.options import ConnectionOptions, LookupOptions, WriterReconnectOptions
from gnsq_lite.publish.nodes import Node
from gnsq_lite.publish.publication import Publish
from gnsq_lite.publish.settings import ProducerSettings
from tests.fakes import FakeClock
from tests.unit.publish.conftest import core_of, publish_in_loop


class Line:
    """A connection that sends each publish and receives nothing."""

    address = "nsqd"

    def __init__(self, pending: Any) -> None:
        self.sent: list[bytes] = []
        self.unanswered = pending

    def send_publish(self, publication: Publish) -> bool:
        if publication.mark_sent():
            self.unanswered.append(publication)
            self.sent.append(publication.command())
        return True

    def close_if_dead(self, now: float) -> None:
        pass


def publish_of(core: Any, body: bytes, timeout: float) -> Publish:
    deadline = core.clock.now() + timeout
    return publish_in_loop(core.loop, "t", (body,), timeout, deadline, retries=core.settings.retries)


def core_with(
    clock: FakeClock,
    coalesce: bool = False,
    max_body_size: int = 5_000_000,
    retries: int = 0,
    max_pending: int = 1_000_000,
) -> Any:
    """Return a core without nodes in the loop of this thread."""
    settings = ProducerSettings(
        dialect=Dialect(),
        endpoints=(),
        lookupds=(),
        connection=ConnectionOptions(),
        reconnect=WriterReconnectOptions(),
        lookup=LookupOptions(),
        max_body_size=max_body_size,
        max_pending=max_pending,
        coalesce=coalesce,
        retries=retries,
    )
    return core_of(settings, clock)


class FakeNodes:
    """A Writer's core with *nodes* nodes, and its clock."""

    def __init__(self, nodes: int = 2, retries: int = 0) -> None:
        self.clock = FakeClock()
        self.core = core_with(self.clock, retries=retries)
        self.nodes = [Node(self.core, Endpoint(f"nsqd{number}", 4150)) for number in range(nodes)]
        for node in self.nodes:
            self.core.nodes[node.endpoint] = node
            self.open(node)

    def open(self, node: Node) -> None:
        line: Any = Line(node.unanswered)
        node.on_connected(line)

    def lose(self, node: Node, error: errors.NSQError) -> Again:
        if node.connection is not None:
            node.on_disconnected(node.connection)
        return node.on_lost(error)

    def publish(self, timeout: float = 5.0) -> Publish:
        publication: Publish = publish_of(self.core, b"x", timeout)
        self.core.submit(publication)
        return publication

    def later(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.core.outcomes.expire()

    def answer(self, node: Node) -> None:
        node.on_response(node.connection, b"OK")

    def owed(self) -> list[int]:
        return [len(node.unanswered) for node in self.nodes]

    def leave_the_silent_one_alone(self) -> None:
        """Let the first of two nodes answer, the second become silent, and the first connection be lost."""
        good, silent = self.nodes
        self.publish(1.0), self.publish(1.0)
        self.answer(good)
        self.later(1.0)
        assert silent.is_silent()
        self.lose(good, errors.ConnectionLost("nsqd0", "gone"))


def end_turn() -> None:
    """Let the hub run the callbacks that are due, and the callbacks that these schedule."""
    for _ in range(4):
        gevent.sleep(0)
