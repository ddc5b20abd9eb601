"""The depths of a Worker's channels, polled from its nsqds only while somebody looks at the live page."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
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

#: (nsqd, topic, channel); the nsqd as ``host:port`` of its TCP port.
Place = tuple[str, str, str]

#: Seconds between two rounds; seconds without a viewer after which they end; seconds a server has to answer.
EVERY, LINGER, TIMEOUT = 2.0, 15.0, 1.0
#: Channels polled in one round; where there are more, the next round goes on with the others.
MOST = 64


class Depths:
    """Polls one nsqd after the other, in its own thread; :meth:`look` never waits."""

    def __init__(
        self,
        worker: Worker,
        start_thread: Callable[[str, Callable[[], None]], None] = start_hub_thread,
        clock: Clock = SYSTEM_CLOCK,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._worker, self._start_thread, self._clock, self._sleep = worker, start_thread, clock, sleep
        self._known: dict[Place, int] = {}
        self._wanted: list[Place] = []
        self._asked = 0.0
        self._is_asking = False
        self._turn = 0

    def look(self, stats: Sequence[ReaderStats]) -> dict[Place, int]:
        """Return the depths known so far."""
        self._wanted = [(c.address, each.topic, each.channel) for each in stats for c in each.connections]
        self._asked = self._clock.now()
        if self._wanted and not self._is_asking:
            self._is_asking = True
            self._start_thread("gnsq_lite-depths", self._run)
        return self._known

    def _run(self) -> None:
        try:
            while self._clock.now() - self._asked < LINGER:
                self._known = self._round()
                self._sleep(EVERY)
        except Exception:
            log.exception("polling the depths of channels failed")
        finally:
            self._is_asking = False

    def _round(self) -> dict[Place, int]:
        wanted = list(dict.fromkeys(self._wanted))
        start = self._turn % len(wanted) if len(wanted) > MOST else 0
        self._turn = start + MOST
        http = {topic: self._http_addresses(topic, options) for topic, options in self._topics()}
        known = {place: depth for place, depth in self._known.items() if place in set(wanted)}
        for place in (wanted[start:] + wanted[:start])[:MOST]:
            depth = _depth(http.get(place[1], {}), *place)
            if depth is None:
                known.pop(place, None)
            else:
                known[place] = depth
        return known

    def _topics(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for handler in self._worker.handlers:
            yield handler.topic, handler.merged(self._worker.defaults)

    def _http_addresses(self, topic: str, options: dict[str, Any]) -> dict[str, str]:
        """Return the HTTP address of each nsqd that an nsqlookupd lists for *topic*, by its TCP address."""
        _, lookupds = with_environment(options.get("nsqd_tcp_addresses"), options.get("lookupd_http_addresses"))
        settings = {"tls": options.get("lookupd_tls"), "auth_token": options.get("lookupd_token")}
        return http_addresses(topic, url_list(lookupds), http_timeout=TIMEOUT, http_retries=0, **settings)


def _depth(http: dict[str, str], nsqd: str, topic: str, channel: str) -> int | None:
    """Return the depth of a channel, or None where it is unknown."""
    address = http_address(nsqd, http)
    if address is None:
        return None
    try:
        with NsqdClient(address, http_timeout=TIMEOUT, http_retries=0) as client:
            return client.stats(topic, channel, include_clients=False, include_mem=False).depth(topic, channel)
    except NSQError as error:
        log.debug("no depth of %s/%s at %s: %s", topic, channel, address, error)
        return None
