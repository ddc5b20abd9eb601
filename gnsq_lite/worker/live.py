"""What the live page shows of a Worker's process: samples of the last minutes, last errors, paused handlers."""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gnsq_lite.clock import SYSTEM_CLOCK, Clock
from gnsq_lite.errors import printable
from gnsq_lite.message import Message, Requeue
from gnsq_lite.net.os_threads import native_lock
from gnsq_lite.stats import COMBINED, ReaderStats
from gnsq_lite.supervise.merged import ERRORS, MORE_SUMS, Document, empty, merge
from gnsq_lite.version import __version__
from gnsq_lite.worker.app import Middleware, Worker
from gnsq_lite.worker.reports import resident
from gnsq_lite.worker.specs import Handler

#: Seconds the I/O loop has to answer.
_TIMEOUT = 2.0
#: Seconds between two samples, and the number of samples kept.
EVERY, KEPT = 1.0, 121
#: A rate is taken over at least so many seconds.
_OVER = 5.0
#: Characters of an error's text that are kept.
_LONGEST = 300

Key = tuple[str, str]


class LastErrors(Middleware[Any]):
    """Keeps the last errors of each handler; a message that does not fail costs nothing."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock, self._lock = clock, native_lock()
        self._of: dict[Key, deque[Document]] = {}

    def wrap(self, call: Callable[[Any], object], handler: Handler) -> Callable[[Any], object]:
        """Return *call*, with its errors kept."""
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
        """Return the last errors of a handler."""
        with self._lock:
            return [dict(each) for each in self._of.get(key, ())]

    def _keep(self, kept: deque[Document], error: BaseException, message: Message | list[Message]) -> None:
        first = message[0] if isinstance(message, list) else message
        more = f" and {len(message) - 1} more" if isinstance(message, list) and len(message) > 1 else ""
        where = f"{first.id.decode('ascii', 'replace')} of {first.nsqd_address}, attempt {first.attempts}{more}"
        found = {"type": type(error).__name__, "text": _text(error), "process": 0}
        with self._lock:
            same = next(
                (each for each in kept if each["type"] == found["type"] and each["text"] == found["text"]), None
            )
            if same is not None:
                kept.remove(same)
            count = 1 if same is None else same["count"] + 1
            kept.append({**found, "at": self._clock.wall(), "count": count, "message": printable(where)})


def _text(error: BaseException) -> str:
    try:
        return str(error)[:_LONGEST]
    except Exception:
        return "(the text of this error cannot be shown)"


@dataclass(frozen=True)
class _Sample:
    at: float
    finished: int
    failures: int
    in_flight: int


class Live:
    """A process as the live page shows it, and the page's actions on it.

    Args:
        depths: Returns the known depths by (nsqd, topic, channel).
    """

    def __init__(
        self,
        worker: Worker,
        errors: LastErrors,
        depths: Callable[[Sequence[ReaderStats]], dict[tuple[str, str, str], int]] = lambda stats: {},
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._worker, self._errors, self._depths, self._clock = worker, errors, depths, clock
        self._began = clock.now()
        self._samples: dict[Key, deque[_Sample]] = {}
        self._last: tuple[ReaderStats, ...] = ()
        self._sampled = float("-inf")
        self._paused = worker.paused

    # -- in the Worker's main thread

    def look(self) -> None:
        """Take a sample when one is due."""
        if self._clock.now() - self._sampled >= EVERY:
            self._sampled = self._clock.now()
            if self._ask():
                for each in self._last:
                    kept = self._samples.setdefault((each.topic, each.channel), deque(maxlen=KEPT))
                    kept.append(_Sample(self._sampled, each.finished, each.failures, each.in_flight))

    def pause(self, wanted: Iterable[Key]) -> None:
        """Pause these handlers, and resume those paused here before that are not among them."""
        now = frozenset(wanted)
        for reader in self._worker.readers:
            key = (reader.topic, reader.channel)
            if key in now - self._paused:
                reader.pause()
            elif key in self._paused - now:
                reader.resume()
        self._paused = now

    # -- in the status pages' threads

    def document(self, details: str = "") -> Document:
        """Return the document of ``/api/status`` for this process."""
        is_up = self._ask()
        depths = {} if "brief" in details else self._depths(self._last)
        handlers = [self._handler(each, is_up, "history" in details) for each in self._last]
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
            "rate": sum(each["rate"] for each in handlers),
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

    def act(self, action: str, topic: str, channel: str) -> bool:
        """Pause or resume a handler, or drain; return False where there is no such handler."""
        if action == "drain":
            self._worker.stages.drain.settle()
            return True
        key = (topic, channel)
        if key not in {(reader.topic, reader.channel) for reader in self._worker.readers}:
            return False
        self.pause(self._paused | {key} if action == "pause" else self._paused - {key})
        return True

    def _ask(self) -> bool:
        """Refresh the state of the Readers; return False where the loop does not answer, and keep the last state."""
        try:
            self._last = self._worker.stats(_TIMEOUT)
        except TimeoutError:
            return False
        return True

    def _handler(self, stats: ReaderStats, is_up: bool, with_history: bool) -> Document:
        key = (stats.topic, stats.channel)
        handler = next(each for each in self._worker.handlers if (each.topic, each.channel) == key)
        now = _Sample(self._clock.now(), stats.finished, stats.failures, stats.in_flight)
        samples = list(self._samples.get(key, ()))
        before = next((each for each in reversed(samples) if now.at - each.at >= _OVER), samples[0] if samples else now)
        document = {
            **_starting(handler),
            **{name: getattr(stats, name) for name in COMBINED},
            "connections": len(stats.connections),
            "state": stats.state if is_up else "blocked",
            "rate": _rate(now.finished - before.finished, now.at - before.at),
            "failing": _rate(now.failures - before.failures, now.at - before.at),
            "paused": stats.state == "paused",
            "errors": self._errors.of(key)[::-1],
        }
        if with_history:
            pairs = list(itertools.pairwise(samples))
            document["history"] = {
                "rate": [_rate(b.finished - a.finished, b.at - a.at) for a, b in pairs],
                "failing": [_rate(b.failures - a.failures, b.at - a.at) for a, b in pairs],
                "in_flight": [b.in_flight for _, b in pairs],
            }
        return document


def _starting(handler: Handler) -> Document:
    """Return the row of a handler whose Reader has not started."""
    zero = dict.fromkeys((*MORE_SUMS, *COMBINED), 0)
    named = {"topic": handler.topic, "channel": handler.channel, "name": handler.name}
    return {**zero, **named, "state": "starting", "starved": False, "paused": False, "errors": []}


def _rate(count: int, seconds: float) -> float:
    return round(count / seconds, 3) if seconds > 0 else 0.0


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
