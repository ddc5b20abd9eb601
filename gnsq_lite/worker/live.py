"""The status pages of one Worker process, and the middleware that keeps the last errors for the live page."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from gnsq_lite import stacks
from gnsq_lite.clock import SYSTEM_CLOCK, Clock
from gnsq_lite.message import Message, Requeue
from gnsq_lite.net.os_threads import native_lock
from gnsq_lite.stats import COMBINED, ReaderStats
from gnsq_lite.supervise.merged import CALLS, ERRORS, Document, empty, merge
from gnsq_lite.supervise.status import Page, Verdict
from gnsq_lite.text import printable
from gnsq_lite.version import __version__
from gnsq_lite.worker.app import Middleware, Worker
from gnsq_lite.worker.specs import Handler
from gnsq_lite.worker.supervised import TIMEOUT, resident

#: Maximum characters of an error's text.
_LONGEST = 300

Key = tuple[str, str]


class LastErrors(Middleware[Any]):
    """Middleware that keeps the last errors of each handler.  A successful message costs almost no time."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock, self._lock = clock, native_lock()
        self._of: dict[Key, deque[Document]] = {}

    def wrap(self, call: Callable[[Any], object], handler: Handler) -> Callable[[Any], object]:
        """Wrap *call* to keep the errors that it raises, except a Requeue without backoff."""
        kept = self._of.setdefault((handler.topic, handler.channel), deque(maxlen=ERRORS))

        def keeping(message: Any) -> object:
            try:
                return call(message)
            except BaseException as error:
                if not (isinstance(error, Requeue) and not error.backoff):
                    self._keep(kept, error, message)
                raise

        return keeping

    def of(self, key: Key) -> list[Document]:
        """Return the last errors of the handler of *key*, (topic, channel)."""
        with self._lock:
            return [dict(each) for each in self._of.get(key, ())]

    def _keep(self, kept: deque[Document], error: BaseException, message: Message | list[Message]) -> None:
        first = message[0] if isinstance(message, list) else message
        more = f" and {len(message) - 1} more" if isinstance(message, list) and len(message) > 1 else ""
        where = f"{first.id.decode('ascii', 'replace')} of {first.nsqd_address}, attempt {first.attempts}{more}"
        found = {"type": type(error).__name__, "text": stacks.message_of(error)[:_LONGEST], "process": 0}
        with self._lock:
            same = next(
                (each for each in kept if each["type"] == found["type"] and each["text"] == found["text"]), None
            )
            if same is not None:
                kept.remove(same)
            count = 1 if same is None else same["count"] + 1
            kept.append({**found, "at": self._clock.wall(), "count": count, "message": printable(where)})


class WorkerPages:
    """The status pages of this process's Worker.

    Args:
        metrics: Function that renders the metrics page.
        depths: Function that returns the known depths by (nsqd, topic, channel).
    """

    def __init__(
        self,
        worker: Worker,
        metrics: Callable[[], Page],
        errors: LastErrors,
        depths: Callable[[Sequence[ReaderStats]], dict[tuple[str, str, str], int]] = lambda stats: {},
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._worker, self._metrics, self._errors, self._depths = worker, metrics, errors, depths
        self._clock, self._began = clock, clock.now()
        self._last: tuple[ReaderStats, ...] = ()

    def metrics(self) -> Page:
        """Render the metrics.  Raises MissingExtra."""
        return self._metrics()

    def health(self) -> Verdict:
        """Return True.  A separate thread serves the page, so a response shows only that the process runs."""
        return True, {"pid": os.getpid()}

    def ready(self) -> Verdict:
        """Return whether each Reader has RDY above 0.  RDY is 0 while it starts, drains, is paused or backs off."""
        if self._worker.stages.drain.done():
            return False, {"why": "draining"}
        if len(self._worker.readers) < len(self._worker.handlers):
            return False, {"why": "starting"}
        if not self._refresh():
            return False, {"why": f"the I/O loop does not answer within {TIMEOUT:g} s: a handler blocks it"}
        stats = self._last
        details = [
            {
                **{name: getattr(each, name) for name in ("topic", "channel", "state", "ready", "in_flight")},
                "connections": len(each.connections),
                "oldest_handler": round(each.oldest_handler, 1),
                "handlers_overdue": each.handlers_overdue,
            }
            for each in stats
        ]
        return all(each.is_ready for each in stats), {"handlers": details}

    def live(self, brief: bool) -> Document:
        """Return the document of ``/api/status`` for this process.  A *brief* document has no depths."""
        is_up = self._refresh()
        depths = {} if brief else self._depths(self._last)
        calls = self.running()["calls"]
        handlers = [self._handler(each, is_up, calls) for each in self._last]
        handlers += [_starting(each) for each in self._worker.handlers[len(handlers) :]]
        draining = self._worker.stages.drain.done()
        process = {
            "number": 0,
            "pid": os.getpid(),
            "state": "draining" if draining else "running" if is_up else "blocked",
            "why": "" if is_up else "a handler blocks the I/O loop",
            "memory": int(resident() * 1024 * 1024),
            "runs_for": self._clock.now() - self._began,
            "restarts": 0,
            "finished": sum(each["finished"] for each in handlers),
            "in_flight": sum(each["in_flight"] for each in handlers),
        }
        alone = {
            **empty(__version__, self._clock.wall()),
            "draining": draining,
            "handlers": handlers,
            "processes": [process],
            "nsqds": [row for each in self._last for row in _nsqds(each, depths)],
            "unavailable": [
                {"address": address, "topic": each.topic, "channel": each.channel, "why": printable(why)[:_LONGEST]}
                for each in self._last
                for address, why in each.unavailable.items()
            ],
        }
        return merge(alone["version"], alone["at"], [alone])

    def history(self) -> Document:
        """Return no samples: only a supervisor keeps them."""
        return {"samples": []}

    def running(self) -> Document:
        """Return the document of ``/api/running`` for this process.  It does not wait for the I/O loop."""
        calls = [asdict(call) for reader in self._worker.readers for call in reader.running()]
        calls.sort(key=lambda call: -call["seconds"])
        return {"calls": [{**call, "process": 0, "pid": os.getpid()} for call in calls], "silent": []}

    def _refresh(self) -> bool:
        """Refresh the state of the Readers.  If the loop does not answer, keep the last state and return False."""
        try:
            self._last = self._worker.stats(TIMEOUT)
        except TimeoutError:
            return False
        return True

    def _handler(self, stats: ReaderStats, is_up: bool, calls: list[Document]) -> Document:
        key = (stats.topic, stats.channel)
        handler = next(each for each in self._worker.handlers if (each.topic, each.channel) == key)
        store = handler.merged(self._worker.defaults).get("on_give_up")
        return {
            **_starting(handler),
            "kept_in": store if isinstance(store, str) else "",
            **{name: getattr(stats, name) for name in COMBINED},
            "connections": len(stats.connections),
            "oldest_handler": round(stats.oldest_handler, 1),
            "state": stats.state if is_up else "blocked",
            "paused": stats.state == "paused",
            "errors": self._errors.of(key)[::-1],
            "running": [call for call in calls if (call["topic"], call["channel"]) == key][:CALLS],
        }


def _starting(handler: Handler) -> Document:
    """Return the row of a handler before its Reader has started."""
    zero = dict.fromkeys(COMBINED, 0)
    named = {"topic": handler.topic, "channel": handler.channel, "name": handler.name}
    return {
        **zero,
        **named,
        "state": "starting",
        "starved": False,
        "paused": False,
        "oldest_handler": 0.0,
        "errors": [],
        "running": [],
    }


def _nsqds(stats: ReaderStats, depths: dict[tuple[str, str, str], int]) -> list[dict[str, Any]]:
    return [
        {
            "address": each.address,
            "topic": stats.topic,
            "channel": stats.channel,
            "connections": 1,
            "ready": each.ready,
            "share": each.share,
            "in_flight": each.in_flight,
            "last_read_ago": round(each.last_read_ago, 1),
            "depth": depths.get((each.address, stats.topic, stats.channel)),
        }
        for each in stats.connections
    ]
