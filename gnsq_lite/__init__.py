"""A synchronous NSQ client for Python on gevent and threads.

::

    from gnsq_lite import Reader, Writer

    with Writer("127.0.0.1:4150") as writer:
        writer.publish("clicks", b"hello")

    def handle(message):          # after a return the Reader sends FIN, after an exception REQ
        print(message.body)

    Reader("clicks", "printer", handle, nsqd_tcp_addresses=["127.0.0.1:4150"]).start()

A name of this module is imported when a program first uses it.  ``import gnsq_lite`` imports neither gevent nor ssl, so
a program may monkey-patch afterwards.  Durations are floats, in seconds.  Bodies are bytes.  All classes of
:mod:`gnsq_lite.errors` derive from :class:`gnsq_lite.errors.NSQError`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gnsq_lite.version import __version__

if TYPE_CHECKING:
    from gnsq_lite import errors
    from gnsq_lite.consume.calls import current_message
    from gnsq_lite.dialect import PublishReceipt
    from gnsq_lite.message import GiveUp, Message, Requeue, TimeLimitExceeded
    from gnsq_lite.options import BackoffOptions, TLSOptions
    from gnsq_lite.publish.middleware import PublishCall, PublishMiddleware
    from gnsq_lite.publish.publication import Publication
    from gnsq_lite.reader import Reader
    from gnsq_lite.worker import Worker
    from gnsq_lite.writer import Writer

__all__ = [
    "BackoffOptions",
    "GiveUp",
    "Message",
    "Publication",
    "PublishCall",
    "PublishMiddleware",
    "PublishReceipt",
    "Reader",
    "Requeue",
    "TLSOptions",
    "TimeLimitExceeded",
    "Worker",
    "Writer",
    "__version__",
    "current_message",
    "errors",
]

#: Maps each public name to the module that defines it.
_HOMES = {
    "BackoffOptions": "gnsq_lite.options",
    "GiveUp": "gnsq_lite.message",
    "Message": "gnsq_lite.message",
    "Publication": "gnsq_lite.publish.publication",
    "PublishCall": "gnsq_lite.publish.middleware",
    "PublishMiddleware": "gnsq_lite.publish.middleware",
    "PublishReceipt": "gnsq_lite.dialect",
    "Reader": "gnsq_lite.reader",
    "Requeue": "gnsq_lite.message",
    "TLSOptions": "gnsq_lite.options",
    "TimeLimitExceeded": "gnsq_lite.message",
    "Worker": "gnsq_lite.worker",
    "Writer": "gnsq_lite.writer",
    "current_message": "gnsq_lite.consume.calls",
}


def __getattr__(name: str) -> Any:
    if name == "errors":
        return importlib.import_module("gnsq_lite.errors")
    if name not in _HOMES:
        raise AttributeError(f"module 'gnsq_lite' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
