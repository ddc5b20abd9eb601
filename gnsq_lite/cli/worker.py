"""``gnsq-lite worker``: run a Worker in supervised processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click

from gnsq_lite.cli.flags import addresses, where
from gnsq_lite.cli.params import Duration
from gnsq_lite.cli.params import command as tool
from gnsq_lite.contrib.prometheus_merge import merge, worker_page
from gnsq_lite.worker.launch import Launch

if TYPE_CHECKING:
    from gnsq_lite.worker import Worker


def _flags(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add a flag for each field of :class:`Launch`."""
    for each in reversed(fields(Launch)):
        data, settings = each.metadata, dict[str, Any]()
        kinds: dict[type, Any] = {int: click.IntRange(data.get("low"), data.get("high")), float: Duration()}
        if data["kind"] is bool:
            settings["is_flag"] = True
        elif "choices" in data:
            settings["type"] = click.Choice(data["choices"])
        else:
            settings["type"] = kinds.get(data["kind"], str)
        default = {"log_format": "text", "log_level": "info"}.get(each.name, each.default)
        name = "--" + each.name.replace("_", "-")
        shown = default not in (None, False, ())
        decorate = click.option(
            name, help=data["help"], default=default, multiple=data["kind"] is list, show_default=shown, **settings
        )
        function = decorate(function)
    return function


@tool("worker", example="worker shop.tasks --processes 4")
@click.argument("target", metavar="MODULE[:WORKER]")
@addresses
@_flags
@click.option("--patch", is_flag=True, help="Monkey-patch with gevent before the module is imported.")
def command(target: str, nsqds: tuple[str, ...], lookupds: tuple[str, ...], patch: bool, **flags: Any) -> int:
    """Run the handlers of the Worker with the name WORKER (default "worker") in MODULE.

    SIGTERM or Ctrl-C drains: the worker takes no new messages, and exits when its running handlers have finished, or
    after --drain-timeout.  A second signal stops at once.  SIGHUP replaces the processes one by one: an old process
    drains when the new one receives messages.  SIGUSR1 pauses all handlers, and SIGUSR2 resumes them.

    Exit codes: 0 drained; 1 an error that no retry can fix; 2 the module or an option is wrong; 3 a second signal or
    the time limit ended handlers.
    """

    def loaded() -> Worker:
        from gnsq_lite.worker import Worker
        from gnsq_lite.worker.loading import load

        worker, given = load(target, Worker, "worker"), where(nsqds, lookupds)
        if any(given.values()):
            worker.configure(**given)
        return worker

    return Launch(**flags).run(loaded, program="gnsq-lite", merge=merge, metrics=worker_page)
