"""Reads that are asked for side by side: a store that takes 30 ms for an answer takes as long for 32 at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_Item = TypeVar("_Item")
_Found = TypeVar("_Found")

#: Answers waited for, or held until they are taken, at a time, and their bytes; one that is larger is asked for alone.
AT_ONCE, BYTES = 32, 64 << 20


def read_ahead(
    read: Callable[[_Item], _Found], items: Sequence[_Item], size: Callable[[_Item], int] = lambda item: 0
) -> Iterator[_Found]:
    """Yield what *read*, in threads, returns for each of *items*, in their order, or raise what it raises there."""
    if len(items) < 2:
        yield from map(read, items)
        return
    pool = ThreadPoolExecutor(min(AT_ONCE, len(items)), "gnsq_lite-read")
    asked: deque[tuple[Future[_Found], int]] = deque()
    held = 0
    try:
        for item in items:
            while asked and (len(asked) == AT_ONCE or held + size(item) > BYTES):
                future, bytes_ = asked.popleft()
                held -= bytes_
                yield future.result()
            asked.append((pool.submit(read, item), size(item)))
            held += size(item)
        while asked:
            yield asked.popleft()[0].result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
