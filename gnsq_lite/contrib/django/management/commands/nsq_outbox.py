"""``manage.py nsq_outbox`` relays the outboxes, for a project that only publishes."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils.module_loading import autodiscover_modules

from gnsq_lite.contrib.django.outbox import interval, outbox_databases, source
from gnsq_lite.contrib.django.publishing import direct_writer
from gnsq_lite.contrib.relay import relay_all
from gnsq_lite.errors import NSQError


class Command(BaseCommand):
    """Relays until SIGTERM or SIGINT.  Several such processes and several workers may run at the same time."""

    help = "Publishes the messages in the outboxes of the databases NSQ['OUTBOX'], until SIGTERM or SIGINT."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the flag --once."""
        parser.add_argument("--once", action="store_true", help="exit when no message is due, or after an error")

    def handle(self, *args: Any, **options: Any) -> None:
        """Relay the outboxes.  With --once, exit with an error if nsqd is unreachable."""
        aliases, writer = outbox_databases(), direct_writer()
        if not aliases:
            raise CommandError("NSQ['OUTBOX'] names no database", returncode=2)
        autodiscover_modules("nsq")  # they declare the schedules
        if not options["once"]:
            self.stderr.write(f"nsq_outbox: relaying {', '.join(aliases)}")
        try:
            relay_all([source(alias) for alias in aliases], writer, interval(), once=options["once"])
        except NSQError as error:
            raise CommandError(str(error)) from error
        writer.close()
