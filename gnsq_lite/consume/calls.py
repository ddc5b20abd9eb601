"""Reports the running handler calls of this process.

Nothing is recorded when a call begins or ends: these functions read the pools' tables of workers.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from gnsq_lite import stacks
from gnsq_lite.consume.pools import Pool, messages_of, pools
from gnsq_lite.consume.rows import copies_of, count_rows
from gnsq_lite.message import Message


def current_message() -> Message | None:
    """Return the message that the calling thread, greenlet or task handles, or None outside a handler.

    With ``batch_size``, return the first message of the list, or of a RecordBatch a copy, which cannot be answered.  A
    thread, greenlet or task that a handler has started handles no message.
    """
    for pool in pools.members():
        me = pool.me()
        for worker in tuple(pool.workers):
            if worker[0] == me and worker[1] is not None:
                return copies_of(messages_of(worker[1])[0])[0]
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningCall:
    """A running handler call.  ``seconds`` is exact to about a second."""

    seconds: float
    topic: str
    channel: str
    #: The message's id as text.  With ``batch_size``, that of the first message.
    id: str
    attempt: int
    #: Number of messages of the call.
    messages: int
    #: "thread NUMBER", "greenlet NUMBER" or "task NUMBER".
    thread: str
    #: Where the call stands, as one line without the library's frames.
    stack: str


def running_calls(pool: Pool, loop_thread: int, now: float, checked_at: float, at_least: float) -> list[RunningCall]:
    """Return the calls of *pool* that have run for *at_least* seconds, oldest first.  Thread-safe.

    *checked_at* is the time of the last check by TimeLimits.  A call that this check has not seen began after it.
    """
    found, frames = list[RunningCall](), sys._current_frames()
    for worker in tuple(pool.workers):
        job = worker[1]
        seconds = max(0.0, now - (worker.since if worker.seen is job else checked_at))
        if job is not None and seconds >= at_least:
            first, count = messages_of(job)[0], count_rows(messages_of(job))
            call = RunningCall(
                seconds=round(seconds, 1),
                topic=first.topic,
                channel=first.channel,
                id=first.id[:16].decode("ascii", "replace"),
                attempt=first.attempts,
                messages=count,
                thread=f"{pool.unit} {worker[0] if isinstance(worker[0], int) else id(worker[0])}",
                stack=_stack(worker[0], frames, getattr(pool, "thread_ident", loop_thread)),
            )
            found.append(call)
    return sorted(found, key=lambda call: -call.seconds)


def _stack(ident: Any, frames: dict[int, Any], loop_thread: int) -> str:
    """Return where a thread, greenlet or task stands.  A running task has the frame of its event loop's thread."""
    if isinstance(ident, int):
        return stacks.of_frame(frames.get(ident))
    waits: list[Any] = getattr(ident, "frames", list)()  # of a task
    return stacks.of_frames(waits) or stacks.of_frame(getattr(ident, "gr_frame", None) or frames.get(loop_thread))
