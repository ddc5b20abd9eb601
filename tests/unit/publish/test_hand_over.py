"""The queue between other threads and the loop; without a network and without threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gnsq_lite.publish.hand_over import _AT_ONCE, HandOver
from gnsq_lite.publish.publication import Publication
from tests.fakes import FakeClock


class Inbox:
    """A loop that runs only when the test calls what it was given."""

    gone = stopped = False
    hub = None

    def __init__(self) -> None:
        self.acts: list[Callable[[], Any]] = []

    def check(self) -> None:
        pass

    def call_soon(self, act: Callable[[], Any]) -> None:
        self.acts.append(act)


class Bench:
    """A queue and what its loop has carried out."""

    def __init__(self) -> None:
        self.loop: Any = Inbox()
        self.clock = FakeClock()
        self.submitted: list[Publication] = []
        self.queue = HandOver(self.loop, self.clock, self.submit, lambda publication, error: None, lambda: ())

    def submit(self, publication: Publication) -> None:
        self.submitted.append(publication)

    def publication(self, body: bytes = b"x") -> Publication:
        return Publication(self.loop, "t", (body,), 5.0, self.clock.now() + 5.0)


@pytest.mark.rule("HB-1")
def test_one_turn_of_the_loop_submits_some_publishes_and_the_next_comes_after_io(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench, after_io = Bench(), list[Callable[[], Any]]()
    monkeypatch.setattr("gnsq_lite.publish.hand_over.after_io", lambda hub, act: after_io.append(act))
    for _ in range(2 * _AT_ONCE + 1):
        bench.queue.put(bench.publication())
    for act in bench.loop.acts:
        act()
    assert (len(bench.submitted), len(after_io)) == (_AT_ONCE, 1)
    after_io.pop()()
    assert (len(bench.submitted), len(after_io)) == (2 * _AT_ONCE, 1)
    after_io.pop()()
    assert (len(bench.submitted), after_io) == (2 * _AT_ONCE + 1, [])
    bench.queue.put(bench.publication())
    bench.loop.acts.pop()()
    assert len(bench.submitted) == 2 * _AT_ONCE + 2


@pytest.mark.rule("PUB-2")
def test_a_publish_that_was_given_up_in_the_queue_is_not_submitted() -> None:
    bench = Bench()
    handed = [bench.publication(b"%d" % number) for number in range(4)]
    for publication in handed:
        bench.queue.put(publication)
    for number in (0, 1, 3):
        handed[number].settle()
    bench.queue.forget_done()
    assert bench.queue.entering() == tuple(handed[2:])
    handed[2].settle()
    bench.queue.put(last := bench.publication(b"4"))
    bench.queue.enter_some()
    assert (bench.submitted, bench.queue.entering()) == ([last], ())


@pytest.mark.rule("PUB-2")
def test_a_publish_is_given_up_once_and_its_error_says_whether_it_was_sent() -> None:
    bench = Bench()
    unsent, sent = bench.publication(), bench.publication()
    sent.sent = True
    for publication in (unsent, sent, sent):
        bench.queue.give_up(publication)
    errors = [type(publication._error).__name__ for publication in (unsent, sent)]
    assert errors == ["NotSent", "PublishTimeout"]
    assert len(bench.loop.acts) == 2  # the loop is told once for each
