"""The setting ``NSQ``: a dict, every key optional.

``NSQD_TCP_ADDRESSES``, ``LOOKUPD_HTTP_ADDRESSES``
    As for Reader and Writer.
``READER``, ``WRITER``
    Further keywords of every Reader, and of the Writer.
``MIDDLEWARE``
    Dotted paths of :class:`gnsq_lite.worker.Middleware` classes, the outermost first.
``DRAIN_TIMEOUT``
    Seconds that running handlers have when the worker stops.
``OUTBOX``
    Names of ``DATABASES`` whose outboxes ``manage.py nsq_worker`` relays.
``OUTBOX_INTERVAL``
    Seconds between two looks at an outbox that was empty; 0.5 where it is not given.
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
    """Return the setting.  Raises ImproperlyConfigured for a key that does not exist, with the nearest one."""
    found = getattr(settings, "NSQ", {})
    if not isinstance(found, Mapping):
        raise ImproperlyConfigured("NSQ must be a dict")
    for key in found:
        if key not in _KEYS:
            near = difflib.get_close_matches(str(key), _KEYS, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(_KEYS)}"
            raise ImproperlyConfigured(f"NSQ[{key!r}]: there is no such key{hint}")
    return found


def addresses() -> dict[str, Any]:
    """Return the address keywords of a Reader or Writer."""
    found = nsq_settings()
    names = ("NSQD_TCP_ADDRESSES", "LOOKUPD_HTTP_ADDRESSES")
    return {name.lower(): found[name] for name in names if found.get(name)}
