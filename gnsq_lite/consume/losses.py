"""Records why a Reader is not subscribed to its nsqds, and decides whether retries can help."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from gnsq_lite.dialect import Endpoint
from gnsq_lite.errors import NSQError, WrongDialectError
from gnsq_lite.policy.reconnect import why_hopeless


class Losses:
    """Records the last error of each nsqd to which the Reader is not subscribed."""

    def __init__(self) -> None:
        self._reasons: dict[Endpoint, NSQError] = {}
        #: Whether the Reader was ever subscribed to an nsqd.  After that, no lost connection ends the Reader.
        self.any_joined = False

    def lost(self, endpoint: Endpoint, reason: NSQError) -> bool:
        """Record *reason* for *endpoint*.  Return whether it differs from the reason before."""
        before = self._reasons.get(endpoint)
        self._reasons[endpoint] = reason
        return str(before) != str(reason)

    def joined(self, endpoint: Endpoint) -> None:
        """Record that the Reader is subscribed to *endpoint*."""
        self.any_joined = True
        self.forget((endpoint,))

    def forget(self, endpoints: Iterable[Endpoint]) -> None:
        """Drop the reasons of *endpoints*."""
        for endpoint in endpoints:
            self._reasons.pop(endpoint, None)

    def is_hopeless(self, known: Collection[Endpoint]) -> bool:
        """Return whether the Reader was never subscribed and retries cannot help.

        With nsqlookupds *known* is empty: then only an nsqd with another dialect makes retries useless.
        """
        if self.any_joined:
            return False
        reasons = [self._reasons.get(each) for each in known] if known else list(self._reasons.values())
        hopeless = why_hopeless(reasons)
        return hopeless is not None and (bool(known) or isinstance(hopeless, WrongDialectError))

    def reasons(self) -> dict[Endpoint, NSQError]:
        """Return the reason for each endpoint without a subscription."""
        return dict(self._reasons)
