"""Keeps asking the nsqlookupds where a topic is, and tells who should be connected to (DISC-1 to DISC-6).

A round asks every nsqlookupd at once.  Each answer is acted upon when it comes, so one that is slow delays nobody;
:class:`~gnsq_lite.policy.producers.Producers` decides what an answer changes.  What fails leaves all as it was.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gevent.event import Event

from gnsq_lite.clock import Clock
from gnsq_lite.dialect import Endpoint, Lookup
from gnsq_lite.errors import NSQError
from gnsq_lite.net.lookupds import Fetch, LookupdHealth, Lookupds
from gnsq_lite.options import LookupOptions
from gnsq_lite.policy.chance import Rng

log = logging.getLogger("gnsq_lite.discovery")

#: Says which nsqds may be connected to: (broadcast_address, tcp_port) -> bool.
Allowed = Callable[[str, int], bool]


class Discovery:
    """Discovery of one topic.  Made and used in one thread; ``run()`` is for a greenlet of its own.

    Args:
        lookupds: Addresses, ``host:port`` or http(s) URLs.
        path: Path and query to ask for.
        parse: Makes a :class:`~gnsq_lite.dialect.Lookup` of an answer.  Raises HTTPResponseError.
        on_found: Called with endpoints to connect to that are not connected; called again for each poll that still
            lists them (CONN-4).
        on_lookup: Called with (nsqlookupd, Lookup) for each good answer.
        allowed: Filter of what may be connected to; an nsqd that it refuses is logged once.
        fetch: Asks one nsqlookupd; None: over HTTP.
    """

    def __init__(
        self,
        lookupds: Iterable[str],
        *,
        path: str,
        parse: Callable[[Any], Lookup],
        options: LookupOptions,
        clock: Clock,
        rng: Rng,
        on_found: Callable[[tuple[Endpoint, ...]], Any] | None = None,
        on_lookup: Callable[[str, Lookup], Any] | None = None,
        allowed: Allowed | None = None,
        fetch: Fetch | None = None,
    ) -> None:
        self._lookupds = Lookupds(lookupds, options, clock, fetch)
        self._path, self._parse = path, parse
        self._options, self._rng = options, rng
        self._on_found, self._on_lookup, self._allowed = on_found, on_lookup, allowed
        self._lookups: dict[str, Lookup] = {}
        self._connected: set[Endpoint] = set()
        self._refused: set[Endpoint] = set()
        self._wake = Event()
        self._stopped = False

    @classmethod
    def for_reader(cls, loop: Any, settings: Any, rng: Rng, clock: Clock, found: Callable[..., Any]) -> Discovery:
        """Return the discovery of a Reader's topic."""
        dialect, topic = settings.dialect, settings.topic
        return cls(
            settings.lookupds,
            path=dialect.lookup_path(topic, "read"),
            parse=lambda data: dialect.parse_lookup(topic, "read", data),
            options=settings.lookup,
            clock=clock,
            rng=rng,
            on_found=found,
            allowed=settings.allowed_addresses,
        )

    # -- the loop

    def run(self) -> None:
        """Ask at the start, then periodically with jitter (DISC-4), and whenever :meth:`poke` says, until stopped."""
        while not self._stopped:
            self._wake.clear()
            self.ask()
            self._wake.wait(self.delay())

    def delay(self) -> float:
        """Return the seconds until the next poll: the interval and a random part of it on top (CFG-3)."""
        options = self._options
        return options.lookupd_poll_interval * (1.0 + options.lookupd_poll_jitter * self._rng.random())

    def ask(self) -> None:
        """Ask every nsqlookupd that owes no answer; returns at once."""
        self._lookupds.ask(self._path, self._parse, self._answered)

    def poke(self) -> None:
        """Poll now instead of at the next turn, as after a partition's leader moved (YZ-8)."""
        self._wake.set()

    def stop(self) -> None:
        """End the loop and the questions under way."""
        self._stopped = True
        self._wake.set()
        self._lookupds.close()

    # -- answers

    def _answered(self, address: str, lookup: Lookup | None, error: NSQError | None) -> None:
        if self._stopped or lookup is None:
            return
        self._lookups[address] = lookup
        if self._on_lookup is not None:
            self._on_lookup(address, lookup)
        wanted = tuple(e for e in dict.fromkeys(lookup.endpoints) if e not in self._connected and self._may(e))
        if wanted and self._on_found is not None:
            self._on_found(wanted)

    def _may(self, endpoint: Endpoint) -> bool:
        if self._allowed is None:
            return True
        try:
            if self._allowed(endpoint.host, endpoint.port):
                self._refused.discard(endpoint)
                return True
        except Exception:
            log.exception("allowed_addresses failed on %s, which is not connected to", endpoint)
            return False
        if endpoint not in self._refused:
            self._refused.add(endpoint)
            log.warning("nsqlookupd lists %s, which allowed_addresses refuses", endpoint)
        return False

    def connected(self, endpoint: Endpoint) -> None:
        """*endpoint* is connected: not to be found again."""
        self._connected.add(endpoint)

    def disconnected(self, endpoint: Endpoint) -> None:
        """*endpoint* is not connected, or no more: found again by the next poll that still lists it (CONN-4)."""
        self._connected.discard(endpoint)

    # -- state

    @property
    def lookups(self) -> Mapping[str, Lookup]:
        """The last good answer of each nsqlookupd."""
        return self._lookups

    def health(self) -> dict[str, LookupdHealth]:
        """Return the state of each nsqlookupd by its address."""
        return self._lookupds.health()
