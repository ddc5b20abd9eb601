"""A synchronous NSQ client for Python on gevent and threads.

::

    from gnsq_lite import Reader, Writer

    with Writer("127.0.0.1:4150") as writer:
        writer.publish("clicks", b"hello")

    def handle(message):          # return: FIN.  raise: REQ with a delay, and back off
        print(message.body)

    Reader("clicks", "printer", handle, nsqd_tcp_addresses=["127.0.0.1:4150"]).start()

Durations are seconds, floats; bodies are bytes.  All errors are in :mod:`gnsq_lite.errors`, under ``NSQError``.
"""

from __future__ import annotations

from gnsq_lite import errors
from gnsq_lite.message import Message, Requeue
from gnsq_lite.options import BackoffOptions, TLSOptions
from gnsq_lite.reader import Reader
from gnsq_lite.version import __version__
from gnsq_lite.writer import Writer

__all__ = ["BackoffOptions", "Message", "Reader", "Requeue", "TLSOptions", "Writer", "__version__", "errors"]
