"""``gnsq-lite worker``: runs a Worker in supervised processes."""

from __future__ import annotations

from typing import Any

import click

from gnsq_lite.cli.flags import addresses, where
from gnsq_lite.cli.params import Duration
from gnsq_lite.cli.params import command as tool
from gnsq_lite.contrib.launching import StatusAt, run_worker, supervise, wait_for_a_change
from gnsq_lite.errors import NSQError
from gnsq_lite.supervise import logs
from gnsq_lite.supervise.exit_codes import ExitCode
from gnsq_lite.supervise.report_files import Slot, take_slot


@tool("worker", example="worker shop.tasks --processes 4")
@click.argument("target", metavar="MODULE[:WORKER]")
@click.option("--processes", type=click.IntRange(1, 1024), default=1, show_default=True)
@click.option("--concurrency", type=click.IntRange(1), help="Default concurrency of a handler.")
@click.option("--topic", "topics", multiple=True, help="Run only the handlers of this topic; may be repeated.")
@addresses
@click.option("--reload", is_flag=True, help="Restart when a source changes; for development.")
@click.option("--metrics-port", type=click.IntRange(0, 65535), help="Serve a live page and /metrics; 0: any port.")
@click.option("--metrics-host", default="127.0.0.1", show_default=True, help="Address to serve them at; 0.0.0.0: all.")
@click.option("--allow-host", "names", multiple=True, help="Serve the live page under this name too; may be repeated.")
@click.option("--allow-control", is_flag=True, help="Allow pause and drain with the token in GNSQ_LITE_CONTROL_TOKEN.")
@click.option("--drain-timeout", type=Duration(), help="Time handlers have to finish.  [default: the Worker's, 30]")
@click.option("--hang-timeout", type=Duration(), help="Kill a process whose I/O loop stands still so long; 0: never.")
@click.option("--max-messages", type=click.IntRange(1), help="Replace a process that has handled so many messages.")
@click.option("--max-memory", type=click.IntRange(1), help="Replace a process that uses so many MiB.")
@click.option("--no-schedules", is_flag=True, help="Publish no scheduled messages; for all machines but one.")
@click.option("--pidfile", type=click.Path(dir_okay=False), help="Keep the supervisor's process id in this file.")
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True
)
@click.option("--patch", is_flag=True, help="Monkey-patch with gevent before the module is imported.")
@click.option("--no-supervise", is_flag=True, help="Run in this process, for a debugger; an error ends it.")
def command(target: str, **flags: Any) -> int:
    """Run the handlers of a Worker: MODULE is imported, WORKER is its name there ("worker").

    SIGTERM or Ctrl-C drains: no new messages, running handlers finish.  A second one ends it at once.  SIGHUP replaces
    the processes one by one: a new one is ready before the old one drains.

    Exit codes: 0 drained; 1 an error that no retry can mend; 2 the module or an option is wrong; 3 not drained: a
    second signal or the time limit cut handlers short, and their messages went back to nsqd.
    """
    for name in ("reload", "max_messages", "max_memory", "pidfile"):
        if flags[name] and flags["no_supervise"]:
            flag = "--" + name.replace("_", "-")
            raise click.UsageError(f"{flag} needs the supervisor; leave --no-supervise out")
    slot = take_slot()
    logs.configure(flags["log_format"], flags["log_level"], str(slot.number) if slot else "main")
    if slot is None and not flags["no_supervise"]:
        status = _status(flags)
        return supervise(flags["processes"], status, reload=flags["reload"], pid_path=flags["pidfile"])
    return _work(target, slot, flags)


def _work(target: str, slot: Slot | None, flags: dict[str, Any]) -> int:
    from gnsq_lite.worker.loading import LoadError, load

    try:
        worker = load(target)
        _configure(worker, flags)
    except NSQError as error:
        click.echo(f"gnsq-lite: {error}", err=True)
        if not flags["reload"]:
            return ExitCode.USAGE
        wait_for_a_change(slot, error.files if isinstance(error, LoadError) else ())
        return ExitCode.RELOAD
    status = _status(flags)
    wear = {name: flags[name] for name in ("max_messages", "max_memory", "processes")}
    return run_worker(worker, slot, reload=flags["reload"], status=status, **wear)


def _status(flags: dict[str, Any]) -> StatusAt:
    return StatusAt(flags["metrics_host"], flags["metrics_port"], flags["names"], flags["allow_control"])


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
    if flags["hang_timeout"] is not None:
        worker.hang_timeout = flags["hang_timeout"]
    if flags["no_schedules"]:
        worker.schedules.clear()
    worker.check()
