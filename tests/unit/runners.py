"""A runner of handlers without a network, in C and in Python."""

from __future__ import annotations

import sys
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from gnsq_lite import _core
from gnsq_lite._core import Fins, Runner, twin
from gnsq_lite.consume import run_handler
from gnsq_lite.consume.run_handler import HandlerCalls
from gnsq_lite.message import Message, Requeue


class FastRunner(Runner):
    """A Runner with the drain() of this process, which is in C if the extension was built."""

    def drain(self, queue: Any, seat: Any = None) -> bool:
        return _core.drain(self, queue, [None, None] if seat is None else seat)


class PureRunner(Runner):
    """A Runner that drains in Python."""

    def drain(self, queue: Any, seat: Any = None) -> bool:
        return twin.drain(self, queue, [None, None] if seat is None else seat)


def taken(fins: Fins) -> list[bytes]:
    """Remove and return the ids of the queued FINs."""
    ids = fins.ids.copy()
    del fins.ids[: len(ids)]
    return ids


BOTH = pytest.mark.parametrize(("runner", "fins"), [(FastRunner, Fins), (PureRunner, Fins)], ids=["fast", "pure"])


MOST = 5


class FakeConnection:
    """Records its calls.  If *slow* is true, it is called for each FIN."""

    topic, channel, address, read_at, msg_timeout, max_msg_timeout = "t", "c", "host:4150", 1.0, 60.0, 900.0

    def __init__(self, fins: Any, slow: bool = False) -> None:
        self.told: list[Any] = []
        self.box = fins(lambda: self.told.append("wake"))
        self.fins, self.handled = None if slow else self.box, self.finish

    def finish(self, message: Message) -> None:
        self.told.append("finish")
        self.box.add(message.id)

    def requeue(self, message: Message, delay: float | None, backoff: bool) -> None:
        self.told.append(("requeue", message.id, delay, backoff))

    def answer_late(self, message: Message, *, finished: bool) -> None:
        self.told.append(("late", message.id, finished))

    def touch(self, message: Message) -> None:
        self.told.append(("touch", message.id))

    def handler_returned_unanswered(self, message: Message) -> None:
        self.told.append(("open", message.id))

    def skipped(self, message: Message) -> None:
        self.told.append(("expired", message.id))


class FakeOutcomes:
    def __init__(self) -> None:
        self.told: list[Any] = []

    def on_exception(self, job: Any, error: BaseException) -> None:
        assert sys.exc_info()[1] is error
        where = traceback.extract_tb(error.__traceback__)[-1].name if "is never run" not in str(error) else str(error)
        self.told.append(("failed", job.id, type(error).__name__, where))
        asked = error if isinstance(error, Requeue) else Requeue()
        if not job.has_responded:
            job.requeue(asked.delay, asked.backoff)

    def skips(self, message: Message) -> bool:
        if message.attempts > MOST + 1:
            return False
        self.told.append(("too many", message.id))
        return True


def queue_of(connection: Any, count: int) -> deque[Any]:
    return deque(Message(connection, 1, 1, b"%016d" % n, b"") for n in range(count))


def a_runner(runner: Any, handler: Callable[[Any], Any], outcomes: Any = None) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_handler, "Runner", runner)
        return HandlerCalls(handler, outcomes or FakeOutcomes(), 0).runner()
