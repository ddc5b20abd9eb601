"""Reads the setting ``NSQ``, a dict with these optional keys:

``NSQD_TCP_ADDRESSES``, ``LOOKUPD_HTTP_ADDRESSES``
    Addresses, as for Reader and Writer.
``READER``, ``WRITER``
    Further keyword arguments of each Reader, and of the Writer.
``MIDDLEWARE``
    Dotted paths of :class:`gnsq_lite.worker.Middleware` classes, the outermost first.
``DRAIN_TIMEOUT``
    Seconds within which running handlers must return when the worker stops.
``OUTBOX``
    Names of ``DATABASES`` whose outboxes ``manage.py nsq_worker`` relays.
``OUTBOX_INTERVAL``
    Seconds between two polls of an empty outbox.  The default is 0.5.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

_KEYS = (
    *("NSQD_TCP_ADDRESSES", "LOOKUPD_HTTP_ADDRESSES", "READER", "WRITER", "MIDDLEWARE", "DRAIN_TIMEOUT"),
    *("OUTBOX", "OUTBOX_INTERVAL"),
)


def nsq_settings() -> Mapping[str, Any]:
    """Return the setting ``NSQ``.  Raises ImproperlyConfigured for an unknown key, and suggests the closest key."""
    found = getattr(settings, "NSQ", {})
    if not isinstance(found, Mapping):
        raise ImproperlyConfigured("the setting NSQ must be a dict")
    for key in found:
        if key not in _KEYS:
            near = difflib.get_close_matches(str(key), _KEYS, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; the keys are {', '.join(_KEYS)}"
            raise ImproperlyConfigured(f"NSQ[{key!r}]: unknown key{hint}")
    return found


def addresses() -> dict[str, Any]:
    """Return the address keywords for a Reader or Writer."""
    found = nsq_settings()
    names = ("NSQD_TCP_ADDRESSES", "LOOKUPD_HTTP_ADDRESSES")
    return {name.lower(): found[name] for name in names if found.get(name)}
