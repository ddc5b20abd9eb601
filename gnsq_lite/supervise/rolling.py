"""The new process that is to take an old one's place: it drains the old one when it is ready, and not before."""

from __future__ import annotations

import logging

from gnsq_lite.supervise.children import NEVER, Child
from gnsq_lite.supervise.place import Word, forget, told

log = logging.getLogger("gnsq_lite.supervise")


class Rolling:
    """One place after another: an error in new code is shown once, and meets one process at the most.

    What is to be done with a process comes back as a return value; nothing here starts or ends any.
    """

    def __init__(self, ready_timeout: float) -> None:
        self._ready_timeout, self._ready_by = ready_timeout, NEVER
        #: The new process, beside the one whose place it is to take.
        self.newcomer: Child | None = None

    def begin(self, children: list[Child], now: float) -> bool:
        """Start a newcomer for the first process that is to be replaced, if there is one; whether it did."""
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
        """Give the newcomer the place it is for if it is as ready as the old one; return that, which is to drain."""
        new = self.newcomer
        if new is None or not new.is_loaded or not new.may_replace(children[new.number]):
            return None
        old = children[new.number]
        log.info("process %d is replaced; the old one drains", old.number, extra=old.extra)
        children[new.number], self.newcomer = new, None
        return old

    def is_late(self, now: float) -> bool:
        """Whether the newcomer has had its time to be ready."""
        return self.newcomer is not None and now >= self._ready_by

    def give_up(self, children: list[Child], why: str) -> None:
        """Leave the old ones as they are, until the next request."""
        new, self.newcomer = self.newcomer, None
        if new is not None:
            text = "the new process %d %s; the old ones go on as they are"
            log.error(text, new.number, why, extra=new.extra)
        for child in children:
            child.stale_at = NEVER
            forget(child.socket, Word.CHANGED)  # a worn one asks on, less and less often


def _wishes(child: Child, now: float) -> float:
    """Return when *child* is to be replaced by its own wish."""
    if told(child.socket, Word.CHANGED) is not None:
        return now
    why = told(child.socket, Word.WORN)
    if why is None:
        return NEVER
    delay = child.restarts.ended()  # a limit below what a new process needs at once must not have them spin
    log.info("process %d is to be replaced in %g s: %s", child.number, delay, why, extra=child.extra)
    return now + delay
