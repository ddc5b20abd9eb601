"""HDFS behind the calls of a spool's store.

The library is hdfs-native: it speaks to NameNode and DataNodes by itself, as Hadoop's own client does, without a Java.
A file there is not whole until it is closed, so one is written aside and then renamed: the NameNode does that at once,
and refuses a name that is taken.
"""

from __future__ import annotations

import contextlib
import io
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

from gnsq_lite.clock import SYSTEM_CLOCK, Clock
from gnsq_lite.errors import MissingExtra, OptionError
from gnsq_lite.spark.ahead import read_ahead

log = logging.getLogger("gnsq_lite.spark")

_T = TypeVar("_T")
#: Seconds a call may take: the library itself waits for good for a NameNode that took a call and does not answer.
LIMIT = 60.0
#: Seconds one attempt at a read or a write may take, and bytes that pass in each further one.
ATTEMPT, SLOWEST = 10.0, 2_000_000
#: Seconds after an attempt that a DataNode failed in which a file begins with one copy.
SPARED = 30.0
#: What the library is told unless the options say otherwise.  Its own would try to connect for three minutes.
_DEFAULTS = {
    "dfs.client.failover.max.attempts": "4",
    "dfs.client.failover.sleep.max.millis": "2000",
    "dfs.client.socket-timeout": "15000",
}
#: Files that one call removes.
REMOVED = 100
#: Milliseconds, by the NameNode's clock, after which a file that lies aside is nobody's any more.
_ABANDONED = 3_600_000


def settings(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options ``nsq.storage.*``, without their prefix: Hadoop's own names.  Raises OptionError."""
    for name in given:
        if not name.lower().startswith(("dfs.", "fs.", "hadoop.")):
            why = "is no setting of HDFS: they have Hadoop's names, such as dfs.client.use.datanode.hostname"
            raise OptionError(f"nsq.storage.{name}", "<hidden>", why)
    return {**_DEFAULTS, **given}


class _NotTaken(OSError):
    """The DataNodes did not take a file's content."""


class _Care:
    """What the stores of one spool know together: until when a file begins with one copy; None: all was well."""

    until: float | None = None


class HdfsStore:
    """The files below a URL.  Every method raises OSError where they cannot be had, FileExistsError among them."""

    def __init__(
        self,
        url: str,
        given: Mapping[str, str],
        prefix: str = "",
        limit: float = LIMIT,
        clock: Clock = SYSTEM_CLOCK,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.url, self._given, self._prefix, self._limit = url, dict(given), prefix, limit
        self._clock, self._sleep = clock, sleep
        self._root = urlsplit(url).path.rstrip("/")
        self._client: Any = None
        self._care = _Care()
        self._swept = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None, "_care": _Care()}

    def below(self, prefix: str) -> HdfsStore:
        """Return the files in the directory *prefix*, which ends with a slash."""
        found = HdfsStore(self.url, self._given, self._prefix + prefix, self._limit, self._clock, self._sleep)
        found._client, found._care = self._opened(), self._care
        return found

    def check(self) -> None:
        """Raise MissingExtra or OptionError where the settings are of no use; asks nothing of HDFS."""
        self._opened()

    def create(self, name: str, data: bytes) -> None:
        """Make *name*, whole and durable.  Raises FileExistsError; an OSError of another kind leaves it open."""
        self._put(name, data, replace=False)

    def write(self, name: str, data: bytes) -> None:
        """Set the content of *name*: after a crash it is the old one or the new one."""
        self._put(name, data, replace=True)

    def read(self, name: str, at: int = 0, size: int | None = None) -> bytes:
        """Return *size* bytes from *at* on, fewer at the end.  Raises FileNotFoundError."""

        begun = self._clock.now()
        while True:
            file = self._call(name, lambda client: client.read(self._path(name)))
            end = len(file) if size is None else min(len(file), at + size)
            fetch = partial(_range, file, at, end - at)
            try:
                return self._call(name, fetch, self._bounded(end - at))
            except TimeoutError as error:  # a silent DataNode; the NameNode may name another first
                if self._clock.now() >= begun + self._limit:
                    raise
                log.warning("a read is tried again: %s", error)

    def _bounded(self, size: int) -> float:
        """Return the seconds that so many bytes may take."""
        return min(self._limit, ATTEMPT + max(0, size) / SLOWEST)

    def sizes(self, until: str | None = None) -> dict[str, int]:
        """Return name -> bytes of what is there, sorted by name; *until*: up to the first name beyond it."""

        def listed(client: Any) -> dict[str, int]:
            found: dict[str, int] = {}
            with contextlib.suppress(FileNotFoundError):
                for one in client.list_status(self._path("").rstrip("/") or "/", False):
                    name = one.path.rpartition("/")[2]
                    if until is not None and name > until:
                        break
                    if not one.isdir:
                        found[name] = int(one.length)
            return found

        return dict(sorted(self._call("", listed).items()))

    def names(self) -> list[str]:
        """Return the names that are there, sorted."""
        return list(self.sizes())

    def remove(self, *names: str) -> None:
        """Remove *names*; one that is gone already is no error."""

        def remove(some: Sequence[str]) -> None:
            self._call(some[0], lambda client: [client.delete(self._path(name), False) for name in some])

        list(read_ahead(remove, [names[at : at + REMOVED] for at in range(0, len(names), REMOVED)]))

    def _path(self, name: str) -> str:
        return f"{self._root}/{self._prefix}{name}"

    def _put(self, name: str, data: bytes, *, replace: bool) -> None:
        """Write a file: twice as HDFS is configured, then with one copy, of which the NameNode has the others made.

        For ten minutes a NameNode goes on to name a DataNode that died.  Hadoop's own client tells it whom not to name;
        this library fails, or waits for good.
        """
        begun, care, pause = self._clock.now(), self._care, 0.05
        limit = self._bounded(len(data))
        failures = 0 if care.until is None else 1
        while True:
            one_copy = failures > 1 or self._clock.now() < (care.until or 0.0)
            try:
                write = partial(self._write, self._path(name), data, replace, one_copy)
                self._call(name, write, limit)
            except (_NotTaken, TimeoutError) as error:
                failures += 1
                if self._clock.now() >= begun + self._limit:
                    raise
                log.warning("a write is tried again, with %s: %s", "one copy" if failures > 1 else "all copies", error)
            else:
                care.until = care.until if one_copy else None
                return
            if failures > 1:
                care.until = self._clock.now() + SPARED
            self._sleep(pause)
            pause = min(2.0, 2 * pause)

    def _write(self, path: str, data: bytes, replace: bool, one_copy: bool, client: Any) -> None:
        aside = f"{self._root}/aside/{uuid.uuid4().hex}"
        try:
            with _created(client, aside) as file:
                copies = client.get_file_info(aside).replication if one_copy else None
                if copies is not None:
                    client.set_replication(aside, 1)
                self._fill(file, data)
            if copies is not None:
                client.set_replication(aside, copies)
            client.mkdirs(path.rpartition("/")[0], create_parent=True)
            if client is not self._client:
                raise TimeoutError("it took too long")
            self._rename(client, aside, path, data, replace)
        except BaseException:
            with contextlib.suppress(Exception):
                client.delete(aside, False)
            raise
        self._sweep(client, path)

    def _fill(self, file: Any, data: bytes) -> None:
        """Write *data*, and return when it is on the disks.  Raises _NotTaken."""
        try:
            file.write(data)
            file.hsync()
            file.close()
        except BaseException as error:  # the library's own defects are no Exceptions
            raise _NotTaken(str(error)) from error

    def _rename(self, client: Any, aside: str, path: str, data: bytes, replace: bool) -> None:
        """Give *aside* its name.  A call whose answer was lost is sent again by the library, and finds nothing."""
        try:
            client.rename(aside, path, replace)
        except FileNotFoundError as error:
            if client.read(path).read() != data:
                raise OSError(str(error)) from error

    def _sweep(self, client: Any, newest: str) -> None:
        """Remove, once, what processes that were killed left aside; *newest* was written now."""
        if self._swept:
            return
        self._swept = True
        try:
            now = client.get_file_info(newest).modification_time
            for one in client.list_status(f"{self._root}/aside", False):
                if one.modification_time < now - _ABANDONED:
                    client.delete(one.path, False)
        except Exception as error:  # what is left there does no harm
            log.warning("%s/aside cannot be swept: %s", self.url, error)

    def _opened(self) -> Any:
        if self._client is None:
            try:
                from hdfs_native import Client
            except ImportError as error:
                raise MissingExtra("a spoolDir on HDFS", "spark-hdfs", "hdfs-native") from error
            try:
                self._client = Client(f"hdfs://{urlsplit(self.url).netloc}", self._given)
            except Exception as error:
                raise OptionError("spoolDir", self.url, f"HDFS refuses its settings: {error}") from error
        return self._client

    def _call(self, name: str, do: Callable[[Any], _T], limit: float | None = None) -> _T:
        """Return what *do* makes of the client, within the limit; in a thread, for nothing else can end the wait."""
        limit = self._limit if limit is None else limit
        where = f"{self.url}/{self._prefix}{name}"
        found: list[_T] = []
        failed: list[BaseException] = []
        client = self._opened()

        def run() -> None:
            try:
                found.append(do(client))
            except BaseException as error:  # the library's own defects are no Exceptions
                failed.append(error)

        thread = threading.Thread(target=run, name="gnsq_lite-hdfs", daemon=True)
        thread.start()
        thread.join(limit)
        if found:
            return found[0]
        if not failed:
            self._client = None
            raise TimeoutError(f"{where}: no answer within {limit:g} s")
        (error,) = failed
        if isinstance(error, FileNotFoundError):
            raise FileNotFoundError(f"{where} is not there") from error
        if isinstance(error, FileExistsError):
            raise FileExistsError(f"{where} exists") from error
        kind = _NotTaken if isinstance(error, _NotTaken) else OSError
        raise kind(f"{where}: {str(error).partition(chr(10))[0]}") from error


@contextlib.contextmanager
def _created(client: Any, path: str) -> Iterator[Any]:
    """Give a new file, which Python does not close once more when it collects it.

    The library does not tell Python that a file is closed; and closing one whose NameNode or DataNode is gone waits, it
    may be for good, in whatever thread happens to collect it.
    """
    from hdfs_native import WriteOptions

    file = client.create(path, WriteOptions(create_parent=True))
    try:
        yield file
    finally:
        if isinstance(file, io.IOBase):
            io.IOBase.close(file)


def _range(file: Any, at: int, size: int, client: Any) -> bytes:
    return bytes(file.read_range(at, size)) if size > 0 else b""
