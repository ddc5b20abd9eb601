"""``manage.py nsq_worker`` runs the handlers of all apps in supervised processes."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError

from gnsq_lite.contrib.django.registry import check_tables, make_worker
from gnsq_lite.contrib.prometheus_merge import merge, worker_page
from gnsq_lite.errors import InvalidName, NSQError, OptionError
from gnsq_lite.supervise.exit_codes import ExitCode
from gnsq_lite.worker import Worker
from gnsq_lite.worker.launch import Launch
from gnsq_lite.worker.loading import LoadError, explained


class Command(BaseCommand):
    """``gnsq-lite worker`` without its flags for addresses and --patch.  Without --log-format, LOGGING applies."""

    help = "Runs the handlers in the apps' nsq.py (gnsq_lite.contrib.django.handler) until SIGTERM."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add a flag for each field of Launch."""
        for each in fields(Launch):
            data, settings = each.metadata, dict[str, Any](help=each.metadata["help"], default=each.default)
            if data["kind"] is bool:
                settings["action"] = "store_true"
            elif data["kind"] is list:
                settings |= {"action": "append", "default": []}
            else:
                settings |= {"choices": data.get("choices"), "type": _number(data) if "low" in data else data["kind"]}
            parser.add_argument("--" + each.name.replace("_", "-"), **settings)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the worker, and exit with its exit code."""
        launch = Launch(**{each.name: options[each.name] for each in fields(Launch)})
        try:
            code = launch.run(_load, program="nsq_worker", merge=merge, metrics=worker_page)
        except NSQError as error:
            code = ExitCode.USAGE if isinstance(error, OptionError) else ExitCode.FAILED
            raise CommandError(str(error), returncode=code) from error
        sys.exit(code)


def _load() -> Worker:
    try:
        worker = make_worker()
        check_tables(worker)
        return worker
    except (OptionError, InvalidName, ImproperlyConfigured) as error:
        raise LoadError(str(error)) from error
    except (Exception, SystemExit) as error:
        raise explained("the apps' nsq.py", error) from None


def _number(data: Any) -> Callable[[str], int]:
    low, high = data["low"], data.get("high")

    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < low or (high is not None and int(text) > high):
            limits = f"of at least {low}" if high is None else f"from {low} to {high}"
            raise ArgumentTypeError(f"must be a number {limits}")
        return int(text)

    return number
