"""Replaces processes one by one: an old one drains once its successor is ready, and not before."""

from __future__ import annotations

import logging

from gnsq_lite.supervise.children import NEVER, Child
from gnsq_lite.supervise.report_files import Report, read_report, remove_reports

log = logging.getLogger("gnsq_lite.supervise")


class Rolling:
    """One process at a time: an error in new code is shown once, and affects one process at most.

    Decisions are return values; nothing here starts or ends a process.
    """

    def __init__(self, ready_timeout: float) -> None:
        self._ready_timeout, self._ready_by = ready_timeout, NEVER
        #: The new process, beside the one that it replaces.
        self.newcomer: Child | None = None

    def begin(self, children: list[Child], now: float) -> bool:
        """Begin replacing the first process that is due; return whether there was one."""
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
        """Let the newcomer take over once it is as ready as the old process; return that one, which is to drain."""
        new = self.newcomer
        if new is None or not new.is_loaded or not new.may_replace(children[new.number]):
            return None
        old = children[new.number]
        log.info("process %d is replaced; the old one drains", old.number, extra=old.extra)
        children[new.number], self.newcomer = new, None
        return old

    def is_late(self, now: float) -> bool:
        """Whether the newcomer's time to become ready is over."""
        return self.newcomer is not None and now >= self._ready_by

    def give_up(self, children: list[Child], why: str) -> None:
        """Keep the old processes until the next request."""
        new, self.newcomer = self.newcomer, None
        if new is not None:
            text = "the new process %d %s; the old ones go on as they are"
            log.error(text, new.number, why, extra=new.extra)
        for child in children:
            child.stale_at = NEVER
            remove_reports(child.socket, Report.CHANGED)  # a worn one asks on, less and less often


def _wishes(child: Child, now: float) -> float:
    """Return when to replace *child*, which asked for it."""
    if read_report(child.socket, Report.CHANGED) is not None:
        return now
    why = read_report(child.socket, Report.WORN)
    if why is None:
        return NEVER
    delay = child.restarts.ended()  # a limit below what a new process needs at once must not have them spin
    log.info("process %d is to be replaced in %g s: %s", child.number, delay, why, extra=child.extra)
    return now + delay
