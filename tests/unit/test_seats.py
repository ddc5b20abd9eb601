"""What a worker is at, as others see it in its seat: the same in C and in Python."""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

import pytest
from greenlet import getcurrent, greenlet

from gnsq_lite import _core
from gnsq_lite.consume.run_handler import HandlerRaised
from gnsq_lite.message import Message
from tests.unit.test_runner import BOTH, FakeConnection, FastRunner, a_runner, queue_of


@BOTH
def test_a_seat_shows_what_its_worker_is_at_and_nothing_in_between(runner: Any, fins: Any) -> None:
    seat: list[Any] = ["me", None]
    seen: list[bool] = []

    def handle(message: Message) -> None:
        seen.append(seat[1] is message)
        if message.body == b"fails":
            raise SystemExit

    made = a_runner(runner, handle)
    assert made.drain(queue_of(FakeConnection(fins), 2), seat) is False
    assert seat == ["me", None]
    queue = queue_of(FakeConnection(fins), 3)
    queue[0].attempts = 2**70  # which C leaves to Python
    made.surplus = 1
    assert made.drain(queue, seat) is False
    made.surplus = 0
    queue[2].body = b"fails"
    with pytest.raises(HandlerRaised):
        made.drain(queue, seat)
    assert seat == ["me", None]
    assert seen.count(True) == len(seen) >= 4


@BOTH
def test_a_seat_keeps_no_message_alive(runner: Any, fins: Any) -> None:
    class Watched(Message):
        __slots__ = ("__weakref__",)

    seat: list[Any] = ["me", None]
    one = Watched(FakeConnection(fins), 1, 1, b"0" * 16, b"")  # type: ignore[arg-type]
    ref, queue = weakref.ref(one), deque([one])
    del one
    a_runner(runner, lambda message: None).drain(queue, seat)
    assert ref() is None


@BOTH
def test_workers_that_give_way_each_have_their_own(runner: Any, fins: Any) -> None:
    main, seats = getcurrent(), [[number, None] for number in range(3)]
    made = a_runner(runner, lambda message: main.switch())
    queue = queue_of(FakeConnection(fins), 3)
    expected = list(queue)
    workers = [greenlet(lambda seat=seat: made.drain(queue, seat)) for seat in seats]  # type: ignore[misc]
    for worker in workers:
        worker.switch()
    assert [seat[1] for seat in seats] == expected
    for worker in workers:
        worker.switch()
    assert [seat[1] for seat in seats] == [None] * 3


def test_a_seat_is_a_list_of_two_places() -> None:
    if not _core.is_accelerated:
        return
    made: Any = a_runner(FastRunner, print)
    for wrong in (("me", None), 5):
        with pytest.raises(TypeError):
            made.drain(deque(), wrong)
    with pytest.raises(IndexError):
        made.drain(deque([1]), ["me"])
