"""One limit of handlers at once for several Readers; in their loop."""

from __future__ import annotations

from collections.abc import Sequence

import gevent

from gnsq_lite.consume.consumer import Consumer
from gnsq_lite.policy.weights import Wish, share_out

#: Seconds between two looks at who wants how much.
_EVERY = 0.05


class SharedConcurrency:
    """*members* are Readers of one loop, each with its weight and the most handlers that it may run."""

    def __init__(self, total: int, members: Sequence[tuple[Consumer, float, int]]) -> None:
        self._total, self._members = total, members

    def start(self) -> None:
        """Share out now, and again and again until all of them close."""
        self._share()
        self._members[0][0].loop.spawn("shared concurrency", self._run)

    def _run(self) -> None:
        while not all(core.closing for core, _, _ in self._members):
            gevent.sleep(_EVERY)
            self._share()

    def _share(self) -> None:
        wishes = [Wish(weight, most, core.limits.busy(), core.queued()) for core, weight, most in self._members]
        for (core, _, _), count in zip(self._members, share_out(self._total, wishes), strict=True):
            core.set_concurrency(count)
