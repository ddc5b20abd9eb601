"""Starts a Worker's processes and their status pages: for ``gnsq-lite worker``, ``manage.py nsq_worker`` and others."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from gnsq_lite.errors import MissingExtra, NSQConnectionError
from gnsq_lite.supervise.exits import Exit
from gnsq_lite.supervise.group import GroupPages, Merge
from gnsq_lite.supervise.orphans import LastResort
from gnsq_lite.supervise.place import Place
from gnsq_lite.supervise.processes import GRACE, Supervisor
from gnsq_lite.supervise.status import Page, StatusServer
from gnsq_lite.supervise.watch import SourceWatch, loaded_sources

#: Seconds between two looks at the sources.
_WATCH_EVERY = 0.5


@dataclass(frozen=True)
class StatusAt:
    """Where status pages are served; port None: nowhere, 0: any free port."""

    host: str = "127.0.0.1"
    port: int | None = None


def supervise(processes: int, status: StatusAt) -> int:
    """Run this very command line in *processes* processes and return the exit code.

    Raises NSQConnectionError: the port for the status pages is taken.
    """
    supervisor = Supervisor((sys.executable, *sys.orig_argv[1:]), processes)
    if status.port is not None:
        pages = GroupPages(lambda: supervisor.children, _merge())
        _serve(StatusServer(pages, (status.host, status.port)), status)
    return supervisor.run()


def run_worker(worker: Any, place: Place | None, *, reload: bool = False, status: StatusAt | None = None) -> int:
    """Run *worker* in this process, at its *place* under a supervisor if it has one, and return the exit code.

    Raises what :meth:`gnsq_lite.Worker.run` raises, and NSQConnectionError where the status port is taken.
    """
    from gnsq_lite.net.native import start_native_thread
    from gnsq_lite.worker import running
    from gnsq_lite.worker.pages import WorkerPages

    status = status or StatusAt()
    pages = WorkerPages(worker, _nothing if status.port is None else _metrics(worker))
    if place is not None:
        place.tell_limit(worker.drain_timeout)
        last_resort = LastResort(place, worker.drain_timeout + GRACE)
        StatusServer(pages, place.socket, start_native_thread, last_resort.look).start()
    elif status.port is not None:
        _serve(StatusServer(pages, (status.host, status.port), start_native_thread), status)
    changes = Changes() if reload else None
    ticks = [changes.look] if changes else []
    if place is not None:
        ticks.append(place.is_orphaned)
    code = running.run(worker, worker.drain_timeout, supervised=place is not None, ticks=ticks)
    return Exit.RELOAD if changes is not None and changes.seen else code


class Changes:
    """Looks at the sources, not too often; says on standard error which one has changed."""

    def __init__(self, files: Iterable[str] = ()) -> None:
        more = set(files)
        self._watch = SourceWatch(lambda: loaded_sources() | more)
        self._next = time.monotonic() + _WATCH_EVERY
        self.seen = False

    def look(self) -> bool:
        """Return whether a source has changed."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _WATCH_EVERY
            changed = self._watch.changed()
            if changed is not None:
                print(f"gnsq-lite: {os.path.relpath(changed)} changed", file=sys.stderr, flush=True)
                self.seen = True
        return self.seen


def wait_for_a_change(place: Place | None, files: Iterable[str]) -> None:
    """Return when a source has changed, or when the supervisor is gone."""
    here = [os.path.abspath(entry.path) for entry in os.scandir() if entry.name.endswith(".py")]
    changes = Changes([*files, *here])
    print("gnsq-lite: waiting for a source to change", file=sys.stderr, flush=True)
    while not changes.look() and not (place is not None and place.is_orphaned()):
        time.sleep(0.1)


def _serve(server: StatusServer, status: StatusAt) -> None:
    try:
        server.start()
    except OSError as error:
        address = f"{status.host}:{status.port}"
        raise NSQConnectionError(address, f"no status pages: {error.strerror or error}") from error
    print(f"status: http://{status.host}:{server.port}/metrics /healthz /readyz", file=sys.stderr, flush=True)


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
    """Return what makes /metrics say what is not installed; the other pages work without it."""

    def refuse(*pages: Any) -> Page:
        raise missing

    return refuse


def _nothing() -> Page:
    return "text/plain; charset=utf-8", b""
