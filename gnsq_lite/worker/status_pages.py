"""A Worker's status pages."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from gnsq_lite.supervise.status import Page, Verdict
from gnsq_lite.worker.app import Worker
from gnsq_lite.worker.live import Live

#: Seconds the I/O loop has to answer; in a monkey-patched process a blocked handler blocks the loop too.
TIMEOUT = 2.0


class WorkerPages:
    """Answers from the Worker of this process.  *metrics* makes the page of that name."""

    def __init__(self, worker: Worker, metrics: Callable[[], Page], live: Live) -> None:
        self._worker, self._metrics, self._live = worker, metrics, live

    def metrics(self) -> Page:
        """The metrics.  Raises MissingExtra."""
        return self._metrics()

    def health(self) -> Verdict:
        """Always good: the page comes from its own thread, and shows that the process lives."""
        return True, {"pid": os.getpid()}

    def ready(self) -> Verdict:
        """Whether every Reader has RDY above 0: not while it starts, drains or backs off."""
        if self._worker.stages.drain.done():
            return False, {"why": "draining"}
        readers = self._worker.readers
        if len(readers) < len(self._worker.handlers):
            return False, {"why": "starting"}
        try:
            stats = [reader.stats(TIMEOUT) for reader in readers]
        except TimeoutError:
            return False, {"why": f"the I/O loop does not answer within {TIMEOUT:g} s: a handler blocks it"}
        details: list[dict[str, Any]] = [
            {
                "topic": each.topic,
                "channel": each.channel,
                "state": each.state,
                "connections": len(each.connections),
                "ready": each.ready,
                "in_flight": each.in_flight,
                "oldest_handler": round(each.oldest_handler, 1),
                "handlers_overdue": each.handlers_overdue,
            }
            for each in stats
        ]
        return all(each.is_ready for each in stats), {"handlers": details}

    def live(self, details: str) -> dict[str, Any]:
        """The document of this process alone."""
        return self._live.document(details)

    def act(self, action: str, topic: str, channel: str) -> bool:
        """Act on this process."""
        return self._live.act(action, topic, channel)
