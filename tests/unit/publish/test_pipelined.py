"""Responses read in the hub, and sends to an nsqd that accepts no bytes; no network, no waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gnsq_lite import errors
from gnsq_lite.dialect import Endpoint
from gnsq_lite.net.connection import MOST_UNSENT
from gnsq_lite.net.loop import loop_here
from gnsq_lite.publish.nodes import Node
from gnsq_lite.publish.publication import Publish
from gnsq_lite.wire.frames import count_oks
from tests.unit.publish.conftest import publish_in_loop
from tests.unit.publish.cores import FakeNodes, end_turn

OK = b"\0\0\0\6\0\0\0\0OK"


class Pipeline:
    """A connection on which *count* publishes were sent."""

    def __init__(self, count: int) -> None:
        core = FakeNodes(nodes=0).core
        self.node = Node(core, Endpoint("nsqd", 4150))
        self.outcomes = core.outcomes
        for _ in range(count):
            self.node.unanswered.append(publish_in_loop(loop_here(), "t", (b"x",), 5.0, 5.0))
        self.all = list(self.node.unanswered)
        self.connection: Any = self.node.make_connection()
        self.connection._deliver(b"")  # the handshake left nothing

    def takes(self, data: bytes) -> bool:
        return bool(self.connection._take_oks(data))

    def done(self) -> int:
        return sum(publication.done() for publication in self.all)


@pytest.mark.parametrize(
    ("data", "count"),
    [(OK, 1), (OK * 3, 3), (b"", 0), (OK[:-1], 0), (OK + OK[:5], 0), (OK + b"\0\0\0\6\0\0\0\0NO", 0), (b"O" * 20, 0)],
)
def test_oks_are_counted_where_there_is_nothing_else(data: bytes, count: int) -> None:
    assert count_oks(data) == count


@pytest.mark.rule("PUB-2")
def test_a_read_of_oks_settles_the_oldest_in_one_go() -> None:
    writer = Pipeline(5)
    assert writer.takes(OK * 3)
    assert [publication.done() for publication in writer.all] == [True] * 3 + [False] * 2
    assert writer.outcomes._cells[0] == 3


@pytest.mark.rule("PUB-2")
def test_what_is_more_than_oks_or_not_certain_is_for_the_reader() -> None:
    writer = Pipeline(2)
    assert not writer.takes(OK * 3)  # answers to no publish
    assert not writer.takes(b"\0\0\0\x0f\0\0\0\0_heartbeat_")
    writer.node.nsqd.silent.add(writer.node)  # the rotation must learn of it
    assert not writer.takes(OK)
    writer.node.nsqd.silent.discard(writer.node)
    writer.connection._deliver(b"\0\0\0")  # the beginning of another answer
    assert not writer.takes(OK)
    assert (writer.done(), writer.outcomes._cells[0]) == (0, 0)
    writer.connection._deliver(b"\6\0\0\0\0OK")
    assert writer.takes(OK)


BODY = bytes(100_000)


class Socket:
    """Stands in for a stream: the kernel takes so many bytes, and keeps the rest until nsqd goes on."""

    closed = None
    unsent = 0

    def __init__(self, room: int) -> None:
        self.written, self.room = b"", room
        self.on_drained: Callable[[], None]

    def write(self, data: bytes) -> None:
        self.written += data
        self.unsent = max(0, len(self.written) - self.room)

    def has_ended(self) -> bool:
        return False

    def drain(self, room: int) -> None:
        """nsqd takes all, and then so many bytes."""
        self.written, self.room, self.unsent = b"", room, 0
        self.on_drained()


class Stopped(FakeNodes):
    """A Writer and its nsqds, each of which takes *room* bytes and then no more."""

    def __init__(self, nodes: int = 1, room: int = 0) -> None:
        super().__init__(nodes)
        self.made: list[Publish] = []
        self.sockets = [Socket(room) for _ in self.nodes]
        for node, sock in zip(self.nodes, self.sockets, strict=True):
            self.core.on_disconnected(node)
            self.connect(node, sock)

    def connect(self, node: Node, sock: Socket) -> None:
        connection: Any = node.make_connection()
        connection._stream = sock
        sock.on_drained = connection._regain_room
        node.on_connected(connection)

    def publish_many(self, count: int) -> list[Publish]:
        """Publish, each in a turn of the loop."""
        made = []
        for _ in range(count):
            made.append(self.publish_body())
            end_turn()
        return made

    def publish_body(self) -> Publish:
        deadline = self.clock.now() + 5.0
        publication = publish_in_loop(self.core.loop, "t", (BODY + b"%09d" % len(self.made),), 5.0, deadline)
        self.made.append(publication)
        self.core.submit(publication)
        return publication


#: How many of these bodies are more than may be unsent.
FULL = MOST_UNSENT // len(BODY) + 1


@pytest.mark.rule("PUB-2")
def test_what_an_nsqd_that_takes_nothing_is_not_sent_leaves_with_its_deadline() -> None:
    writer = Stopped()
    made = writer.publish_many(3 * FULL)
    assert writer.sockets[0].unsent <= MOST_UNSENT + 2 * len(BODY)
    writer.later(5.0)
    outcomes = [type(each._error) for each in made]
    assert outcomes.count(errors.PublishTimeout) == len(writer.nodes[0].unanswered) <= FULL + 1
    assert outcomes == sorted(outcomes, key=[errors.PublishTimeout, errors.NotSent].index)
    with pytest.raises(errors.NotSent, match="within 5 s: nsqd0:4150: connected, and accepts no more bytes"):
        made[-1].result(0)
    assert writer.core.router.waiting() == []


@pytest.mark.rule("PUB-2")
@pytest.mark.parametrize("room", [10**9, 2 * MOST_UNSENT, 0])
def test_what_waited_for_room_goes_before_what_comes_later(room: int) -> None:
    writer = Stopped()
    sock = writer.sockets[0]
    made = writer.publish_many(3 * FULL)
    written = b""
    for _ in range(10):
        written += sock.written
        sock.drain(room)
        made.append(writer.publish_body())
        end_turn()
        assert sock.unsent <= MOST_UNSENT + 2 * len(BODY)
    written += sock.written
    assert written == b"".join(each.command() for each in made)
    assert list(writer.nodes[0].unanswered) == made


@pytest.mark.rule("PUB-4")
def test_another_nsqd_gets_what_one_has_no_room_for() -> None:
    writer = Stopped(nodes=2)
    writer.sockets[1].room = 10**9
    made = writer.publish_many(4 * FULL)
    assert all(each.sent for each in made)
    assert writer.sockets[0].unsent <= MOST_UNSENT + 2 * len(BODY)
    assert sum(writer.owed()) == 4 * FULL
    writer.later(5.0)
    assert writer.nodes[0].is_silent()
    writer.lose(writer.nodes[1], errors.ConnectionLost("nsqd1", "gone"))
    del writer.core.nodes[writer.nodes[1].endpoint]
    waits = writer.publish_body()
    assert not waits.sent
    writer.sockets[0].drain(10**9)
    assert waits.sent


def test_a_new_connection_has_room() -> None:
    writer = Stopped()
    writer.publish_many(2 * FULL)
    writer.lose(writer.nodes[0], errors.ConnectionLost("nsqd0", "gone"))
    unsent = [each for each in writer.made if not each.done()]
    sock = Socket(10**9)
    writer.connect(writer.nodes[0], sock)
    end_turn()
    assert sock.written == b"".join(each.command() for each in unsent)
    while writer.nodes[0].unanswered:
        writer.answer(writer.nodes[0])
    for _ in range(2 * FULL):  # one by one, which takes the other way to the socket
        assert writer.publish_many(1)[0].sent
        writer.answer(writer.nodes[0])


def test_many_publishes_of_one_turn_wait_for_its_end_where_they_are_large() -> None:
    writer = Stopped(room=10**9)
    made = [writer.publish_body() for _ in range(3 * FULL)]
    assert 0 < len(writer.nodes[0].unanswered) <= FULL + 1
    for _ in range(3):
        end_turn()
    assert writer.sockets[0].written == b"".join(each.command() for each in made)
