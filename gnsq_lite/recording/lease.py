"""The writer of a log on an object store holds a lease with a counter that it increments while it runs.

No clocks are compared: a lease counts as abandoned when its content has not changed for a while by the watcher's own
clock.  The fence of the log (objects.py) stops a writer that resumes later.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, TypeVar

from gnsq_lite.clock import SYSTEM_CLOCK, Clock
from gnsq_lite.recording.errors import RecordingFenced, RecordingInUse
from gnsq_lite.recording.objectstore import ObjectStore

log = logging.getLogger("gnsq_lite.recording")

#: Seconds without a change after which a lease may be taken over; it is renewed four times in that time.
LEASE = 10.0
#: Seconds between two looks at a lease.
LOOK = LEASE / 20
#: Seconds for which failed calls are retried on an open log, and on a log that is being opened.
PATIENCE, OPENING = 60.0, 15.0
_TERM = re.compile(r"[0-9]{16}")

_T = TypeVar("_T")


class Patience:
    """Retry a call while the store is unavailable."""

    def __init__(self, store: str, clock: Clock = SYSTEM_CLOCK, sleep: Callable[[float], None] = time.sleep) -> None:
        self._store, self._clock, self._sleep = store, clock, sleep

    def __call__(self, do: Callable[[], _T], opens: bool = False) -> _T:
        """Return the result of *do*; *opens*: retry for a shorter time, and not after a refused permission.

        Raises FileNotFoundError and FileExistsError at once, another OSError after PATIENCE or OPENING seconds.
        """
        pause, deadline = 0.5, self._clock.now() + (OPENING if opens else PATIENCE)
        while True:
            try:
                return do()
            except (FileNotFoundError, FileExistsError):
                raise
            except OSError as error:
                if self._clock.now() >= deadline or (opens and isinstance(error, PermissionError)):
                    raise
                log.warning("%s is tried again: %s", self._store, error)
            self._sleep(pause)
            pause = min(5.0, 2 * pause)


def create_once(store: ObjectStore, name: str, data: bytes) -> bool:
    """Create *name* unless it exists; return whether it holds *data*, which no other writer would write.

    An existing object may come from this put, if its answer was lost and it was sent again.  Raises OSError.
    """
    for _ in range(3):  # a store may refuse both of two concurrent puts
        try:
            store.create(name, data)
        except FileExistsError:
            with contextlib.suppress(FileNotFoundError):
                return store.read(name) == data
        else:
            return True
    raise OSError(f"{store.url}: {name} is taken, but cannot be read")


class Lease:
    """The lease of one log: an object for each term; the newest term is valid."""

    def __init__(
        self, store: ObjectStore, clock: Clock = SYSTEM_CLOCK, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._store, self._clock, self._sleep = store.below("lease/"), clock, sleep
        self._patiently = Patience(store.url, clock, sleep)
        self._writer = uuid.uuid4().hex
        self._beats = 0
        self.term = 0
        #: Term and content at the last look, and the time of the first look that found them.
        self._seen: tuple[int, bytes] | None = None
        self._since = 0.0
        self._closing = threading.Event()
        self._heart: threading.Thread | None = None

    def look(self) -> tuple[int, bytes]:
        """Return the newest term and its content; (0, b"") if there is none.  Raises OSError."""
        terms = self._terms()
        if not terms:
            return 0, b""
        try:
            return terms[-1], self._store.read(_key(terms[-1]))
        except FileNotFoundError as error:
            raise OSError(f"{self._store.url}: a lease was listed, and is gone") from error

    def _terms(self) -> list[int]:
        return [int(name) for name in self._store.names() if _TERM.fullmatch(name)]

    def take(self, wait: float) -> None:
        """Take the lease.

        Raises RecordingInUse: another writer runs, and did not stop within *wait* seconds; OSError.
        """
        self.term = self._await(wait) + 1
        if not create_once(self._store, _key(self.term), self._content()):
            raise RecordingInUse(f"{self._store.url} was taken by another process at this moment")
        for term in self._terms():
            if term < self.term:
                self._store.remove(_key(term))
        self._heart = threading.Thread(target=self._beat, name="gnsq_lite-lease", daemon=True)
        self._heart.start()

    def _await(self, wait: float) -> int:
        """Wait until the writer of the newest term has stopped; return that term."""
        begun = self._clock.now()
        while True:
            is_free = self.is_free()
            if is_free:
                return 0 if self._seen is None else self._seen[0]
            if is_free is False and self._clock.now() - begun >= wait:
                holder = {} if self._seen is None else _parsed(self._seen[1])
                raise RecordingInUse(f"{self._store.url} is written by another process ({holder.get('holder')})")
            self._sleep(LOOK)

    def is_free(self) -> bool | None:
        """Look at the lease; return whether it is free, or None if that takes further looks.

        A lease is free if it was released, or if its content stays the same for LEASE seconds.  It has a writer if its
        content changed since the last look.  Raises OSError.
        """
        before, found = self._seen, self.look()
        if found != before:
            self._seen, self._since = found, self._clock.now()
        if not found[0] or _parsed(found[1]).get("released"):
            return True
        if before is not None and found != before:
            return False
        return True if self._clock.now() - self._since >= LEASE else None

    def _content(self, released: bool = False) -> bytes:
        self._beats += 1
        holder = f"pid {os.getpid()} on {socket.gethostname()}"
        lease = {"holder": holder, "writer": self._writer, "beats": self._beats, "released": released}
        return json.dumps(lease).encode()

    def _beat(self) -> None:
        while not self._closing.wait(LEASE / 4):
            try:
                self._store.write(_key(self.term), self._content())
            except OSError as error:
                log.warning("%s: the lease cannot be renewed: %s", self._store.url, error)

    def check(self) -> None:
        """Raise RecordingFenced if there is a newer term; OSError."""
        terms = self._patiently(self._terms)
        if terms and terms[-1] != self.term:
            raise RecordingFenced(f"{self._store.url} was taken over by another process")

    def release(self) -> None:
        """Release the lease."""
        self._closing.set()
        if self._heart is not None:
            self._heart.join(60.0)
            self._heart = None
            try:
                self._store.write(_key(self.term), self._content(released=True))
            except OSError as error:
                log.warning("%s: the lease cannot be released: %s", self._store.url, error)


def _key(term: int) -> str:
    return f"{term:016d}"


def _parsed(data: bytes) -> dict[str, Any]:
    """Parse a lease; return an empty dict if it is damaged, so that callers wait until it expires."""
    try:
        found = json.loads(data)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
