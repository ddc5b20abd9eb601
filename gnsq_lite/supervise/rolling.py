"""Replaces processes one by one: an old process drains only after the new process is ready."""

from __future__ import annotations

import logging

from gnsq_lite.supervise.children import NEVER, Child
from gnsq_lite.supervise.report_files import Report, read_report, remove_reports

log = logging.getLogger("gnsq_lite.supervise")


class Rolling:
    """Replacement of one process at a time, so that an error in new code affects one process only.

    The methods return decisions; none of them starts or ends a process.
    """

    def __init__(self, ready_timeout: float) -> None:
        self._ready_timeout, self._ready_by = ready_timeout, NEVER
        #: The new process, which runs beside the process that it replaces.
        self.newcomer: Child | None = None

    def begin(self, children: list[Child], now: float) -> bool:
        """Begin to replace the first process that is due; return whether a process was due."""
        for child in children:
            if child.stale_at == NEVER and child.pid is not None:
                child.stale_at = _wishes(child, now)
        stale = next((child for child in children if child.pid is not None and child.stale_at <= now), None)
        if stale is None:
            return False
        self.newcomer = Child(stale.number, stale.restarts, start_at=now)
        self._ready_by = now + self._ready_timeout
        return True

    def take_over(self, children: list[Child]) -> Child | None:
        """Replace the old process if the newcomer is as ready; return the old process, which the caller drains."""
        new = self.newcomer
        if new is None or not new.is_loaded or not new.may_replace(children[new.number]):
            return None
        old = children[new.number]
        log.info("process %d is replaced; the old one drains", old.number, extra=old.extra)
        children[new.number], self.newcomer = new, None
        return old

    def is_late(self, now: float) -> bool:
        """Whether the newcomer did not become ready in time."""
        return self.newcomer is not None and now >= self._ready_by

    def give_up(self, children: list[Child], why: str) -> None:
        """Drop the newcomer, and keep the old processes until the next request."""
        new, self.newcomer = self.newcomer, None
        if new is not None:
            text = "the new process %d %s; the old processes keep running"
            log.error(text, new.number, why, extra=new.extra)
        for child in children:
            child.stale_at = NEVER
            remove_reports(child.socket, Report.CHANGED)  # a WORN report stays, and is tried again with growing delays


def _wishes(child: Child, now: float) -> float:
    """Return the time at which to replace *child*, from its reports; NEVER without a report."""
    if read_report(child.socket, Report.CHANGED) is not None:
        return now
    why = read_report(child.socket, Report.WORN)
    if why is None:
        return NEVER
    delay = child.restarts.ended()  # avoids a busy loop if even a new process exceeds its limit
    log.info("process %d is to be replaced in %g s: %s", child.number, delay, why, extra=child.extra)
    return now + delay
