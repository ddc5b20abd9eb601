"""``manage.py nsq_worker``: runs the handlers of all apps, in supervised processes."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, ArgumentTypeError
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError

from gnsq_lite.contrib.django.registry import make_worker
from gnsq_lite.contrib.launching import TOKEN, StatusAt, run_worker, supervise, wait_for_a_change
from gnsq_lite.errors import InvalidName, NSQError, OptionError
from gnsq_lite.supervise import logs
from gnsq_lite.supervise.exit_codes import ExitCode
from gnsq_lite.supervise.report_files import Slot, take_slot
from gnsq_lite.worker import Worker
from gnsq_lite.worker.loading import LoadError, explained


class Command(BaseCommand):
    """Exit codes are those of ``gnsq-lite worker``."""

    help = "Runs the handlers in the apps' nsq.py (gnsq_lite.contrib.django.handler) until SIGTERM."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Flags as those of ``gnsq-lite worker``."""
        parser.add_argument("--topic", action="append", default=[], help="only its handlers; may be repeated")
        parser.add_argument("--processes", type=_count, default=1)
        parser.add_argument("--concurrency", type=_count, help="default concurrency of a handler")
        parser.add_argument("--reload", action="store_true", help="restart when a source changes")
        parser.add_argument("--metrics-port", type=_port, help="serve a live page and /metrics; 0: any port")
        parser.add_argument("--metrics-host", default="127.0.0.1", help="address to serve them at; 0.0.0.0: all")
        parser.add_argument("--allow-host", action="append", default=[], help="serve the live page under this name too")
        parser.add_argument(
            "--allow-control", action="store_true", help=f"allow pause and drain with the token in {TOKEN}"
        )
        parser.add_argument("--drain-timeout", type=float, help="seconds handlers have to finish")
        parser.add_argument("--hang-timeout", type=float, help="seconds until a process that hangs is killed; 0: never")
        parser.add_argument("--max-messages", type=_count, help="replace a process that has handled so many messages")
        parser.add_argument("--max-memory", type=_count, help="replace a process that uses so many MiB")
        parser.add_argument("--no-schedules", action="store_true", help="publish no scheduled messages")
        parser.add_argument("--pidfile", help="keep the supervisor's process id in this file")
        parser.add_argument("--log-format", choices=("text", "json"), help="instead of the project's LOGGING")
        parser.add_argument("--no-supervise", action="store_true", help="run in this process, for a debugger")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run; leaves with the exit code."""
        for name in ("reload", "max_messages", "max_memory", "pidfile"):
            if options[name] and options["no_supervise"]:
                flag = "--" + name.replace("_", "-")
                raise CommandError(f"{flag} needs the supervisor; leave --no-supervise out", returncode=ExitCode.USAGE)
        slot = take_slot()
        if options["log_format"]:
            logs.configure(options["log_format"], "info", str(slot.number) if slot else "main")
        status = StatusAt(
            options["metrics_host"], options["metrics_port"], options["allow_host"], options["allow_control"]
        )
        try:
            if slot is None and not options["no_supervise"]:
                code = supervise(options["processes"], status, reload=options["reload"], pid_path=options["pidfile"])
            else:
                code = self._work(slot, options, status)
        except NSQError as error:
            code = ExitCode.USAGE if isinstance(error, OptionError) else ExitCode.FAILED
            raise CommandError(str(error), returncode=code) from error
        sys.exit(code)

    def _work(self, slot: Slot | None, options: dict[str, Any], status: StatusAt) -> int:
        try:
            worker = _worker(options)
        except (OptionError, InvalidName, ImproperlyConfigured) as error:
            why = LoadError(str(error))
        except (Exception, SystemExit) as error:
            why = explained("the apps' nsq.py", error)
        else:
            wear = {name: options[name] for name in ("max_messages", "max_memory", "processes")}
            return run_worker(worker, slot, reload=options["reload"], status=status, **wear)
        self.stderr.write(f"nsq_worker: {why}")
        if not options["reload"]:
            return ExitCode.USAGE
        wait_for_a_change(slot, why.files)
        return ExitCode.RELOAD


def _worker(options: dict[str, Any]) -> Worker:
    worker = make_worker()
    if options["topic"]:
        worker.select(options["topic"])
    if options["concurrency"] is not None:
        worker.configure(concurrency=options["concurrency"])
    if options["drain_timeout"] is not None:
        worker.drain_timeout = options["drain_timeout"]
    if options["hang_timeout"] is not None:
        worker.hang_timeout = options["hang_timeout"]
    if options["no_schedules"]:
        worker.schedules.clear()
    worker.check()
    return worker


def _count(text: str) -> int:
    return _number(text, 1)


def _port(text: str) -> int:
    return _number(text, 0, 65535)


def _number(text: str, least: int, most: int | None = None) -> int:
    if not text.isdecimal() or int(text) < least or (most is not None and int(text) > most):
        raise ArgumentTypeError(f"must be a number {f'of at least {least}' if most is None else f'{least} to {most}'}")
    return int(text)
