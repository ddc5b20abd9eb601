"""``manage.py nsq_outbox``: relays the outboxes, for a project that only publishes."""

from __future__ import annotations

import signal
import threading
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from gnsq_lite.contrib.django.outbox import Relay, outbox_databases
from gnsq_lite.contrib.django.publishing import direct_writer
from gnsq_lite.contrib.django.relaying import Relaying, interval
from gnsq_lite.errors import NSQError


class Command(BaseCommand):
    """Runs until SIGTERM or SIGINT; any number of them may run, and beside workers."""

    help = "Publishes what transactions have stored in the outboxes of NSQ['OUTBOX'], until SIGTERM."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        """One flag."""
        parser.add_argument("--once", action="store_true", help="end when they are empty, or with what is in the way")

    def handle(self, *args: Any, **options: Any) -> None:
        """Relay."""
        aliases, now, over = outbox_databases(), direct_writer(), threading.Event()
        if not aliases:
            raise CommandError("NSQ['OUTBOX'] names no database", returncode=2)
        if options["once"]:
            try:
                for relay in [Relay(alias, now) for alias in aliases]:
                    while relay.turn():
                        pass
            except NSQError as error:
                raise CommandError(str(error)) from error
            return
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: over.set())
        turns = [Relaying(alias, Relay(alias, now).turn, over.wait, interval()) for alias in aliases]
        threads = [threading.Thread(target=each.run, name="nsq-outbox") for each in turns]
        for thread in threads:
            thread.start()
        self.stderr.write(f"nsq_outbox: relays {', '.join(aliases)}")
        for thread in threads:
            thread.join()
        now.close()
