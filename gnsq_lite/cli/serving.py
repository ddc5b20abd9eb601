"""Runs Readers until Ctrl-C or SIGTERM, and drains them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from gnsq_lite import Reader
from gnsq_lite.cli.hints import in_flags
from gnsq_lite.cli.output import errors
from gnsq_lite.cli.repeats import Once
from gnsq_lite.net.signals import until_signal
from gnsq_lite.net.waiting import Completion
from gnsq_lite.supervise import logs


def log_to_stderr(level: str = "warning", prefix: str = "") -> Once:
    """Send warnings to standard error: one line each, repetitions once a minute, no traceback for errors of others.

    Returns the filter, which counts suppressed lines.
    """
    logs.configure("brief", level, "main")
    once = Once()
    for handler in logging.getLogger().handlers:
        handler.addFilter(once)
        handler.setFormatter(_InFlags(handler.formatter, prefix))
    return once


class _InFlags(logging.Formatter):
    def __init__(self, inner: logging.Formatter | None, prefix: str) -> None:
        super().__init__()
        self._inner, self._prefix = inner or logging.Formatter(), prefix

    def format(self, record: logging.LogRecord) -> str:
        return self._prefix + in_flags(self._inner.format(record))


class Service:
    """Readers that run until a signal, until *ended*, or until one ends; more of them may be added meanwhile."""

    def __init__(self, *, drain: float, ended: Completion | None = None, once: Once | None = None) -> None:
        self._drain = drain
        self._done = ended if ended is not None else Completion()
        self._readers: list[Reader] = []
        self._lock = threading.Lock()
        self._closing = False
        self._once = once

    def add(self, reader: Reader) -> None:
        """Start *reader*, unless the end has begun."""
        with self._lock:
            if self._closing:
                return
            self._readers.append(reader)
            reader.start(block=False)
        threading.Thread(target=_tell_of_its_end, args=(reader, self._done), daemon=True).start()

    def run(self, begin: Callable[[], object]) -> None:
        """Call *begin*, which adds Readers, wait for the end, and close them all within *drain* seconds.

        Raises what *ended* was settled with, or what ended a Reader and no retry can mend: TLS that nsqd does not
        offer.
        """
        try:
            until_signal(self._done, lambda timeout=0.0: self._done.settle(), begin)
        except KeyboardInterrupt:
            pass
        finally:
            self.close()

    def close(self) -> None:
        """Close all Readers at once, and report suppressed warnings."""
        with self._lock:
            self._closing = True
            readers = list(self._readers)
        threads = [threading.Thread(target=reader.close, args=(self._drain,)) for reader in readers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for line in self._once.rest() if self._once is not None else ():
            errors.print(f"gnsq-lite: {line}", markup=False)


def serve(readers: Sequence[Reader], *, drain: float, ended: Completion | None = None) -> None:
    """Run *readers* as a :class:`Service` does."""
    service = Service(drain=drain, ended=ended, once=log_to_stderr())

    def begin() -> None:
        for reader in readers:
            service.add(reader)

    try:
        service.run(begin)
    finally:
        service.close()


def _tell_of_its_end(reader: Reader, done: Completion) -> None:
    try:
        reader.join()
    except BaseException as error:
        done.settle(error=error)
    else:
        done.settle()
