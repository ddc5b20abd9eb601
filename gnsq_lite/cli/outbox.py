"""``gnsq-lite outbox relay``: publish the messages that transactions stored in an outbox."""

from __future__ import annotations

from typing import Any

import click

from gnsq_lite import Writer
from gnsq_lite.cli import flags
from gnsq_lite.cli.params import Command, Duration
from gnsq_lite.contrib.outbox import Outbox
from gnsq_lite.contrib.relay import INTERVAL, relay_all
from gnsq_lite.supervise import logs
from gnsq_lite.worker.loading import load


@click.group()
def command() -> None:
    """Publish the messages that transactions stored in an outbox."""


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
    outbox = load(target, Outbox, "outbox")
    logs.configure("text", "info", "main")
    with Writer(**flags.where(nsqds, lookupds), **flags.secured(options)) as writer:
        relay_all([outbox.source()], writer, interval, once=once)
