"""Scheduled messages, published by one of a Worker's processes."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gnsq_lite.clock import SYSTEM_CLOCK, Clock
from gnsq_lite.errors import ClosedError, NSQError, OptionError
from gnsq_lite.net.waiting import Completion, wait_any
from gnsq_lite.policy.schedule import Schedule, due, parse_every
from gnsq_lite.supervise.election import Alone, Election
from gnsq_lite.wire.commands import check_body
from gnsq_lite.wire.names import check_topic

log = logging.getLogger("gnsq_lite.worker")

#: Seconds between two checks of the clock, at most.
_LOOK = 0.5

#: A body, or a function that makes one of the due time in seconds since 1970.
Body = bytes | Callable[[float], bytes]


def checked(when: Any, topic: str, body: Any) -> Entry:
    """Return the entry.  Raises OptionError, InvalidName, BodyTypeError, InvalidBody."""
    check_topic(topic)
    if not callable(body):
        check_body(body)
    schedule: Any = parse_every(when) if isinstance(when, (str, int, float)) else when
    if not callable(getattr(schedule, "next_after", None)):
        raise OptionError("every", when, "must be like '30s' or '5m', a number of seconds, or have a next_after(wall)")
    return Entry(schedule, topic, body)


@dataclass(frozen=True)
class Entry:
    """One scheduled message."""

    schedule: Schedule
    topic: str
    body: Body

    @property
    def name(self) -> str:
        """Its name, the same in every process with this code; two entries may share it."""
        body = hashlib.sha256(self.body).hexdigest() if isinstance(self.body, bytes) else ""
        return f"{self.schedule!r} {self.topic} {body}"


class Publishing:
    """Publishes what is due while this process is the elected one.

    Args:
        publish: Called with a topic and a body; returns when nsqd has it.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        publish: Callable[[str, bytes], Any],
        election: Election,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._publish, self._election, self._clock = publish, election, clock
        #: By name; entries that share one are numbered in order, which is the same in every process.
        self._entries: dict[str, Entry] = {}
        alike = Counter[str]()
        for entry in entries:
            alike[entry.name] += 1
            self._entries[f"{entry.name} {alike[entry.name]}"] = entry
        #: Where no process has published before, only what is due from now on counts.
        self._began = clock.wall()
        self._failed: set[str] = set()

    def look(self) -> None:
        """Publish what is due if this process is elected; retry what fails at the next look."""
        if not self._election.wins():
            return
        now, done = self._clock.wall(), self._election.done()
        for name, entry in self._entries.items():
            when, missed = due(entry.schedule, done.get(name, self._began), now)
            if when is None:
                continue
            if missed:
                log.warning("%d times of %r were missed", missed, entry.schedule, extra={"topic": entry.topic})
            try:
                body = entry.body if isinstance(entry.body, bytes) else entry.body(when)
                self._publish(entry.topic, body)
            except Exception as error:  # the user's code too
                self._tell(name, entry, error)
                if isinstance(error, NSQError):
                    continue  # tried again, until the next time is due
            self._failed.discard(name)
            done = {**done, name: when}
            self._election.note(done)

    def _tell(self, name: str, entry: Entry, error: Exception) -> None:
        if name not in self._failed:
            self._failed.add(name)
            said = "what %r is to publish to %s is late, or left out: %s: %s"
            log.error(said, entry.schedule, entry.topic, type(error).__name__, error, extra={"topic": entry.topic})


def start(
    entries: Sequence[Entry], publish: Callable[[str, bytes], Any], election: Election | None, over: Completion
) -> None:
    """Publish in a separate thread until *over* is done."""
    elected = election or Alone()
    publishing = Publishing(entries, publish, elected)

    def run() -> None:
        try:
            while not wait_any([over], _LOOK):
                publishing.look()
        except ClosedError:  # Python exits
            pass
        finally:
            elected.leave()

    threading.Thread(target=run, name="gnsq_lite-schedules", daemon=True).start()
