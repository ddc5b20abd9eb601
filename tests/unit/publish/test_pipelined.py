"""What is read in the hub, and what is sent to an nsqd that takes nothing; without a network and without waiting."""

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
from tests.unit.publish.cores import Bench as Core
from tests.unit.publish.cores import end_turn

OK = b"\0\0\0\6\0\0\0\0OK"


class Bench:
    """A connection on which so many publishes were sent."""

    def __init__(self, count: int) -> None:
        core = Core(nodes=0).core
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
    bench = Bench(5)
    assert bench.takes(OK * 3)
    assert [publication.done() for publication in bench.all] == [True] * 3 + [False] * 2
    assert bench.outcomes._cells[0] == 3


@pytest.mark.rule("PUB-2")
def test_what_is_more_than_oks_or_not_certain_is_for_the_reader() -> None:
    bench = Bench(2)
    assert not bench.takes(OK * 3)  # answers to no publish
    assert not bench.takes(b"\0\0\0\x0f\0\0\0\0_heartbeat_")
    bench.node.nsqd.silent.add(bench.node)  # which is to be told to the rotation
    assert not bench.takes(OK)
    bench.node.nsqd.silent.discard(bench.node)
    bench.connection._deliver(b"\0\0\0")  # the beginning of another answer
    assert not bench.takes(OK)
    assert (bench.done(), bench.outcomes._cells[0]) == (0, 0)
    bench.connection._deliver(b"\6\0\0\0\0OK")
    assert bench.takes(OK)


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


class Stopped(Core):
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
    bench = Stopped()
    made = bench.publish_many(3 * FULL)
    assert bench.sockets[0].unsent <= MOST_UNSENT + 2 * len(BODY)
    bench.later(5.0)
    outcomes = [type(each._error) for each in made]
    assert outcomes.count(errors.PublishTimeout) == len(bench.nodes[0].unanswered) <= FULL + 1
    assert outcomes == sorted(outcomes, key=[errors.PublishTimeout, errors.NotSent].index)
    with pytest.raises(errors.NotSent, match="within 5 s: nsqd0:4150: connected, and accepts no more bytes"):
        made[-1].result(0)
    assert bench.core.router.waiting() == []


@pytest.mark.rule("PUB-2")
@pytest.mark.parametrize("room", [10**9, 2 * MOST_UNSENT, 0])
def test_what_waited_for_room_goes_before_what_comes_later(room: int) -> None:
    bench = Stopped()
    sock = bench.sockets[0]
    made = bench.publish_many(3 * FULL)
    written = b""
    for _ in range(10):
        written += sock.written
        sock.drain(room)
        made.append(bench.publish_body())
        end_turn()
        assert sock.unsent <= MOST_UNSENT + 2 * len(BODY)
    written += sock.written
    assert written == b"".join(each.command() for each in made)
    assert list(bench.nodes[0].unanswered) == made


@pytest.mark.rule("PUB-4")
def test_another_nsqd_gets_what_one_has_no_room_for() -> None:
    bench = Stopped(nodes=2)
    bench.sockets[1].room = 10**9
    made = bench.publish_many(4 * FULL)
    assert all(each.sent for each in made)
    assert bench.sockets[0].unsent <= MOST_UNSENT + 2 * len(BODY)
    assert sum(bench.owed()) == 4 * FULL
    bench.later(5.0)
    assert bench.nodes[0].is_silent()
    bench.lose(bench.nodes[1], errors.ConnectionLost("nsqd1", "gone"))
    del bench.core.nodes[bench.nodes[1].endpoint]
    waits = bench.publish_body()
    assert not waits.sent
    bench.sockets[0].drain(10**9)
    assert waits.sent


def test_a_new_connection_has_room() -> None:
    bench = Stopped()
    bench.publish_many(2 * FULL)
    bench.lose(bench.nodes[0], errors.ConnectionLost("nsqd0", "gone"))
    unsent = [each for each in bench.made if not each.done()]
    sock = Socket(10**9)
    bench.connect(bench.nodes[0], sock)
    end_turn()
    assert sock.written == b"".join(each.command() for each in unsent)
    while bench.nodes[0].unanswered:
        bench.answer(bench.nodes[0])
    for _ in range(2 * FULL):  # one by one, which takes the other way to the socket
        assert bench.publish_many(1)[0].sent
        bench.answer(bench.nodes[0])


def test_many_publishes_of_one_turn_wait_for_its_end_where_they_are_large() -> None:
    bench = Stopped(room=10**9)
    made = [bench.publish_body() for _ in range(3 * FULL)]
    assert 0 < len(bench.nodes[0].unanswered) <= FULL + 1
    for _ in range(3):
        end_turn()
    assert bench.sockets[0].written == b"".join(each.command() for each in made)
