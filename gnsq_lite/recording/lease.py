"""Leases of logs on object stores.  A writer holds its log's lease, and renews the lease by incrementing a counter.

The clocks of two machines are never compared.  A recorder may take over a lease that was released, or that did not
change for LEASE seconds of the recorder's clock.  If the old writer resumes, the log's fence (objects.py) refuses it.
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

#: Seconds without a change after which a lease may be taken over.  A writer renews its lease four times in this time.
LEASE = 10.0
#: Seconds between two reads of a lease.
LOOK = LEASE / 20
#: Seconds for which failed calls are retried: PATIENCE for an open log, OPENING while a log is opened.
PATIENCE, OPENING = 60.0, 15.0
_TERM = re.compile(r"[0-9]{16}")

_T = TypeVar("_T")


class Patience:
    """Retries calls while a store is unavailable."""

    def __init__(self, store: str, clock: Clock = SYSTEM_CLOCK, sleep: Callable[[float], None] = time.sleep) -> None:
        self._store, self._clock, self._sleep = store, clock, sleep

    def __call__(self, do: Callable[[], _T], opens: bool = False) -> _T:
        """Call *do* again after each OSError, for at most PATIENCE seconds, and return the result.

        If *opens* is true, retry for at most OPENING seconds, and not after PermissionError.  FileNotFoundError and
        FileExistsError are never retried.
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
                log.warning("retrying a request to %s: %s", self._store, error)
            self._sleep(pause)
            pause = min(5.0, 2 * pause)


def create_once(store: ObjectStore, name: str, data: bytes) -> bool:
    """Create the object *name* unless it exists, and return whether its content is *data*.  Raises OSError.

    *data* must be unique to this writer.  So True means that this writer created the object, now or in an earlier try.
    """
    for _ in range(3):  # a store may refuse both of two concurrent puts
        try:
            store.create(name, data)
        except FileExistsError:
            with contextlib.suppress(FileNotFoundError):
                return store.read(name) == data
        else:
            return True
    raise OSError(f"{store.url}: {name} exists, but cannot be read")


class Lease:
    """The lease of one log.  Each term is an object, and only the newest term is valid."""

    def __init__(
        self, store: ObjectStore, clock: Clock = SYSTEM_CLOCK, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._store, self._clock, self._sleep = store.below("lease/"), clock, sleep
        self._patiently = Patience(store.url, clock, sleep)
        self._writer = uuid.uuid4().hex
        self._renewals = 0
        self.term = 0
        #: Term and content at the last read, and the time of the first read that returned this content.
        self._seen: tuple[int, bytes] | None = None
        self._since = 0.0
        #: Whether :meth:`release` was called.
        self.is_released = False
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def look(self) -> tuple[int, bytes]:
        """Return the newest term and its content, or (0, b"") if there is no term.  Raises OSError."""
        terms = self._terms()
        if not terms:
            return 0, b""
        try:
            return terms[-1], self._store.read(_key(terms[-1]))
        except FileNotFoundError as error:
            raise OSError(f"{self._store.url}: the store lists a lease that does not exist") from error

    def _terms(self) -> list[int]:
        return [int(name) for name in self._store.names() if _TERM.fullmatch(name)]

    def take(self, wait: float) -> None:
        """Take the lease.

        Raises OSError, and RecordingInUse if another writer runs after *wait* seconds or takes the lease meanwhile.
        """
        self.term = self._await(wait) + 1
        if not create_once(self._store, _key(self.term), self._content()):
            raise RecordingInUse(f"{self._store.url}: another process took the lease at the same time")
        for term in self._terms():
            if term < self.term:
                self._store.remove(_key(term))
        self._thread = threading.Thread(target=self._renew, name="gnsq_lite-lease", daemon=True)
        self._thread.start()

    def _await(self, wait: float) -> int:
        """Wait until the lease is free, and return the newest term or 0.  Raises RecordingInUse, OSError."""
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
        """Read the lease.  Return whether the lease is free, or None if only a later read can decide.

        A lease is free if it was released, or if its content did not change for LEASE seconds.  A lease is not free if
        its content changed since the last read.  Raises OSError.
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
        self._renewals += 1
        holder = f"pid {os.getpid()} on {socket.gethostname()}"
        lease = {"holder": holder, "writer": self._writer, "renewals": self._renewals, "released": released}
        return json.dumps(lease).encode()

    def _renew(self) -> None:
        while not self._closing.wait(LEASE / 4):
            try:
                self._store.write(_key(self.term), self._content())
            except OSError as error:
                log.warning("%s: the lease cannot be renewed: %s", self._store.url, error)

    def check(self) -> None:
        """Raise RecordingFenced if there is a newer term, and OSError if the store fails."""
        terms = self._patiently(self._terms)
        if terms and terms[-1] != self.term:
            raise RecordingFenced(f"{self._store.url} was taken over by another process")

    def release(self) -> None:
        """Release the lease.  If the store does not answer a renewal for a minute, let the lease expire instead."""
        self.is_released = True
        self._closing.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(60.0)
            if thread.is_alive():  # its write could follow the release
                log.warning("%s: the lease cannot be released: a renewal has not ended", self._store.url)
                return
            try:
                self._store.write(_key(self.term), self._content(released=True))
            except OSError as error:
                log.warning("%s: the lease cannot be released: %s", self._store.url, error)


def _key(term: int) -> str:
    return f"{term:016d}"


def _parsed(data: bytes) -> dict[str, Any]:
    """Parse a lease.  Return an empty dict for a damaged lease, so that callers wait until this lease expires."""
    try:
        found = json.loads(data)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
