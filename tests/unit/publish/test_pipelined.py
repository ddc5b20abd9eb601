"""Reads that hold nothing but OKs are taken in the hub; without a network and without waiting."""

from __future__ import annotations

from typing import Any

import pytest

from gnsq_lite.dialect import Endpoint, PlainDialect
from gnsq_lite.net.loop import loop_here
from gnsq_lite.net.target import Target
from gnsq_lite.options import ConnectionOptions
from gnsq_lite.publish.answer_queue import AnswerQueue, Taken, count_oks
from gnsq_lite.publish.pipelined import MANY, Pipelined
from gnsq_lite.publish.publication import Publication
from tests.fakes import FakeClock

OK = b"\0\0\0\6\0\0\0\0OK"


class Owner:
    """An nsqd, silent or not."""

    silent = False

    def on_response(self, connection: Any, body: bytes) -> None:
        pass

    def on_error_frame(self, connection: Any, error: Any) -> None:
        pass


class Bench:
    """A connection on which so many publishes were sent."""

    def __init__(self, count: int) -> None:
        self.owner, self.taken = Owner(), Taken()
        self.pending: AnswerQueue[Publication] = AnswerQueue(read=PlainDialect().receipt)
        for _ in range(count):
            self.pending.append(Publication(loop_here(), "t", (b"x",), 5.0, 5.0))
        self.all = list(self.pending)
        self.connection = Pipelined(
            loop_here(),
            Target(endpoint=Endpoint("nsqd", 4150)),
            ConnectionOptions(),
            self.owner,
            FakeClock(),
            self.pending,
            self.taken,
        )
        self.closed: list[Any] = []
        self.least: list[int] = []
        self.connection.close = self.closed.append  # type: ignore[method-assign]
        self.connection.read_at_least = self.least.append  # type: ignore[method-assign]
        self.connection._deliver(b"")  # the handshake left nothing

    def takes(self, data: bytes) -> bool:
        return self.connection._take_oks(data)

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
    assert bench.taken.messages == 3


@pytest.mark.rule("PUB-2")
def test_what_is_more_than_oks_or_not_certain_is_for_the_reader() -> None:
    bench = Bench(2)
    assert not bench.takes(OK * 3)  # answers to no publish
    assert not bench.takes(b"\0\0\0\x0f\0\0\0\0_heartbeat_")
    bench.owner.silent = True  # which is to be told to the rotation
    assert not bench.takes(OK)
    bench.owner.silent = False
    bench.connection._deliver(b"\0\0\0")  # the beginning of another answer
    assert not bench.takes(OK)
    assert (bench.done(), bench.taken.messages) == (0, 0)
    bench.connection._deliver(b"\6\0\0\0\0OK")
    assert bench.takes(OK)


def test_with_few_left_an_answer_is_waited_for_alone() -> None:
    bench = Bench(MANY + 1)
    assert bench.takes(OK)
    assert not bench.least
    assert bench.takes(OK * 2)
    assert bench.least == [1]


class Interrupted(BaseException):
    """As KeyboardInterrupt may, anywhere."""


@pytest.mark.rule("PUB-2")
def test_an_interruption_among_the_answers_ends_the_connection_and_loses_no_publish() -> None:
    bench = Bench(3)

    def interrupt() -> None:
        raise Interrupted

    bench.all[1]._wakers.append(interrupt)
    with pytest.raises(Interrupted):
        bench.takes(OK * 3)
    assert len(bench.closed) == 1
    assert [publication.done() for publication in bench.all] == [True, True, False]
    assert bench.taken.messages == 2
    assert list(bench.pending) == bench.all[2:]
