"""``gnsq-lite worker``: runs a Worker in supervised processes."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import click

from gnsq_lite.cli.flags import addresses, where
from gnsq_lite.errors import MissingExtra, NSQError
from gnsq_lite.supervise import logs
from gnsq_lite.supervise.exits import Exit
from gnsq_lite.supervise.group import GroupPages, Merge
from gnsq_lite.supervise.place import Place, take_place
from gnsq_lite.supervise.processes import Supervisor
from gnsq_lite.supervise.status import Page, StatusServer
from gnsq_lite.supervise.watch import SourceWatch, loaded_sources

#: Seconds between two looks at the sources.
_WATCH_EVERY = 0.5


@click.command("worker")
@click.argument("target", metavar="MODULE[:WORKER]")
@click.option("--processes", type=click.IntRange(1, 1024), default=1, show_default=True)
@click.option("--concurrency", type=click.IntRange(1), help="Handlers at once, for each that does not say itself.")
@click.option("--topic", "topics", multiple=True, help="Run only the handlers of this topic; may be repeated.")
@addresses
@click.option("--reload", is_flag=True, help="Start anew when a source changes; for development.")
@click.option("--metrics-port", type=click.IntRange(0, 65535), help="Serve /metrics /healthz /readyz; 0: any port.")
@click.option("--metrics-host", default="127.0.0.1", show_default=True, help="Address for them; 0.0.0.0: every one.")
@click.option("--drain-timeout", type=click.FloatRange(0.0), help="Seconds handlers have to finish.  [default: 30]")
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True
)
@click.option("--patch", is_flag=True, help="Monkey-patch with gevent before the module is imported.")
@click.option("--no-supervise", is_flag=True, help="Run in this process, as a debugger wants it; ends when it fails.")
def command(target: str, **flags: Any) -> int:
    """Run the handlers of a Worker: MODULE is imported, WORKER is its name there ("worker").

    SIGTERM or Ctrl-C drains: no new messages, running handlers finish.  A second one ends it at once.  SIGHUP starts
    every process anew.

    Exit codes: 0 drained; 1 an error that no retry can mend; 2 the module or an option is wrong; 3 not drained: a
    second signal or the time limit cut handlers short, and their messages went back to nsqd.
    """
    place = take_place()
    logs.configure(flags["log_format"], flags["log_level"], str(place.number) if place else "main")
    if place is None and not flags["no_supervise"]:
        return supervise(
            flags["processes"], flags["drain_timeout"], metrics=(flags["metrics_host"], flags["metrics_port"])
        )
    return _work(target, place, flags)


def supervise(processes: int, drain_timeout: float | None, metrics: tuple[str, int | None]) -> int:
    """Run this very command line in *processes* processes and return the exit code."""
    limit = 30.0 if drain_timeout is None else drain_timeout
    supervisor = Supervisor((sys.executable, *sys.orig_argv[1:]), processes, limit)
    host, port = metrics
    if port is not None:
        _serve(StatusServer(GroupPages(lambda: supervisor.children, _merge()), (host, port)), host)
    return supervisor.run()


def _serve(server: StatusServer, host: str) -> None:
    try:
        server.start()
    except OSError as error:
        raise click.ClickException(f"--metrics-port: {host}: {error.strerror or error}") from None
    click.echo(f"metrics: http://{host}:{server.port}/metrics /healthz /readyz", err=True)


def _merge() -> Merge:
    try:
        from gnsq_lite.contrib.prometheus_merge import merge
    except MissingExtra as missing:
        why = missing

        def refuse(pages: Any) -> Page:
            raise why

        return refuse
    return merge


def _work(target: str, place: Place | None, flags: dict[str, Any]) -> int:
    from gnsq_lite.worker.loading import LoadError, load

    try:
        worker = load(target)
        _configure(worker, flags)
    except NSQError as error:
        click.echo(f"gnsq-lite: {error}", err=True)
        if not flags["reload"]:
            return Exit.USAGE
        _wait_for_a_change(place, error.files if isinstance(error, LoadError) else ())
        return Exit.RELOAD
    return run_worker(worker, place, reload=flags["reload"], metrics=(flags["metrics_host"], flags["metrics_port"]))


def _configure(worker: Any, flags: dict[str, Any]) -> None:
    given = {"concurrency": flags["concurrency"], **where(flags["nsqds"], flags["lookupds"])}
    if given["nsqd_tcp_addresses"] or given["lookupd_http_addresses"]:
        worker.configure(**{name: given[name] for name in ("nsqd_tcp_addresses", "lookupd_http_addresses")})
    if given["concurrency"] is not None:
        worker.configure(concurrency=given["concurrency"])
    if flags["topics"]:
        worker.select(flags["topics"])
    if flags["drain_timeout"] is not None:
        worker.drain_timeout = flags["drain_timeout"]
    worker.check()


def run_worker(
    worker: Any, place: Place | None, *, reload: bool = False, metrics: tuple[str, int | None] = ("127.0.0.1", None)
) -> int:
    """Run *worker* in this process, at its *place* under a supervisor if it has one, and return the exit code."""
    from gnsq_lite.net.runtime import start_native_thread
    from gnsq_lite.worker import running
    from gnsq_lite.worker.pages import WorkerPages

    host, port = metrics
    is_asked = port is not None
    pages = WorkerPages(worker, _metrics(worker) if is_asked else _nothing)
    if place is not None:
        StatusServer(pages, place.socket, start_native_thread).start()
    elif port is not None:
        _serve(StatusServer(pages, (host, port), start_native_thread), host)
    changes = _Changes() if reload else None
    ticks = [changes.look] if changes else []
    if place is not None:
        ticks.append(place.is_orphaned)
    code = running.run(worker, worker.drain_timeout, supervised=place is not None, ticks=ticks)
    return Exit.RELOAD if changes is not None and changes.seen else code


class _Changes:
    def __init__(self, files: tuple[str, ...] = ()) -> None:
        self._watch = SourceWatch(lambda: loaded_sources() | set(files))
        self._next = time.monotonic() + _WATCH_EVERY
        self.seen = False

    def look(self) -> bool:
        """Return whether a source has changed."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _WATCH_EVERY
            changed = self._watch.changed()
            if changed is not None:
                click.echo(f"gnsq-lite: {os.path.relpath(changed)} changed", err=True)
                self.seen = True
        return self.seen


def _wait_for_a_change(place: Place | None, files: tuple[str, ...]) -> None:
    here = [entry.path for entry in os.scandir() if entry.name.endswith(".py")]
    changes = _Changes((*files, *map(os.path.abspath, here)))
    click.echo("gnsq-lite: waiting for a source to change", err=True)
    while not changes.look() and not (place is not None and place.is_orphaned()):
        time.sleep(0.1)


def _metrics(worker: Any) -> Any:
    try:
        from gnsq_lite.contrib import prometheus
    except MissingExtra as missing:
        why = missing

        def refuse() -> Page:
            raise why

        return refuse
    prometheus.REGISTRY.register(prometheus.Collector(worker))
    if not any(isinstance(each, prometheus.HandlerSeconds) for each in worker.middleware):
        worker.middleware.insert(0, prometheus.HandlerSeconds())
    return prometheus.page


def _nothing() -> Page:
    return "text/plain; charset=utf-8", b""
