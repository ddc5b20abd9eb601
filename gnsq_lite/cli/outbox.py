"""``gnsq-lite outbox relay``: publishes what transactions stored in an outbox."""

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
    """Publish what transactions stored in an outbox."""


@command.command("relay", cls=Command, example="outbox relay shop.db:outbox --nsqd-tcp-address 127.0.0.1:4150")
@click.argument("target", metavar="MODULE[:OUTBOX]")
@flags.addresses
@click.option("--once", is_flag=True, help="End when nothing is left, or with the error that is in the way.")
@click.option("--interval", type=Duration(low=0.01, high=3600.0), default=INTERVAL, help="Time between two looks.")
@flags.security
def relay(
    target: str, nsqds: tuple[str, ...], lookupds: tuple[str, ...], once: bool, interval: float, **options: Any
) -> None:
    """Publish what is committed until SIGTERM or Ctrl-C: MODULE is imported, OUTBOX is its name there ("outbox").

    Any number of relays may run, and beside workers that relay: one relays at a time.
    """
    outbox = load(target, Outbox, "outbox")
    logs.configure("text", "info", "main")
    with Writer(**flags.where(nsqds, lookupds), **flags.secured(options)) as writer:
        relay_all([outbox.source()], writer, interval, once=once)
