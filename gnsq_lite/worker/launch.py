"""Runs a Worker from a command line, for ``gnsq-lite worker`` and ``manage.py nsq_worker``."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from gnsq_lite.errors import NSQConnectionError, NSQError, OptionError
from gnsq_lite.supervise import logs
from gnsq_lite.supervise.election import Election
from gnsq_lite.supervise.exit_codes import ExitCode
from gnsq_lite.supervise.group import GroupPages, Merge
from gnsq_lite.supervise.notify import Notifier
from gnsq_lite.supervise.processes import READY_TIMEOUT, Supervisor
from gnsq_lite.supervise.slots import Slot, take_slot
from gnsq_lite.supervise.status import Page, StatusServer
from gnsq_lite.supervise.watch import SourceWatch, loaded_sources

if TYPE_CHECKING:
    from gnsq_lite.worker.app import Worker

#: Function that returns the renderer of /metrics.  Its arguments are the Worker, and a function that returns depths, or
#: None.
Metrics = Callable[["Worker", Callable[..., Any] | None], Callable[[], Page]]

#: Seconds between two checks of the sources.
_WATCH_EVERY = 0.5


def _flag(kind: type, help: str, default: Any = None, **limits: Any) -> Any:
    return field(default=default, metadata={"kind": kind, "help": help, **limits})


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Flags of the two commands that run a Worker.  A field's metadata has the type, limits and help of the flag."""

    processes: int = _flag(int, "Number of processes.", 1, low=1, high=1024)
    concurrency: int | None = _flag(int, "Default concurrency of a handler.", low=1)
    topic: Sequence[str] = _flag(list, "Run only the handlers of this topic; repeatable.", ())
    reload: bool = _flag(bool, "Restart when a source file changes; for development.", False)
    metrics_port: int | None = _flag(int, "Port of the live page and /metrics; 0 picks a free port.", low=0, high=65535)
    metrics_host: str = _flag(str, "Listening address of the pages; 0.0.0.0 for all interfaces.", "127.0.0.1")
    metrics_depth: bool = _flag(bool, "Add the depths of channels to /metrics, polled from each nsqd.", False)
    drain_timeout: float | None = _flag(float, "Seconds for running handlers to finish; the Worker's default is 30.")
    hang_timeout: float | None = _flag(
        float, "Kill a process whose I/O loop has not run for this many seconds; 0 disables this."
    )
    max_messages: int | None = _flag(int, "Replace a process after this many messages.", low=1)
    max_memory: int | None = _flag(int, "Replace a process that uses this many MiB.", low=1)
    no_schedules: bool = _flag(bool, "Publish no scheduled messages; set this on all machines but one.", False)
    log_format: Literal["text", "json"] | None = _flag(str, "Format of log lines.", choices=("text", "json"))
    log_level: str | None = _flag(str, "Minimum level to log.", choices=("debug", "info", "warning", "error"))
    no_supervise: bool = _flag(bool, "Run without a supervisor, for a debugger.", False)

    def run(
        self,
        load: Callable[[], Worker],
        *,
        program: str,
        merge: Merge,
        metrics: Metrics,
    ) -> int:
        """Run the supervisor, or the Worker in a supervised process, and return the exit code.

        Args:
            load: Function that returns the Worker.  If it raises NSQError with ``reload``, wait for a source change.
            program: Name of the command in error messages.
            merge: Function that merges the metrics pages of several processes.
            metrics: Function that returns the renderer of the metrics page.
        Raises:
            OptionError: flags contradict each other.
            NSQConnectionError: the status pages cannot be served, for example because the port is in use.
            NSQError: the errors of :meth:`gnsq_lite.Worker.run`.
        """
        if self.metrics_depth and self.metrics_port is None:
            raise OptionError("metrics_depth", True, "needs --metrics-port")
        for name in ("reload", "max_messages", "max_memory"):
            if getattr(self, name) and self.no_supervise:
                raise OptionError(name, getattr(self, name), "needs the supervisor; omit --no-supervise")
        slot = take_slot()
        log_format = self.log_format
        if log_format is None and not logging.getLogger("gnsq_lite").hasHandlers():
            log_format = "text"  # without a logging configuration a worker would print no log lines
        if log_format is not None:
            logs.configure(log_format, self.log_level or "info", str(slot.number) if slot else "main")
        elif self.log_level is not None:  # the program's configuration writes the records
            logging.getLogger("gnsq_lite").setLevel(self.log_level.upper())
        if slot is None and not self.no_supervise:
            return self._supervise(merge)
        try:
            worker = load()
            self._configure(worker)
        except NSQError as error:
            print(f"{program}: {error}", file=sys.stderr)
            if not self.reload:
                return ExitCode.USAGE
            _wait_for_a_change(slot, getattr(error, "files", ()))
            return ExitCode.RELOAD
        return self._work(worker, slot, metrics)

    def _supervise(self, merge: Merge) -> int:
        """Run this command line in supervised processes."""
        command = (sys.executable, *sys.orig_argv[1:])
        # With --reload a new process may wait without limit until an error in its sources is fixed.
        timeout = float("inf") if self.reload else READY_TIMEOUT
        try:
            supervisor = Supervisor(command, self.processes, ready_timeout=timeout, notifier=Notifier())
        except OSError as error:
            why = (
                f"no temporary directory is writable; set TMPDIR to one, in Kubernetes to an emptyDir volume ({error})"
            )
            raise OptionError("TMPDIR", os.environ.get("TMPDIR"), why) from error
        if self.metrics_port is not None:
            pages = GroupPages(supervisor, merge)
            self._serve(StatusServer(pages, (self.metrics_host, self.metrics_port)))
            pages.start_history()
        return supervisor.run()

    def _configure(self, worker: Worker) -> None:
        if self.topic:
            worker.select(self.topic)
        if self.concurrency is not None:
            worker.configure(concurrency=self.concurrency)
        if self.drain_timeout is not None:
            worker.drain_timeout = self.drain_timeout
        if self.hang_timeout is not None:
            worker.hang_timeout = self.hang_timeout
        if self.no_schedules:
            worker.no_schedules = True
        worker.check()

    def _work(self, worker: Worker, slot: Slot | None, metrics: Metrics) -> int:
        """Run *worker* in this process.  *slot* is None if no supervisor started the process."""
        from gnsq_lite.net.os_threads import start_hub_thread
        from gnsq_lite.worker.depths import depths_of
        from gnsq_lite.worker.hung import HungCalls
        from gnsq_lite.worker.live import LastErrors, WorkerPages
        from gnsq_lite.worker.specs import ProcessSettings
        from gnsq_lite.worker.supervised import TIMEOUT, Supervised

        errors, depths = LastErrors(), depths_of(worker)
        checks: list[Callable[[], object]] = [HungCalls(worker, depths, TIMEOUT).check]
        page: Callable[[], Page] = lambda: ("text/plain; charset=utf-8", b"")  # noqa: E731
        if self.metrics_port is not None:
            page = metrics(worker, depths if self.metrics_depth else None)
            worker.middleware.insert(0, errors)
        pages = WorkerPages(worker, page, errors, depths)
        process: ProcessSettings | None = None
        if slot is not None:
            supervised = Supervised(worker, slot, self.max_messages, self.max_memory)
            worker.middleware.insert(0, supervised)
            election = Election(os.path.join(os.path.dirname(slot.socket), "schedules"))
            process = ProcessSettings(self.processes, election, supervised.known_of, supervised.is_paused)
            StatusServer(pages, slot.socket, start_hub_thread).start()
            checks.append(supervised.check)
            if self.reload:
                watch = SourceWatch()
                checks.append(lambda: supervised.source_changed() if _has_changed(watch) else None)
        elif self.metrics_port is not None:
            self._serve(StatusServer(pages, (self.metrics_host, self.metrics_port), start_hub_thread))
        return worker.run(process=process, checks=checks)

    def _serve(self, server: StatusServer) -> None:
        try:
            server.start()
        except OSError as error:
            address = f"{self.metrics_host}:{self.metrics_port}"
            raise NSQConnectionError(address, f"cannot serve the status pages: {error.strerror or error}") from error
        where = f"http://{self.metrics_host}:{server.port}/"
        print(f"live page: {where}  (also {where}metrics, {where}healthz, {where}readyz)", file=sys.stderr, flush=True)


def _has_changed(watch: SourceWatch) -> bool:
    """Return whether a source file has changed since the last call, and print the file's name."""
    changed = watch.changed()
    if changed is not None:
        print(f"gnsq-lite: {os.path.relpath(changed)} changed", file=sys.stderr, flush=True)
    return changed is not None


def _wait_for_a_change(slot: Slot | None, files: Iterable[str]) -> None:
    """Wait until a source file has changed or the supervisor has ended."""
    more = {*files, *(os.path.abspath(entry.path) for entry in os.scandir() if entry.name.endswith(".py"))}
    watch = SourceWatch(lambda: loaded_sources() | more)
    print("gnsq-lite: waiting for a source to change", file=sys.stderr, flush=True)
    while not _has_changed(watch) and not (slot is not None and slot.is_orphaned()):
        time.sleep(_WATCH_EVERY)
