"""Starts a Worker's processes and status pages, for ``gnsq-lite worker``, ``manage.py nsq_worker`` and others."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gnsq_lite.errors import MissingExtra, NSQConnectionError, OptionError
from gnsq_lite.supervise.access import Access, access
from gnsq_lite.supervise.election import ByLock
from gnsq_lite.supervise.folders import pidfile
from gnsq_lite.supervise.group import GroupPages, Merge
from gnsq_lite.supervise.notify import Notifier
from gnsq_lite.supervise.orphans import LastResort
from gnsq_lite.supervise.processes import GRACE, READY_TIMEOUT, Supervisor
from gnsq_lite.supervise.report_files import Report, Slot
from gnsq_lite.supervise.shared_memory import Pulse, Runs
from gnsq_lite.supervise.status import Page, StatusServer
from gnsq_lite.supervise.watch import SourceWatch, loaded_sources

#: The environment variable with the token that the live page asks for before it acts.
TOKEN = "GNSQ_LITE_CONTROL_TOKEN"

#: Seconds between two checks of the sources.
_WATCH_EVERY = 0.5


@dataclass(frozen=True)
class StatusAt:
    """Where and how status pages are served; with port None they are not, 0 is any free port."""

    host: str = "127.0.0.1"
    port: int | None = None
    #: Host names that the live page answers to, besides addresses, localhost and *host*.
    names: Sequence[str] = ()
    #: Whether a client with the token may pause, resume and drain.
    control: bool = False

    def access(self) -> Access:
        """Return the access rules; without a token in the environment, one is made and printed.

        Raises OptionError for a token that is too short, or that no header can hold.
        """
        if not self.control:
            return access(self.host, self.names, None)
        token = os.environ.get(TOKEN) or ""
        if not token:
            token = secrets.token_urlsafe(24)
            print(f"control token ({TOKEN} is not set): {token}", file=sys.stderr, flush=True)
        if len(token) < 16 or not token.isascii() or not token.isprintable() or " " in token:
            raise OptionError("allow_control", True, f"{TOKEN} must be at least 16 ASCII characters without spaces")
        return access(self.host, self.names, token)


def supervise(processes: int, status: StatusAt, *, reload: bool = False, pid_path: str | None = None) -> int:
    """Run this very command line in *processes* processes and return the exit code.

    Args:
        reload: A new process may wait without limit until an error in its sources is fixed.
        pid_path: A file for the id of this process.
    Raises:
        NSQConnectionError: the status port is taken.
        OptionError: the file cannot be written, or another supervisor holds it.
    """
    notifier = Notifier()
    timeout = float("inf") if reload else READY_TIMEOUT
    command = (sys.executable, *sys.orig_argv[1:])
    with pidfile(pid_path):
        supervisor = Supervisor(command, processes, ready_timeout=timeout, notifier=notifier)
        if status.port is not None:
            pages = GroupPages(supervisor, _merge())
            _serve(StatusServer(pages, (status.host, status.port), access=status.access()), status)
        return supervisor.run()


def run_worker(
    worker: Any,
    slot: Slot | None,
    *,
    reload: bool = False,
    status: StatusAt | None = None,
    max_messages: int | None = None,
    max_memory: int | None = None,
    processes: int = 1,
) -> int:
    """Run *worker* in this process, at its *slot* under a supervisor of *processes*, and return the exit code.

    The supervisor replaces it after about *max_messages*, and when it uses *max_memory* MiB.  Raises what
    :meth:`gnsq_lite.Worker.run` raises, and NSQConnectionError where the status port is taken.
    """
    from gnsq_lite.net.os_threads import start_hub_thread
    from gnsq_lite.worker import running
    from gnsq_lite.worker.depths import Depths
    from gnsq_lite.worker.live import LastErrors, Live
    from gnsq_lite.worker.reports import Reports, Wear
    from gnsq_lite.worker.status_pages import WorkerPages
    from gnsq_lite.worker.supervised import Supervised

    status = status or StatusAt()
    if slot is not None:
        worker.paused = slot.paused()
    errors = LastErrors()
    live = Live(worker, errors, Depths(worker).look)
    pages = WorkerPages(worker, _nothing if status.port is None else _metrics(worker), live)
    ticks: list[Callable[[], object]] = []
    if status.port is not None:
        worker.middleware.insert(0, errors)
        if slot is not None:
            ticks.append(lambda: live.pause(slot.paused()))  # first: the others may wait for the I/O loop
        ticks.append(live.look)
    if slot is not None:
        worker.processes = processes
        supervised = Supervised(worker, Pulse(slot.socket), Runs(os.path.dirname(slot.socket)))
        worker.middleware.insert(0, supervised)
        worker.known_of = supervised.known_of
        worker.election = ByLock(os.path.join(os.path.dirname(slot.socket), "schedules"))
        slot.report(Report.LIMIT, repr(float(worker.drain_timeout)))
        last_resort = LastResort(slot, worker.drain_timeout + GRACE)
        StatusServer(pages, slot.socket, start_hub_thread, last_resort.look).start()
        ticks += [slot.is_orphaned, Reports(worker, slot, Wear(max_messages, max_memory)).look]
        if reload:
            changes = Changes()
            ticks.append(lambda: slot.report(Report.CHANGED, "") if changes.look() else None)
    elif status.port is not None:
        server = StatusServer(pages, (status.host, status.port), start_hub_thread, access=status.access())
        _serve(server, status)
    return running.run(worker, worker.drain_timeout, supervised=slot is not None, ticks=ticks)


class Changes:
    """Watches the sources, at most twice a second; prints which one has changed on standard error."""

    def __init__(self, files: Iterable[str] = ()) -> None:
        more = set(files)
        self._files = lambda: loaded_sources() | more
        self._watch = SourceWatch(self._files)
        self._next = time.monotonic() + _WATCH_EVERY

    def look(self) -> bool:
        """Return whether a source has changed since the last call."""
        if time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + _WATCH_EVERY
        changed = self._watch.changed()
        if changed is None:
            return False
        print(f"gnsq-lite: {os.path.relpath(changed)} changed", file=sys.stderr, flush=True)
        self._watch = SourceWatch(self._files)
        return True


def wait_for_a_change(slot: Slot | None, files: Iterable[str]) -> None:
    """Return when a source has changed, or when the supervisor is gone."""
    here = [os.path.abspath(entry.path) for entry in os.scandir() if entry.name.endswith(".py")]
    changes = Changes([*files, *here])
    print("gnsq-lite: waiting for a source to change", file=sys.stderr, flush=True)
    while not changes.look() and not (slot is not None and slot.is_orphaned()):
        time.sleep(0.1)


def _serve(server: StatusServer, status: StatusAt) -> None:
    try:
        server.start()
    except OSError as error:
        address = f"{status.host}:{status.port}"
        raise NSQConnectionError(address, f"cannot serve the status pages: {error.strerror or error}") from error
    where = f"http://{status.host}:{server.port}/"
    print(f"status: {where}metrics /healthz /readyz; live: {where}", file=sys.stderr, flush=True)


def _merge() -> Merge:
    try:
        from gnsq_lite.contrib.prometheus_merge import merge
    except MissingExtra as missing:
        return _refusing(missing)
    return merge


def _metrics(worker: Any) -> Callable[[], Page]:
    try:
        from gnsq_lite.contrib import prometheus
    except MissingExtra as missing:
        return _refusing(missing)
    prometheus.show(worker)
    if not any(isinstance(each, prometheus.HandlerSeconds) for each in worker.middleware):
        worker.middleware.insert(0, prometheus.HandlerSeconds())
    return prometheus.page


def _refusing(missing: MissingExtra) -> Callable[..., Page]:
    """Return a page that raises *missing*: /metrics then names the missing package, and other pages work."""

    def refuse(*pages: Any) -> Page:
        raise missing

    return refuse


def _nothing() -> Page:
    return "text/plain; charset=utf-8", b""
