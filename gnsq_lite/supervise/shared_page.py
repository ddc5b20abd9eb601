"""A page that many ask for at once, made once for all of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from gnsq_lite.clock import SYSTEM_CLOCK, Clock

T = TypeVar("T")

#: Seconds for which a page is not made again.
KEEP = 0.25
#: Seconds within which another request must follow for the next one to get an old page while a new one is made.
_STEADY = 1.0


class SharedPage(Generic[T]):
    """Calls *make* for one request at a time, and not again for :data:`KEEP` seconds.

    So a thousand clients cost what makes the page no more than a few.  While a page is being made that took long, those
    who ask steadily get the last one; whoever has none to get waits.  *make* must not raise.
    """

    def __init__(self, make: Callable[[], T], clock: Clock = SYSTEM_CLOCK) -> None:
        self._make, self._clock = make, clock
        self._lock = threading.Lock()
        self._page: T | None = None
        self._made = self._began = float("-inf")

    def get(self) -> T:
        """Return the page; in any thread."""
        if not self._lock.acquire(blocking=False):
            page = self._page
            if page is not None and self._began - self._made < _STEADY:
                return page
            self._lock.acquire()
        try:
            page, now = self._page, self._clock.now()
            if page is None or now - self._made >= KEEP:
                self._began = now
                page = self._page = self._make()
                self._made = self._clock.now()
            return page
        finally:
            self._lock.release()
