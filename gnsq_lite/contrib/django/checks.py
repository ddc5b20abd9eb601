"""System checks of the setting ``NSQ`` for ``manage.py check``.  The checks open no connections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.core.checks import Error
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from gnsq_lite.contrib.django.conf import addresses, nsq_settings
from gnsq_lite.contrib.django.outbox import interval, outbox_databases
from gnsq_lite.errors import OptionError
from gnsq_lite.worker import Middleware, Worker
from gnsq_lite.writer import Writer


def check_settings(**kwargs: Any) -> list[Error]:
    """Return an error for each key of the setting with an invalid value."""
    errors: list[Error] = []

    def is_right(key: str, check: Callable[[], object]) -> bool:
        try:
            check()
        except (ImproperlyConfigured, OptionError, ImportError, TypeError, ValueError) as error:
            text = str(error) if str(error).startswith("NSQ") else f"NSQ[{key!r}]: {error}"
            errors.append(Error(text, id="gnsq_lite.E001"))
            return False
        return True

    if not is_right("", nsq_settings):
        return errors
    found = nsq_settings()
    is_right("NSQD_TCP_ADDRESSES", lambda: Worker(nsqd_tcp_addresses=found.get("NSQD_TCP_ADDRESSES")))
    is_right("LOOKUPD_HTTP_ADDRESSES", lambda: Worker(lookupd_http_addresses=found.get("LOOKUPD_HTTP_ADDRESSES")))
    given = {} if errors else addresses()
    is_right("READER", lambda: Worker(**given, **found.get("READER", {})))
    is_right("WRITER", lambda: Writer(**given, **found.get("WRITER", {})))
    is_right("MIDDLEWARE", lambda: _check_middleware(found.get("MIDDLEWARE", ())))
    is_right("DRAIN_TIMEOUT", lambda: Worker(drain_timeout=found.get("DRAIN_TIMEOUT", 0)))
    is_right("OUTBOX", outbox_databases)
    is_right("OUTBOX_INTERVAL", interval)
    return errors


def _check_middleware(paths: Any) -> None:
    if not isinstance(paths, (list, tuple)):
        raise ImproperlyConfigured(f"NSQ['MIDDLEWARE'] must be a list of dotted paths, not {paths!r}")
    for path in paths:
        made = import_string(path)
        if not callable(made) or (isinstance(made, type) and not issubclass(made, Middleware)):
            raise ImproperlyConfigured(f"NSQ['MIDDLEWARE']: {path} is not a subclass of gnsq_lite.worker.Middleware")
