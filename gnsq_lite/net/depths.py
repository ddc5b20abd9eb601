"""Polls the depths of channels at nsqds, for a Worker's pages and for the progress of a Spark query."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any

from gnsq_lite.clock import SYSTEM_CLOCK, Clock
from gnsq_lite.errors import NSQError
from gnsq_lite.http import NsqdClient
from gnsq_lite.http.lookupd import http_address, http_addresses
from gnsq_lite.keywords import address_list, url_list, with_environment
from gnsq_lite.net.os_threads import start_hub_thread
from gnsq_lite.options import format_address

log = logging.getLogger("gnsq_lite.net")

#: (TCP address of the nsqd, topic, channel).
Place = tuple[str, str, str]

#: Seconds between the end of a poll and the next poll, and time limit of a request in seconds.
EVERY, TIMEOUT = 2.0, 1.0


class Depths:
    """Polls depths.  Each poll queries the nsqds in a new thread, so no method blocks.

    Args:
        options: Function that returns the keywords of a Reader of a topic, and optionally ``nsqd_http_addresses`` with
            an HTTP address for each of ``nsqd_tcp_addresses``.
    """

    def __init__(
        self,
        options: Callable[[str], Mapping[str, Any]],
        start_thread: Callable[[str, Callable[[], None]], None] = start_hub_thread,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._options, self._start_thread, self._clock = options, start_thread, clock
        self._known: dict[Place, int | None] = {}
        #: Time of the next poll.  It is infinite while a poll runs.
        self._due = 0.0

    def look(self, wanted: Mapping[tuple[str, str], Collection[str]]) -> dict[Place, int | None]:
        """Return what the last poll found: None if an nsqd did not answer.  Start the next poll if it is due.

        Args:
            wanted: (topic, channel) -> TCP addresses of nsqds, or () for all nsqds of the topic.
        """
        if wanted and self._clock.now() >= self._due:
            self._due = float("inf")
            self._start_thread("gnsq_lite-depths", functools.partial(self._poll, wanted))
        return self._known

    def total(self, topic: str, channel: str) -> int | None:
        """Return the depth at all nsqds of the topic, or None if one did not answer or no poll has ended."""
        found = self.look({(topic, channel): ()}).values()
        answers = [depth for depth in found if depth is not None]
        return sum(answers) if answers and len(answers) == len(found) else None

    def _poll(self, wanted: Mapping[tuple[str, str], Collection[str]]) -> None:
        found: dict[Place, int | None] = {}
        try:
            for (topic, channel), nsqds in wanted.items():
                options = self._options(topic)
                named, lookupds = with_environment(
                    options.get("nsqd_tcp_addresses"), options.get("lookupd_http_addresses")
                )
                http = http_addresses(
                    topic,
                    url_list(lookupds),
                    http_timeout=TIMEOUT,
                    tls=options.get("lookupd_tls"),
                    auth_token=options.get("lookupd_token"),
                )
                known = address_list(named, option="nsqd_tcp_addresses", default_port=4150)
                http |= zip(map(format_address, known), options.get("nsqd_http_addresses", ()), strict=False)
                for nsqd in nsqds or {*map(format_address, known), *http}:
                    found[nsqd, topic, channel] = _depth(http_address(nsqd, http), topic, channel)
        except Exception:
            log.exception("polling the depths of channels failed")
        finally:
            self._known, self._due = found, self._clock.now() + EVERY


def _depth(address: str | None, topic: str, channel: str) -> int | None:
    """Return the depth of a channel at the nsqd with the HTTP *address*, or None if the nsqd does not answer."""
    if address is None:
        return None
    try:
        with NsqdClient(address, http_timeout=TIMEOUT) as client:
            return client.stats(topic, channel, include_clients=False, include_mem=False).depth(topic, channel) or 0
    except NSQError as error:
        log.debug("no depth of %s/%s at %s: %s", topic, channel, address, error)
        return None
