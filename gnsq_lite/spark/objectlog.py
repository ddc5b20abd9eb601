"""A log of numbered objects with one writer at a time: each write creates the next number, or finds it taken.

::

    meta                  uuid, topic, channel; created once
    lease/TERM            who writes, and a count that goes up while it lives; created once, then written by its owner
    committed/TERM        number of the last committed object, as that writer knew it
    log/NUMBER            created once: 96 bytes of head - rows, topic partition, writer, checksums - and a segment

Other names are nobody's here, such as what marks a folder: they are left alone.

A writer that takes over creates a fence, an object without rows, as the next number.  One that was paused, or cut off,
finds that number taken by another when it comes back, and finishes nothing any more; so a fence stays for good.  No
clocks are compared: a lease counts as given up when its count has not changed for a while by the watcher's own clock.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import socket
import struct
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from gnsq_lite.clock import SYSTEM_CLOCK, Clock
from gnsq_lite.recording.ahead import read_ahead
from gnsq_lite.recording.files import Store
from gnsq_lite.spark.segments import Segment, SegmentDamaged
from gnsq_lite.spark.spoolmeta import Meta, SpoolError, SpoolInUse, parse_meta

log = logging.getLogger("gnsq_lite.spark")

_MAGIC = b"GNSQLOG1"
#: Magic, term, rows, topic partition, payload's length and CRC-32, writer; the CRC-32 of those; padding.
_HEAD = struct.Struct("<8sQqqQI16s")
HEAD_BYTES = 96
#: Seconds without a sign of life after which a lease may be taken over; it is renewed four times in that time.
LEASE = 10.0
#: Seconds a store may be away from an open spool, and from one that is being opened: what failed is tried again.
PATIENCE, OPENING = 60.0, 15.0
#: What the name of a number, or term, looks like.
_NUMBER = re.compile(r"[0-9]{16}")

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

    def __call__(self, do: Callable[[], _T], opens: bool = False) -> _T:
        """Return what *do* returns; *opens*: the store may not be had at all, so wait less, and not for a right.

        Raises OSError when PATIENCE, or OPENING, is over, and what is an answer at once.
        """
        pause, deadline = 0.5, self._clock.now() + (OPENING if opens else PATIENCE)
        while True:
            try:
                return do()
            except (FileNotFoundError, FileExistsError):  # that is an answer
                raise
            except OSError as error:
                if self._clock.now() >= deadline or (opens and isinstance(error, PermissionError)):
                    raise
                log.warning("spool %s is tried again: %s", self._store, error)
            self._sleep(pause)
            pause = min(5.0, 2 * pause)


def key(number: int) -> str:
    """Return the name of a number, or term."""
    return f"{number:016d}"


def create_once(store: Store, name: str, data: bytes, head: int | None = None) -> bool:
    """Create *name* unless it is there; return whether it is by *data*, of whose *head* bytes no two are the same.

    What is there may be of this very put: its answer was lost, and the put sent again.  Raises OSError.
    """
    for _ in range(3):  # of two puts at once a store may refuse both
        try:
            store.create(name, data)
        except FileExistsError:
            with contextlib.suppress(FileNotFoundError):
                return store.read(name, 0, head) == data[:head]
        else:
            return True
    raise OSError(f"{store.url}: {name} is taken, and not there")


class ObjectLog:
    """The log of one spool.  Opened by its writer; :meth:`payload` and :meth:`meta` also serve those who only read."""

    def __init__(self, store: Store, clock: Clock = SYSTEM_CLOCK, sleep: Callable[[float], None] = time.sleep) -> None:
        self.store, self._clock, self._sleep = store, clock, sleep
        self.patiently = Patience(store.url, clock, sleep)
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
        """Create the spool's identity, or return the one that is there.

        Raises SpoolError where the store creates what is there: a writer that comes back would not find the fence.
        """
        found = self.meta()
        if found is None:
            create_once(self.store, "meta", meta.text().encode())
            found = self.meta()
        if found is None:
            raise OSError(f"{self.store.url}/meta cannot be read")
        try:
            self.store.create("meta", found.text().encode())  # the very same, should it be taken
        except FileExistsError:
            return found
        raise SpoolError(
            f"the store of {self.store.url} has no conditional puts: told to create only, it replaced what was there;"
            " a spool cannot be kept from a second writer there"
        )

    def take_over(self, wait: float) -> tuple[list[Segment], dict[int, int]]:
        """Become the writer; return the segments that no commit covers, and number -> bytes of those one does.

        Raises SpoolInUse: another writer lives, and did not go within *wait* seconds.
        """
        last = self._await_lease(wait)
        self._term = last + 1
        if not create_once(self._leases, key(self._term), self._lease()):
            raise SpoolInUse(f"spool {self.store.url} was taken by another query at this moment")
        there = self.sizes()
        self._tail = max([self.committed(), *there])
        while not self._create(Entry(self._tail + 1, self._term, 0, -1, 0, 0, self._writer), b""):
            self._tail += 1  # the one before wrote on: its object counts
            there[self._tail] = -1
        self._tail += 1
        begin = self.committed()
        self._committed.write(key(self._term), json.dumps({"number": begin}).encode())
        for place in (self._leases, self._committed):
            for term in _numbers(place):
                if term < self._term:
                    place.remove(key(term))
        self._heart = threading.Thread(target=self._beat, name="gnsq_lite-lease", daemon=True)
        self._heart.start()
        heads = self.heads([number for number, size in there.items() if size and number > begin])
        past = {number: size for number, size in there.items() if size and number <= begin}
        return [entry.segment for entry in heads.values() if entry.rows], past

    def _await_lease(self, wait: float) -> int:
        """Return the last term, whose writer has gone."""
        begun = seen = self._clock.now()
        before: tuple[int, bytes] | None = None
        while True:
            terms = _numbers(self._leases)
            if not terms:
                return 0
            now = (terms[-1], _listed(self._leases, key(terms[-1])))
            lease = _lease(now[1])
            if lease.get("released") or lease.get("writer") == self._writer.hex():
                return now[0]
            if now != before:
                if before is not None and self._clock.now() - begun >= wait:
                    holder = lease.get("holder")
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
        lease = {"holder": holder, "writer": self._writer.hex(), "beats": self._beats, "released": released}
        return json.dumps(lease).encode()

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
        return create_once(self._log, key(entry.number), entry.pack() + payload, HEAD_BYTES)

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
        self.patiently(lambda: self._committed.write(key(self._term), text))

    def check_writer(self) -> None:
        """Raise SpoolFenced where there is a newer lease; OSError."""
        terms = self.patiently(lambda: _numbers(self._leases))
        if terms and terms[-1] != self._term:
            raise SpoolFenced(f"spool {self.store.url} was taken over by another query: this one removes nothing more")

    def remove(self, numbers: list[int]) -> None:
        """Remove entries that are committed."""
        if numbers:
            self.patiently(lambda: self._log.remove(*map(key, numbers)))

    # -- reading

    def committed(self) -> int:
        """Return the last committed number.  Raises SpoolError, OSError."""
        return max((self._noted(key(term)) for term in _numbers(self._committed)), default=0)

    def _noted(self, name: str) -> int:
        try:
            return int(json.loads(_listed(self._committed, name))["number"])
        except (ValueError, TypeError, KeyError) as error:
            raise SpoolError(f"{self.store.url}/committed/{name} is damaged: {error}") from error

    def sizes(self, until: int | None = None) -> dict[int, int]:
        """Return number -> bytes of rows of what is there, in order; a fence has none.  Raises OSError.

        *until*: up to that number, as far as they are listed in order.
        """
        found = self.patiently(lambda: self._log.sizes(None if until is None else key(until)))
        return {int(name): size - HEAD_BYTES for name, size in found.items() if _NUMBER.fullmatch(name)}

    def entry(self, number: int) -> Entry:
        """Return a head.  Raises SegmentDamaged, FileNotFoundError, OSError."""
        return unpack(number, self.patiently(lambda: self._log.read(key(number), 0, HEAD_BYTES)))

    def heads(self, numbers: Sequence[int], complete: bool = False) -> dict[int, Entry]:
        """Return the heads of those of *numbers* that are there, read side by side.  Raises OSError.

        One that is damaged is told and left out; *complete*: or raises SegmentDamaged.
        """

        def head(number: int) -> Entry | None:
            try:
                return self.entry(number)
            except FileNotFoundError:
                return None
            except SegmentDamaged as error:
                if complete:
                    raise
                log.error("spool %s: %s", self.store.url, error)
                return None

        return {entry.number: entry for entry in read_ahead(head, numbers) if entry is not None}

    def stored(self, number: int) -> tuple[Segment, bytes]:
        """Return a segment and its bytes.  Raises SegmentDamaged, FileNotFoundError, OSError."""
        data = self.patiently(lambda: self._log.read(key(number)))
        entry, payload = unpack(number, data), data[HEAD_BYTES:]
        if len(payload) != entry.size or zlib.crc32(payload) != entry.crc:
            raise SegmentDamaged(f"object {number} of spool {self.store.url} is damaged: {len(payload)} bytes")
        return entry.segment, payload

    def payload(self, segment: Segment) -> bytes:
        """Return the bytes of a segment.  Raises SegmentDamaged, FileNotFoundError, OSError."""
        found, payload = self.stored(segment.number)
        if found != segment:
            raise SegmentDamaged(f"object {segment.number} of spool {self.store.url} is damaged: it is another")
        return payload


def _numbers(store: Store) -> list[int]:
    """Return the numbers, or terms, that are there, sorted.  Raises OSError."""
    return [int(name) for name in store.names() if _NUMBER.fullmatch(name)]


def _listed(store: Store, name: str) -> bytes:
    """Return what *name* has, which was listed.  Raises OSError, so that a listing that was late is asked for again."""
    try:
        return store.read(name)
    except FileNotFoundError as error:
        raise OSError(f"{store.url}: {name} was listed, and is gone") from error


def _lease(data: bytes) -> dict[str, Any]:
    """Return what a lease says; nothing, where it is damaged: then it is waited out."""
    try:
        found = json.loads(data)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
