"""Ends a process whose supervisor was killed."""

from __future__ import annotations

import os
from collections.abc import Callable

from gnsq_lite.clock import SYSTEM_CLOCK, Clock
from gnsq_lite.supervise.exit_codes import ExitCode
from gnsq_lite.supervise.report_files import Slot


class LastResort:
    """Ends the process when it has not drained long after its supervisor went away.

    Normally the main thread drains.  In a monkey-patched process a blocked handler blocks the main thread, so
    :meth:`look` is called from another one.
    """

    def __init__(
        self,
        slot: Slot,
        limit: float,
        clock: Clock = SYSTEM_CLOCK,
        end: Callable[[int], None] = os._exit,
        parent: Callable[[], int] = os.getppid,
    ) -> None:
        self._slot, self._limit, self._clock, self._end, self._parent = slot, limit, clock, end, parent
        self._since: float | None = None

    def look(self) -> None:
        """End the process once its time is over."""
        if not self._slot.is_orphaned(self._parent):
            return
        now = self._clock.now()
        if self._since is None:
            self._since = now
        elif now - self._since >= self._limit:
            self._end(ExitCode.NOT_DRAINED)
