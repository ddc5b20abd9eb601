"""``gnsq-lite outbox``: publish the messages that transactions stored in an outbox, and list its schedules."""

from __future__ import annotations

import json
from contextlib import closing
from datetime import datetime, timezone
from typing import Any

import click

from gnsq_lite import Writer
from gnsq_lite.cli import flags
from gnsq_lite.cli.output import echo, visible
from gnsq_lite.cli.params import Command, Duration
from gnsq_lite.contrib.outbox import Outbox
from gnsq_lite.contrib.outbox_schedules import next_due
from gnsq_lite.contrib.relay import INTERVAL, relay_all
from gnsq_lite.supervise import logs
from gnsq_lite.worker.loading import load


@click.group()
def command() -> None:
    """Publish the messages that transactions stored in an outbox, and list its schedules."""


@command.command("relay", cls=Command, example="outbox relay shop.db:outbox --nsqd-tcp-address 127.0.0.1:4150")
@click.argument("target", metavar="MODULE[:OUTBOX]")
@flags.addresses
@click.option("--once", is_flag=True, help="Exit when no message is due, or nsqd or the database fails.")
@click.option("--interval", type=Duration(low=0.01, high=3600.0), default=INTERVAL, help="Time between polls.")
@flags.security
def relay(
    target: str, nsqds: tuple[str, ...], lookupds: tuple[str, ...], once: bool, interval: float, **options: Any
) -> None:
    """Publish committed messages until SIGTERM or Ctrl-C, or the end given by --once.

    OUTBOX is the name of the Outbox in MODULE (default "outbox").  Several relays may run at the same time, also in
    workers: a lock lets one relay publish at a time.
    """
    source = load(target, Outbox, "outbox").source()
    logs.configure("text", "info", "main")
    with closing(source), Writer(**flags.where(nsqds, lookupds), **flags.secured(options)) as writer:
        relay_all([source], writer, interval, once=once)


@command.command("schedules", cls=Command, example="outbox schedules shop.db:outbox")
@click.argument("target", metavar="MODULE[:OUTBOX]")
@click.option("--remove", "removed", multiple=True, metavar="NAME", help="Remove a schedule that is not declared.")
@flags.as_json
def schedules(target: str, removed: tuple[str, ...], as_json: bool) -> int:
    """List the schedules of an outbox with their last and next due times, in UTC.

    A schedule that MODULE does not declare any more has no next due time.  Remove it when no program of an earlier
    version runs, or that program adds it again.
    """
    outbox = load(target, Outbox, "outbox")
    declared = {each.name for each in outbox.schedules}
    source = outbox.source()
    try:
        with source.begin() as table:
            _, last = table.schedules().read()
            for name in removed:
                if name in declared or name not in last:
                    why = "is declared by the module" if name in declared else "is no schedule of this outbox"
                    raise click.BadParameter(f"{name!r} {why}", param_hint="--remove")
            for name in removed:
                table.schedules().remove(name)
                del last[name]
    finally:
        source.close()
    listed = next_due(outbox.schedules, last)
    if as_json:
        echo(json.dumps([{"name": name, "last": at or None, "next": due or None} for name, at, due in listed]))
        return 0
    for name, at, due in listed:
        when = "not declared" if name not in declared else f"next {_utc(due)}" if due else "no relay has run yet"
        echo(visible(f"{name}  last {_utc(at)}  {when}"))
    return 0


def _utc(when: float) -> str:
    return datetime.fromtimestamp(when, timezone.utc).strftime("%Y-%m-%d %H:%M:%S") if when else "never"
