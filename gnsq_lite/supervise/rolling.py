"""Replaces processes one by one.  An old process drains when as many handlers of the new process are ready."""

from __future__ import annotations

import logging

from gnsq_lite.supervise.children import NEVER, Child

log = logging.getLogger("gnsq_lite.supervise")


class Rolling:
    """Replacement of one process at a time, so that an error in new code affects only one process.

    The methods return decisions.  The caller starts and ends the processes.
    """

    def __init__(self, ready_timeout: float) -> None:
        self._ready_timeout, self._ready_by = ready_timeout, NEVER
        #: The new process, which runs beside the process that it replaces.
        self.replacement: Child | None = None

    def begin(self, children: list[Child], now: float) -> bool:
        """Begin to replace the first process that is due for replacement.  Return False if no process is due."""
        for child in children:
            if child.replace_at == NEVER:
                child.replace_at = _requested_time(child, now)
        old = next((child for child in children if child.pid is not None and child.replace_at <= now), None)
        if old is None:
            return False
        self.replacement = Child(old.number, old.restarts, start_at=now)
        self._ready_by = now + self._ready_timeout
        return True

    def take_over(self, children: list[Child]) -> Child | None:
        """Replace the old process if the new process is ready.  Return the old process, which must drain, or None."""
        new = self.replacement
        if new is None or not new.is_loaded or not new.may_replace(children[new.number]):
            return None
        old = children[new.number]
        log.info("process %d is replaced; the old process drains", old.number, extra=old.extra)
        children[new.number], self.replacement = new, None
        return old

    def is_late(self, now: float) -> bool:
        """Return whether the new process did not become ready in time."""
        return self.replacement is not None and now >= self._ready_by

    def give_up(self, children: list[Child], why: str) -> None:
        """Drop the new process, and cancel all replacements except those that a process requested with a reason."""
        new, self.replacement = self.replacement, None
        if new is not None:
            text = "the new process %d %s; the old processes keep running"
            log.error(text, new.number, why, extra=new.extra)
        for child in children:
            child.replace_at = NEVER
            if child.memory is not None:
                child.memory.has_changed = 0  # ``reason`` stays: begin() schedules such a process again, later


def _requested_time(child: Child, now: float) -> float:
    """Return the time for the replacement that *child* requests in its memory, or NEVER if it requests none."""
    if child.memory is not None and child.memory.has_changed:
        return now
    if child.memory is None or not child.memory.reason:
        return NEVER
    delay = child.restarts.ended()  # prevents a busy loop if each new process exceeds its limit at once
    log.info("process %d is to be replaced in %g s: %s", child.number, delay, child.memory.reason, extra=child.extra)
    return now + delay
