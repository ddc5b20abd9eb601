"""Which publishes a caller's thread carries out by itself; without a network and without threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gnsq_lite.dialect import PublishRequest
from gnsq_lite.publish.answer_queue import Taken
from gnsq_lite.publish.in_threads import _AT_ONCE, InThreads
from gnsq_lite.publish.publication import Publication
from tests.fakes import FakeClock


class Inbox:
    """Stands in for the loop of a thread that never gets to run."""

    is_shared = True
    gone = stopped = False

    def __init__(self) -> None:
        self.acts: list[Callable[[], Any]] = []

    def check(self) -> None:
        pass

    def call_soon(self, act: Callable[[], Any]) -> None:
        self.acts.append(act)


class Turns:
    """Whose turn it is, and what waits."""

    def __init__(self, *lines: Line) -> None:
        self.connected = lines
        self.waiting: list[Publication] = []

    def at_turn(self, turn: int) -> Line | None:
        return self.connected[turn % len(self.connected)] if self.connected else None


class Line:
    """An nsqd whose connection takes everything, or nothing."""

    def __init__(self, takes: bool = True) -> None:
        self.connection = self
        self.takes = takes
        self.taken: list[bytes] = []

    def publish(self, publication: Publication, command: bytes) -> bool:
        if self.takes:
            self.taken.append(command)
            publication.settle()
        return self.takes

    def put_in_thread(self, publication: Publication) -> bool:
        return self.publish(publication, publication.command())


class Bench:
    """What threads and a loop share, with so many nsqds."""

    def __init__(self, *lines: Line) -> None:
        self.loop: Any = Inbox()
        self.clock = FakeClock()
        self.submitted: list[Publication] = []
        self.turns, self.gathered = Turns(*lines), list[Any]()
        self.carried: list[Publication] = []
        #: The connection of each publish's leader.
        self.leaders: dict[Publication, Line] = {}
        self.threads = InThreads(
            self.loop,
            self.clock,
            turns=self.turns,
            lead=self.leader_of,
            gathered=self.gathered,
            retries=0,
            carry=self.carry,
            submit=self.submitted.append,
            taken=Taken(),
            given_up=lambda publication, error: None,
            cover=lambda deadline: None,
            reasons=lambda: (),
        )

    def leader_of(self, publication: Publication) -> Line | None:
        return self.leaders.get(publication)

    def carry(self, publication: Publication) -> None:
        """What is left to the loop has its outcome at once."""
        self.carried.append(publication)
        publication.settle()

    def publishes(self, publication: Publication) -> bool:
        """Publish, and return whether a thread could by itself."""
        del self.carried[:]
        self.threads.publish_any(publication)
        return not self.carried

    def publication(self, body: bytes = b"x") -> Publication:
        return Publication(self.loop, "t", (body,), 5.0, self.clock.now() + 5.0)


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnsq_lite.publish.in_threads.get_hub_if_exists", lambda: None)


@pytest.mark.rule("PUB-1")
def test_nothing_overtakes_what_was_handed_to_the_loop() -> None:
    line = Line()
    bench = Bench(line)
    bench.threads.hand_over(bench.publication(b"1"))
    assert not bench.publishes(bench.publication(b"2"))
    assert not bench.threads.queue(bench.publication(b"3"))
    bench.loop.acts.pop()()
    assert [publication.bodies for publication in bench.submitted] == [(b"1",)]
    assert bench.publishes(bench.publication(b"4"))
    assert len(line.taken) == 1


@pytest.mark.rule("HB-1")
def test_of_much_that_is_handed_over_a_turn_takes_some_and_the_next_one_comes_after_io(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench, after_io = Bench(Line()), list[Callable[[], Any]]()
    bench.loop.hub = None
    monkeypatch.setattr("gnsq_lite.publish.in_threads.after_io", lambda hub, act: after_io.append(act))
    for _ in range(2 * _AT_ONCE + 1):
        bench.threads.hand_over(bench.publication())
    for act in bench.loop.acts:
        act()
    assert (len(bench.submitted), len(after_io)) == (_AT_ONCE, 1)
    after_io.pop()()
    assert (len(bench.submitted), len(after_io)) == (2 * _AT_ONCE, 1)
    after_io.pop()()
    assert (len(bench.submitted), after_io) == (2 * _AT_ONCE + 1, [])
    bench.threads.hand_over(bench.publication())
    bench.loop.acts.pop()()
    assert len(bench.submitted) == 2 * _AT_ONCE + 2


@pytest.mark.rule("PUB-2")
def test_what_was_given_up_before_its_turn_leaves_the_queue_and_is_not_carried_out() -> None:
    bench = Bench(Line())
    handed = [bench.publication(b"%d" % number) for number in range(4)]
    for publication in handed:
        bench.threads.hand_over(publication)
    for number in (0, 1, 3):
        handed[number].settle()
    bench.threads.forget_done()
    assert bench.threads.entering() == tuple(handed[2:])
    handed[2].settle()
    bench.threads.hand_over(last := bench.publication(b"4"))
    bench.threads.enter_some()
    assert (bench.submitted, bench.threads.entering()) == ([last], ())


@pytest.mark.rule("PUB-2")
def test_what_is_given_up_while_it_is_carried_out_takes_nothing_else_along() -> None:
    bench = Bench(Line())

    def submit(publication: Publication) -> None:
        bench.submitted.append(publication)
        publication.settle()
        bench.threads.forget_done()

    bench.threads._submit = submit
    handed = [bench.publication(b"%d" % number) for number in range(3)]
    for publication in handed:
        bench.threads.hand_over(publication)
    bench.threads.enter_some()
    assert bench.submitted == handed


@pytest.mark.rule("PUB-1")
@pytest.mark.parametrize("queue", ["waiting", "gathered"])
def test_nothing_overtakes_what_the_loop_has_and_has_not_sent(queue: str) -> None:
    line = Line()
    bench = Bench(line)
    unsent: list[Any] = bench.turns.waiting if queue == "waiting" else bench.gathered
    unsent.append(bench.publication(b"1"))
    assert not bench.publishes(bench.publication(b"2"))
    assert not bench.threads.queue(bench.publication(b"3"))
    assert line.taken == []
    unsent.clear()
    assert bench.publishes(bench.publication(b"4"))


@pytest.mark.rule("PUB-4")
def test_nsqds_take_turns_and_one_that_takes_nothing_is_passed_over() -> None:
    first, gone, last = Line(), Line(takes=False), Line()
    bench = Bench(first, gone, last)
    assert all(bench.publishes(bench.publication()) for _ in range(6))
    assert not gone.taken
    assert len(first.taken) + len(last.taken) == 6
    assert first.taken
    assert last.taken
    assert not Bench().publishes(bench.publication())
    assert not Bench(gone).publishes(bench.publication())


def test_a_request_whose_bytes_no_dialect_has_made_yet_is_the_loops() -> None:
    line = Line()
    bench = Bench(line)
    publication = bench.publication()
    publication.request = PublishRequest(topic="t", bodies=(b"x",), defer=5.0)
    assert not bench.publishes(publication)
    assert not bench.threads.queue(publication)
    publication.data = b"DPUB t 5000\n\0\0\0\1x"
    assert bench.publishes(publication)
    assert line.taken == [publication.data]


@pytest.mark.rule("YZ-4")
def test_what_has_a_leader_goes_to_it_or_is_the_loops() -> None:
    leader, other = Line(), Line()
    bench = Bench(other)
    bench.threads.routed = True
    led, queued, unled = (bench.publication() for _ in range(3))
    led.data = queued.data = b"PUB t 0\n\0\0\0\1x"
    bench.leaders = dict.fromkeys((led, queued), leader)
    assert bench.publishes(led)
    assert bench.threads.queue(queued)
    assert not bench.publishes(unled)
    assert not bench.threads.queue(unled)
    assert (leader.taken, other.taken) == ([led.data] * 2, [])


def test_a_thread_with_greenlets_of_its_own_leaves_it_to_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    line = Line()
    bench = Bench(line)
    monkeypatch.setattr("gnsq_lite.publish.in_threads.get_hub_if_exists", object)
    assert not bench.publishes(bench.publication())
    assert bench.threads.queue(bench.publication())  # which waits for nothing


@pytest.mark.rule("PUB-2")
def test_a_publish_is_given_up_once_and_says_whether_it_was_sent() -> None:
    bench = Bench()
    unsent, sent = bench.publication(), bench.publication()
    sent.sent = True
    for publication in (unsent, sent, sent):
        bench.threads.give_up(publication)
    errors = [type(publication._error).__name__ for publication in (unsent, sent)]
    assert errors == ["NotSent", "PublishTimeout"]
    assert len(bench.loop.acts) == 2  # the loop is told of each once
