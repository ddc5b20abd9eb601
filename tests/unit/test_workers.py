"""drain() stores the current job in the list of its worker, in C and in Python."""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

import pytest
from greenlet import getcurrent, greenlet

from gnsq_lite import _core
from gnsq_lite.consume.run_handler import HandlerRaised
from gnsq_lite.message import Message
from tests.unit.runners import BOTH, FakeConnection, FastRunner, a_runner, queue_of


@BOTH
def test_the_list_of_a_worker_has_its_job_and_none_between_drains(runner: Any, fins: Any) -> None:
    worker: list[Any] = ["me", None]
    seen: list[bool] = []

    def handle(message: Message) -> None:
        seen.append(worker[1] is message)
        if message.body == b"fails":
            raise SystemExit

    made = a_runner(runner, handle)
    assert made.drain(queue_of(FakeConnection(fins), 2), worker) is False
    assert worker == ["me", None]
    queue = queue_of(FakeConnection(fins), 3)
    queue[0].attempts = 2**70  # C passes this message to Python
    made.surplus = 1
    assert made.drain(queue, worker) is False
    made.surplus = 0
    queue[2].body = b"fails"
    last = queue[2]
    with pytest.raises(HandlerRaised):
        made.drain(queue, worker)
    assert worker == ["me", last]  # the job stays after an exception: its messages may be unanswered
    assert seen.count(True) == len(seen) >= 4


@BOTH
def test_the_list_of_a_worker_keeps_no_message_alive(runner: Any, fins: Any) -> None:
    class Watched(Message):
        __slots__ = ("__weakref__",)

    worker: list[Any] = ["me", None]
    one = Watched(FakeConnection(fins), 1, 1, b"0" * 16, b"")  # type: ignore[arg-type]
    ref, queue = weakref.ref(one), deque([one])
    del one
    a_runner(runner, lambda message: None).drain(queue, worker)
    assert ref() is None


@BOTH
def test_waiting_workers_each_have_their_own_job(runner: Any, fins: Any) -> None:
    main, workers = getcurrent(), [[number, None] for number in range(3)]
    made = a_runner(runner, lambda message: main.switch())
    queue = queue_of(FakeConnection(fins), 3)
    expected = list(queue)
    greenlets = [greenlet(lambda worker=worker: made.drain(queue, worker)) for worker in workers]  # type: ignore[misc]
    for each in greenlets:
        each.switch()
    assert [worker[1] for worker in workers] == expected
    for each in greenlets:
        each.switch()
    assert [worker[1] for worker in workers] == [None] * 3


def test_the_list_of_a_worker_must_have_two_items() -> None:
    if not _core.is_accelerated:
        return
    made: Any = a_runner(FastRunner, print)
    for wrong in (("me", None), 5):
        with pytest.raises(TypeError):
            made.drain(deque(), wrong)
    with pytest.raises(IndexError):
        made.drain(deque([1]), ["me"])
