"""The outbox relay: a thread per database in every process of the worker; a lock elects the one that works."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import Error as DatabaseError
from django.db import connections

from gnsq_lite.contrib.django.conf import nsq_settings
from gnsq_lite.contrib.django.outbox import Relay, outbox_databases
from gnsq_lite.contrib.django.publishing import direct_writer
from gnsq_lite.errors import NSQError, OptionError
from gnsq_lite.option_fields import check_number
from gnsq_lite.worker import Middleware, Worker

log = logging.getLogger("gnsq_lite.django")

#: Seconds until the next turn after one that failed: this, twice this, ... up to the second.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0


class Relaying:
    """Relays one database's outbox, batch after batch.

    Args:
        wait: Called with seconds; waits so long, and returns whether it is time to end.
    """

    def __init__(self, alias: str, turn: Callable[[], bool], wait: Callable[[float], bool], interval: float) -> None:
        self._alias, self._turn, self._wait, self._interval = alias, turn, wait, interval
        self._failed = 0

    def run(self) -> None:
        """Relay until stopped; errors of the database or of NSQ do not end it."""
        try:
            while not self._wait(self._once()):
                pass
        finally:
            connections[self._alias].close()

    def _once(self) -> float:
        """Take a turn; return the seconds until the next one."""
        try:
            more = self._turn()
        except (DatabaseError, NSQError) as error:
            connections[self._alias].close()  # it may have broken
            pause = min(_FIRST_PAUSE * 2.0 ** min(self._failed, 16), _LONGEST_PAUSE)
            self._failed += 1
            level = logging.WARNING if self._failed == 1 else logging.DEBUG
            log.log(level, "the outbox of %r is not relayed for now: %s: %s", self._alias, type(error).__name__, error)
            return pause
        if self._failed:
            self._failed = 0
            log.info("the outbox of %r is relayed again", self._alias)
        return 0.0 if more else self._interval


def interval() -> float:
    """Return the interval from the settings, seconds.  Raises ImproperlyConfigured."""
    found = nsq_settings().get("OUTBOX_INTERVAL", 0.5)
    try:
        return float(check_number("NSQ['OUTBOX_INTERVAL']", found, 0.01, 3600))
    except OptionError as error:
        raise ImproperlyConfigured(str(error)) from None


class RelayInWorker(Middleware):
    """Relays while the worker runs.  Raises ImproperlyConfigured."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        self._interval = interval()

    def started(self, worker: Worker) -> None:
        """Begin."""
        now = direct_writer()
        for alias in outbox_databases():
            relaying = Relaying(alias, Relay(alias, now).turn, self._over.wait, self._interval)
            self._threads.append(threading.Thread(target=relaying.run, name=f"nsq-outbox-{alias}", daemon=True))
            self._threads[-1].start()

    def stopped(self, worker: Any) -> None:
        """Wait for the current batch, at most as long as a publish may take."""
        self._over.set()
        for thread in self._threads:
            thread.join(30.0)
