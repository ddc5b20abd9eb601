"""Counts messages and times handlers for statsd.  Needs the extra ``statsd``.

::

    from gnsq_lite.contrib.statsd import StatsdMiddleware

    worker = Worker(middleware=[StatsdMiddleware()])          # 127.0.0.1:8125, or STATSD_HOST and STATSD_PORT

Each handler has these metrics.  In their names, "_" replaces each character except letters, digits, "-" and "_".

* ``nsq.TOPIC.CHANNEL.ok``, ``.failed``, ``.requeued``: number of messages;
* ``nsq.TOPIC.CHANNEL.time``: milliseconds of a handler call, for a message or a batch.
"""

from __future__ import annotations

import os
import re
import time
from typing import Any

from gnsq_lite.errors import MissingExtra
from gnsq_lite.message import Requeue
from gnsq_lite.worker import Handler, Middleware

try:
    from statsd import StatsClient
except ModuleNotFoundError as missing:
    raise MissingExtra("gnsq_lite.contrib.statsd", "statsd", "statsd") from missing

__all__ = ["StatsdMiddleware"]


class StatsdMiddleware(Middleware):
    """Counts and times handlers.

    Args:
        client: A ``statsd.StatsClient``, or an object with the same methods ``incr`` and ``timing``.
        prefix: Prefix of the metrics' names.
    """

    def __init__(self, client: Any = None, prefix: str = "nsq") -> None:
        where = os.environ.get("STATSD_HOST", "127.0.0.1"), int(os.environ.get("STATSD_PORT", "8125"))
        self._client, self._prefix = client or StatsClient(*where), prefix

    def wrap(self, call: Any, handler: Handler) -> Any:
        """Wrap *call* to count and time it."""
        client, clock = self._client, time.perf_counter
        name = ".".join([self._prefix, *(re.sub(r"[^\w-]", "_", part) for part in (handler.topic, handler.channel))])

        def timed(given: Any) -> Any:
            began, outcome = clock(), "failed"
            try:
                returned = call(given)
                outcome = "ok"
                return returned
            except Requeue:
                outcome = "requeued"
                raise
            finally:
                client.incr(f"{name}.{outcome}", len(given) if isinstance(given, list) else 1)
                client.timing(f"{name}.time", 1000 * (clock() - began))

        return timed
