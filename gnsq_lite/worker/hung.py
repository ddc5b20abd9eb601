"""Logs handler calls that run for long while messages of their channel wait."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from gnsq_lite.stats import HUNG, ReaderStats
from gnsq_lite.worker.app import Worker

log = logging.getLogger("gnsq_lite.worker")


class HungCalls:
    """Logs each call that has run for HUNG seconds while messages wait, once.

    Args:
        depths: Function that returns the known depths by (nsqd, topic, channel), and polls them in the background.  It
            is called only while there is such a call.
        timeout: Time limit of ``Worker.stats()`` in seconds.
    """

    def __init__(
        self,
        worker: Worker,
        depths: Callable[[Sequence[ReaderStats]], dict[tuple[str, str, str], int]],
        timeout: float,
    ) -> None:
        self._worker, self._depths, self._timeout = worker, depths, timeout
        self._logged: set[tuple[str, ...]] = set()

    def check(self) -> bool:
        """Log the calls.  Return False: the Worker goes on."""
        try:
            self._log_new()
        except Exception:  # for example, the system cannot start a thread that polls depths
            log.exception("the check for hung calls failed")
        return False

    def _log_new(self) -> None:
        calls = [call for reader in self._worker.readers for call in reader.running(HUNG)]
        found = {(call.topic, call.channel, call.id, call.thread): call for call in calls}
        self._logged &= found.keys()
        new = {key: call for key, call in found.items() if key not in self._logged}
        waiting = self._waiting() if new else {}
        for key, call in new.items():
            if waits := waiting.get((call.topic, call.channel)):
                self._logged.add(key)
                fields = {name: getattr(call, name) for name in ("topic", "channel", "attempt", "seconds")}
                text = "%s/%s: the call for message %s, attempt %d, has run for %.0f s, and %s; it is at %s"
                named = (call.topic, call.channel, call.id, call.attempt, call.seconds, waits, call.stack)
                log.warning(text, *named, extra={**fields, "message_id": call.id})

    def _waiting(self) -> dict[tuple[str, str], str]:
        """Return how many messages wait in the process and in nsqds, by (topic, channel), without idle channels.

        If no depth is known, messages may wait if a connection has as many messages in flight as RDY allows.
        """
        try:
            stats = self._worker.stats(self._timeout)
        except TimeoutError:  # a handler blocks the I/O loop; the next check may find more
            return {}
        depths, waiting = self._depths(stats), dict[tuple[str, str], str]()
        for each in stats:
            key = (each.topic, each.channel)
            known = [depth for (_, *place), depth in depths.items() if tuple(place) == key]
            if count := each.queued + sum(known):
                waiting[key] = f"{count} messages wait"
            elif each.starved and not known:
                waiting[key] = "further messages may wait"
        return waiting
