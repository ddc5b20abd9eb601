"""Django integration: handlers in each app's ``nsq.py``, ``manage.py nsq_worker``, publishing after the commit.

::

    INSTALLED_APPS += ["gnsq_lite.contrib.django"]
    NSQ = {"LOOKUPD_HTTP_ADDRESSES": ["127.0.0.1:4161"]}

    # shop/nsq.py
    from gnsq_lite.contrib.django import handler

    @handler("orders", "billing", concurrency=4)
    def bill(message): ...

    # shop/views.py
    from gnsq_lite.contrib.django import writer
    writer().publish("orders", b"...")        # sent when the transaction commits, never when it rolls back
"""

from __future__ import annotations

from gnsq_lite.contrib.django.once import once
from gnsq_lite.contrib.django.outbox import every
from gnsq_lite.contrib.django.publishing import OnCommit, direct_writer, outbox, writer
from gnsq_lite.contrib.django.registry import CloseOldConnections, handler, make_worker

__all__ = [
    "CloseOldConnections",
    "OnCommit",
    "direct_writer",
    "every",
    "handler",
    "make_worker",
    "once",
    "outbox",
    "writer",
]
