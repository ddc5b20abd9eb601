"""Polls the depths of a Worker's channels from its nsqds when a client requests a page that shows depths."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gnsq_lite.clock import SYSTEM_CLOCK, Clock
from gnsq_lite.errors import NSQError
from gnsq_lite.http import NsqdClient
from gnsq_lite.http.lookupd import http_address, http_addresses
from gnsq_lite.keywords import url_list, with_environment
from gnsq_lite.net.os_threads import start_hub_thread
from gnsq_lite.stats import ReaderStats
from gnsq_lite.worker.app import Worker

log = logging.getLogger("gnsq_lite.worker")

#: (TCP address of the nsqd, topic, channel).
Place = tuple[str, str, str]

#: Seconds between two polls, and time limit of a request in seconds.
EVERY, TIMEOUT = 2.0, 1.0


class Depths:
    """Polls depths.  Each poll queries the nsqds in a new thread, so :meth:`look` never blocks."""

    def __init__(
        self,
        worker: Worker,
        start_thread: Callable[[str, Callable[[], None]], None] = start_hub_thread,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._worker, self._start_thread, self._clock = worker, start_thread, clock
        self._known: dict[Place, int] = {}
        #: Time of the next poll.  It is infinite while a poll runs.
        self._due = 0.0

    def look(self, stats: Sequence[ReaderStats]) -> dict[Place, int]:
        """Return the known depths, and start the next poll if it is due."""
        wanted = dict.fromkeys((c.address, each.topic, each.channel) for each in stats for c in each.connections)
        if wanted and self._clock.now() >= self._due:
            self._due = float("inf")
            self._start_thread("gnsq_lite-depths", functools.partial(self._poll, wanted))
        return self._known

    def _poll(self, wanted: Iterable[Place]) -> None:
        try:
            handlers = self._worker.handlers
            http = {
                each.topic: self._http_addresses(each.topic, each.merged(self._worker.defaults)) for each in handlers
            }
            found = {place: _depth(http.get(place[1], {}), *place) for place in wanted}
            self._known = {place: depth for place, depth in found.items() if depth is not None}
        except Exception:
            log.exception("polling the depths of channels failed")
        finally:
            self._due = self._clock.now() + EVERY

    def _http_addresses(self, topic: str, options: dict[str, Any]) -> dict[str, str]:
        """Return a dict from TCP address to HTTP address of each nsqd that an nsqlookupd lists for *topic*."""
        _, lookupds = with_environment(options.get("nsqd_tcp_addresses"), options.get("lookupd_http_addresses"))
        settings = {"tls": options.get("lookupd_tls"), "auth_token": options.get("lookupd_token")}
        return http_addresses(topic, url_list(lookupds), http_timeout=TIMEOUT, **settings)


def _depth(http: dict[str, str], nsqd: str, topic: str, channel: str) -> int | None:
    """Return the depth of a channel, or None if it is unknown."""
    address = http_address(nsqd, http)
    if address is None:
        return None
    try:
        with NsqdClient(address, http_timeout=TIMEOUT) as client:
            return client.stats(topic, channel, include_clients=False, include_mem=False).depth(topic, channel)
    except NSQError as error:
        log.debug("no depth of %s/%s at %s: %s", topic, channel, address, error)
        return None
