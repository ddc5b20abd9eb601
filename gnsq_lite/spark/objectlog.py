"""A log of numbered objects with one writer at a time: each write creates the next number, or finds it taken.

::

    meta                  uuid, topic, channel; created once
    lease/TERM            who writes, and a count that goes up while it lives; created once, then written by its owner
    committed/TERM        number of the last committed object, as that writer knew it
    log/NUMBER            created once: 96 bytes of head - rows, topic partition, writer, checksums - and a segment

A writer that takes over creates a fence, an object without rows, as the next number.  One that was paused, or cut off,
finds that number taken by another when it comes back, and finishes nothing any more; so a fence stays for good.  No
clocks are compared: a lease counts as given up when its count has not changed for a while by the watcher's own clock.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import struct
import threading
import time
import uuid
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from gnsq_lite.clock import SYSTEM_CLOCK, Clock
from gnsq_lite.spark.files import Store
from gnsq_lite.spark.segments import Segment, SegmentDamaged
from gnsq_lite.spark.spoolmeta import Meta, SpoolError, SpoolInUse, parse_meta

log = logging.getLogger("gnsq_lite.spark")

_MAGIC = b"GNSQLOG1"
#: Magic, term, rows, topic partition, payload's length and CRC-32, writer; the CRC-32 of those; padding.
_HEAD = struct.Struct("<8sQqqQI16s")
HEAD_BYTES = 96
#: Seconds without a sign of life after which a lease may be taken over; it is renewed four times in that time.
LEASE = 10.0
#: Seconds a store may be away from an open spool: what failed is tried again so long.
PATIENCE = 60.0

_T = TypeVar("_T")


class SpoolFenced(SpoolError):
    """Another query took this spool over; nothing was finished since."""


@dataclass(frozen=True)
class Entry:
    """An object's head."""

    number: int
    term: int
    rows: int
    partition: int
    size: int
    crc: int
    writer: bytes

    def pack(self) -> bytes:
        """Return the head's bytes."""
        fields = _HEAD.pack(_MAGIC, self.term, self.rows, self.partition, self.size, self.crc, self.writer)
        return (fields + struct.pack("<I", zlib.crc32(fields))).ljust(HEAD_BYTES, b"\0")

    @property
    def segment(self) -> Segment:
        """What is in it."""
        return Segment(self.number, self.partition, self.rows, self.size)


def unpack(number: int, data: bytes) -> Entry:
    """Return the head of an object's bytes.  Raises SegmentDamaged."""
    fields = data[: _HEAD.size]
    if len(data) < HEAD_BYTES or data[_HEAD.size : _HEAD.size + 4] != struct.pack("<I", zlib.crc32(fields)):
        raise SegmentDamaged(f"object {number} of the spool is damaged: its head cannot be read")
    magic, term, rows, partition, size, crc, writer = _HEAD.unpack(fields)
    if magic != _MAGIC:
        raise SegmentDamaged(f"object {number} of the spool is none of this version")
    return Entry(number, term, rows, partition, size, crc, writer)


class Patience:
    """Asks a store again while it is away; called with what asks it."""

    def __init__(self, store: str, clock: Clock, sleep: Callable[[float], None]) -> None:
        self._store, self._clock, self._sleep = store, clock, sleep

    def __call__(self, do: Callable[[], _T]) -> _T:
        """Return what *do* returns.  Raises OSError when PATIENCE is over, and what is an answer at once."""
        pause, deadline = 0.5, self._clock.now() + PATIENCE
        while True:
            try:
                return do()
            except (FileNotFoundError, FileExistsError):  # that is an answer
                raise
            except OSError as error:
                log.warning("spool %s is tried again: %s", self._store, error)
                if self._clock.now() >= deadline:
                    raise
            self._sleep(pause)
            pause = min(5.0, 2 * pause)


def key(number: int) -> str:
    """Return the name of a number, or term."""
    return f"{number:016d}"


class ObjectLog:
    """The log of one spool.  Opened by its writer; :meth:`payload` and :meth:`meta` also serve those who only read."""

    def __init__(self, store: Store, clock: Clock = SYSTEM_CLOCK, sleep: Callable[[float], None] = time.sleep) -> None:
        self.store, self._clock, self._sleep = store, clock, sleep
        self._patiently = Patience(store.url, clock, sleep)
        self._log, self._leases = store.below("log/"), store.below("lease/")
        self._committed = store.below("committed/")
        self._writer = uuid.uuid4().bytes
        self._term = self._tail = self._beats = 0
        self._closing = threading.Event()
        self._heart: threading.Thread | None = None

    # -- whose it is

    def meta(self) -> Meta | None:
        """Return whose spool this is; None where there is none.  Raises SpoolError, OSError."""
        try:
            text = self.store.read("meta").decode()
        except FileNotFoundError:
            return None
        return parse_meta(text, f"{self.store.url}/meta")

    def make_meta(self, meta: Meta) -> Meta:
        """Create the spool's identity, or return the one that is there."""
        try:
            self.store.create("meta", meta.text().encode())
        except FileExistsError:
            pass
        found = self.meta()
        if found is None:
            raise SpoolError(f"{self.store.url}: what was written cannot be read")
        return found

    def take_over(self, wait: float) -> list[Entry]:
        """Become the writer; return the entries that no commit covers, with rows.

        Raises SpoolInUse: another writer lives, and did not go within *wait* seconds.
        """
        last = self._await_lease(wait)
        self._term = last + 1
        try:
            self._leases.create(key(self._term), self._lease())
        except FileExistsError:
            raise SpoolInUse(f"spool {self.store.url} was taken by another query at this moment") from None
        numbers = [int(name) for name in self._log.names()]
        self._tail = max([self.committed(), *numbers])
        while not self._create(Entry(self._tail + 1, self._term, 0, -1, 0, 0, self._writer), b""):
            self._tail += 1  # the one before wrote on: its object counts
        self._tail += 1
        begin = self.committed()
        self._committed.write(key(self._term), json.dumps({"number": begin}).encode())
        for place in (self._leases, self._committed):
            for name in place.names():
                if int(name) < self._term:
                    place.remove(name)
        self._heart = threading.Thread(target=self._beat, name="gnsq_lite-lease", daemon=True)
        self._heart.start()
        return [entry for entry in map(self.entry, self.numbers()) if entry.number > begin and entry.rows]

    def _await_lease(self, wait: float) -> int:
        """Return the last term, whose writer has gone."""
        begun = seen = self._clock.now()
        before: tuple[int, bytes] | None = None
        while True:
            names = self._leases.names()
            if not names:
                return 0
            now = (int(names[-1]), self._leases.read(names[-1]))
            if json.loads(now[1]).get("released"):
                return now[0]
            if now != before:
                if before is not None and self._clock.now() - begun >= wait:
                    holder = json.loads(now[1]).get("holder")
                    raise SpoolInUse(
                        f"spool {self.store.url} is in use by another query ({holder}); every query needs its own"
                        " spoolDir"
                    )
                before, seen = now, self._clock.now()
            elif self._clock.now() - seen >= LEASE:
                return now[0]
            self._sleep(LEASE / 20)

    def _lease(self, released: bool = False) -> bytes:
        self._beats += 1
        holder = f"pid {os.getpid()} on {socket.gethostname()}"
        return json.dumps({"holder": holder, "beats": self._beats, "released": released}).encode()

    def _beat(self) -> None:
        while not self._closing.wait(LEASE / 4):
            try:
                self._leases.write(key(self._term), self._lease())
            except OSError as error:
                log.warning("spool %s: the lease cannot be renewed: %s", self.store.url, error)

    def close(self) -> None:
        """Give the lease back."""
        self._closing.set()
        if self._heart is not None:
            self._heart.join(60.0)
            self._heart = None
            try:
                self._leases.write(key(self._term), self._lease(released=True))
            except OSError as error:
                log.warning("spool %s: the lease cannot be given back: %s", self.store.url, error)

    # -- writing

    def append(self, partition: int, rows: int, payload: bytes) -> Segment:
        """Store *payload* under the next number.

        Raises:
            SpoolFenced: another writer has that number.
            OSError: it may be there or not; only the same call may follow.
        """
        entry = Entry(self._tail + 1, self._term, rows, partition, len(payload), zlib.crc32(payload), self._writer)
        if not self._create(entry, payload):
            raise SpoolFenced(f"spool {self.store.url} was taken over by another query: this one finishes nothing more")
        self._tail = entry.number
        return entry.segment

    def _create(self, entry: Entry, payload: bytes) -> bool:
        try:
            self._log.create(key(entry.number), entry.pack() + payload)
        except FileExistsError:  # an answer that was lost, of a put that was not, looks the same
            return self.entry(entry.number) == entry
        return True

    def advance(self, number: int) -> None:
        """Give no number up to *number* again."""
        while self._tail < number:
            self._tail = number
            if not self._create(Entry(number + 1, self._term, 0, -1, 0, 0, self._writer), b""):
                raise SpoolFenced(f"spool {self.store.url} was taken over by another query")
            self._tail = number + 1

    def commit(self, number: int) -> None:
        """Note that the entries up to *number* are needed no more.  Raises SpoolFenced, OSError."""
        self.check_writer()
        text = json.dumps({"number": number}).encode()
        self._patiently(lambda: self._committed.write(key(self._term), text))

    def check_writer(self) -> None:
        """Raise SpoolFenced where there is a newer lease; OSError."""
        names = self._patiently(self._leases.names)
        if names and int(names[-1]) != self._term:
            raise SpoolFenced(f"spool {self.store.url} was taken over by another query: this one removes nothing more")

    def remove(self, numbers: list[int]) -> None:
        """Remove entries that are committed."""
        if numbers:
            self._patiently(lambda: self._log.remove(*map(key, numbers)))

    # -- reading

    def committed(self) -> int:
        """Return the last committed number."""
        found = [json.loads(self._committed.read(name))["number"] for name in self._committed.names()]
        return max(found, default=0)

    def numbers(self) -> list[int]:
        """Return the numbers that are there."""
        return [int(name) for name in self._patiently(self._log.names)]

    def entry(self, number: int) -> Entry:
        """Return a head.  Raises SegmentDamaged, FileNotFoundError, OSError."""
        return unpack(number, self._patiently(lambda: self._log.read(key(number), 0, HEAD_BYTES)))

    def payload(self, segment: Segment) -> bytes:
        """Return the bytes of a segment.  Raises SegmentDamaged, FileNotFoundError, OSError."""
        data = self._patiently(lambda: self._log.read(key(segment.number)))
        entry = unpack(segment.number, data)
        payload = data[HEAD_BYTES:]
        if entry.segment != segment or len(payload) != entry.size or zlib.crc32(payload) != entry.crc:
            raise SegmentDamaged(f"object {segment.number} of spool {self.store.url} is damaged: {len(payload)} bytes")
        return payload
