"""Queries the depth of a channel at all nsqds."""

from __future__ import annotations

import logging
from collections.abc import Callable

from gnsq_lite.clock import SYSTEM_CLOCK, Clock
from gnsq_lite.errors import NSQError
from gnsq_lite.http import NsqdClient
from gnsq_lite.http.lookupd import http_address, http_addresses
from gnsq_lite.keywords import address_list, url_list, with_environment
from gnsq_lite.net.os_threads import start_hub_thread
from gnsq_lite.options import format_address
from gnsq_lite.recording.options import RecorderOptions

log = logging.getLogger("gnsq_lite.recording")

#: Seconds between the end of a query and the start of the next query, and time limit in seconds of an HTTP request.
EVERY, TIMEOUT = 2.0, 1.0


class ChannelDepth:
    """Queries the nsqds in a separate thread.  :meth:`look` starts a query if one is due, and does not wait for it."""

    def __init__(
        self,
        options: RecorderOptions,
        start_thread: Callable[[str, Callable[[], None]], None] = start_hub_thread,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._options, self._start_thread, self._clock = options, start_thread, clock
        self._known: int | None = None
        self._due = clock.now()
        self._is_querying = False

    def look(self) -> int | None:
        """Return the depth that the last query found, or None if an nsqd did not answer or no query has ended."""
        if not self._is_querying and self._clock.now() >= self._due:
            self._is_querying = True
            self._start_thread("gnsq_lite-depth", self._query)
        return self._known

    def _query(self) -> None:
        try:
            self._known = self._total()
        except Exception:
            log.exception("querying the depth of %s/%s failed", self._options.topic, self._options.channel)
            self._known = None
        finally:
            self._due = self._clock.now() + EVERY
            self._is_querying = False

    def _total(self) -> int | None:
        given = self._options.client
        named, lookupds = with_environment(given.get("nsqd_tcp_addresses"), given.get("lookupd_http_addresses"))
        known = http_addresses(self._options.topic, url_list(lookupds), http_timeout=TIMEOUT)
        nsqds = set(map(format_address, address_list(named, option="nsqdTCPAddresses", default_port=4150)))
        depths = [self._at(http_address(nsqd, known)) for nsqd in nsqds | set(known)]
        answers = [depth for depth in depths if depth is not None]
        return sum(answers) if answers and len(answers) == len(depths) else None

    def _at(self, address: str | None) -> int | None:
        topic, channel = self._options.topic, self._options.channel
        if address is None:
            return None
        try:
            with NsqdClient(address, http_timeout=TIMEOUT) as client:
                return client.stats(topic, channel, include_clients=False, include_mem=False).depth(topic, channel) or 0
        except NSQError as error:
            log.debug("no depth of %s/%s at %s: %s", topic, channel, address, error)
            return None
