"""The messages that wait for a handler, and are taken out of its queue: all, or those that are of no use any more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gnsq_lite.consume.batches import BatchFeeder
from gnsq_lite.consume.pools import Pool
from gnsq_lite.message import Message


def take_queued(pool: Pool, batches: BatchFeeder | None) -> list[Message]:
    """Remove and return the messages that no handler has begun."""
    jobs = pool.take_queued() + (batches.take() if batches is not None else [])
    return [m for job in jobs for m in (job if isinstance(job, list) else (job,))]


def drop(pool: Pool, batches: BatchFeeder | None, useless: Callable[[Message], bool]) -> list[Message]:
    """Remove and return the *useless* ones of those that no handler has begun, out of batches too.

    The others keep their order.  In the loop's thread, where all messages are queued; a handler's thread that asks
    for work meanwhile finds none, and is woken again.
    """
    dropped: list[Message] = []
    kept: list[Any] = []
    for job in pool.take_queued():
        if isinstance(job, list):
            left: list[Message] = []
            for message in job:
                (dropped if useless(message) else left).append(message)
            kept += [left] if left else []
        else:
            (dropped if useless(job) else kept).append(job)
    if kept:
        pool.submit(kept)
    if batches is not None:
        dropped += batches.drop(useless)
    return dropped
