"""What each nsqd was lost by: told once, tried again ever later, and whether it proves that none can ever be had."""

from __future__ import annotations

from collections.abc import Collection
from typing import Generic, TypeVar

from gnsq_lite.clock import Clock
from gnsq_lite.errors import (
    AuthFirstError,
    BadChannelError,
    BadTopicError,
    CertificateError,
    ClientCertificateError,
    NSQError,
    OptionError,
    SubOrderIsMustError,
    TLSError,
    TLSNotGranted,
    TLSRequiredError,
    UnauthorizedError,
    WrongDialectError,
    WrongPortError,
)
from gnsq_lite.options import ReconnectOptions
from gnsq_lite.policy.reconnect import Reconnect
from gnsq_lite.policy.rng import Rng

K = TypeVar("K")

#: What only another configuration mends, said by nsqd itself or by a verified handshake.  A connection that ends in
#: the TLS handshake, a bad record, a balancer's answer and an unknown frame are none: a restart looks like that.
MISCONFIGURED = (
    AuthFirstError,
    BadChannelError,
    BadTopicError,
    CertificateError,
    ClientCertificateError,
    OptionError,
    SubOrderIsMustError,
    TLSNotGranted,
    TLSRequiredError,
    UnauthorizedError,
    WrongDialectError,
    WrongPortError,
)


#: Longest pause, seconds, between two lookups for the leader of a partition that was lost; up to 30 % more by chance.
LONGEST_PAUSE = 8.0


def first_pause(after: float, misses: int) -> float:
    """Return the seconds before the search for a leader that was lost *misses* times in a row.

    *after* for the first three, then twice as long each time, up to the longest pause.
    """
    return min(after * 2.0 ** min(max(0, misses - 3), 16), LONGEST_PAUSE)


class Losses(Generic[K]):
    """Remembers, for each nsqd that is not subscribed now, why; by any hashable key."""

    __slots__ = ("_clock", "_options", "_reasons", "_rests", "_rng", "any_joined")

    def __init__(self, options: ReconnectOptions, *, clock: Clock, rng: Rng) -> None:
        self._options, self._clock, self._rng = options, clock, rng
        self._reasons: dict[K, NSQError] = {}
        self._rests: dict[K, tuple[Reconnect, float]] = {}
        #: Whether any nsqd was ever subscribed: from then on every fault is one that passes.
        self.any_joined = False

    def lost(self, key: K, reason: NSQError) -> bool:
        """Take that *key* was lost, or could not be had; return whether that is news."""
        before = self._reasons.get(key)
        self._reasons[key] = reason
        if isinstance(reason, (TLSError, *MISCONFIGURED)):
            retry = self._rests[key][0] if key in self._rests else Reconnect(self._options, self._rng)
            self._rests[key] = (retry, self._clock.now() + retry.failed(longest=isinstance(reason, WrongDialectError)))
        return str(before) != str(reason)

    def joined(self, key: K) -> None:
        """Take that *key* is subscribed."""
        self.any_joined = True
        self.forget(key)

    def forget(self, key: K) -> None:
        """Nobody asks for *key* any more."""
        self._reasons.pop(key, None)
        self._rests.pop(key, None)

    def rests(self, key: K) -> bool:
        """Return whether *key*, which refuses what it is asked for, is to be left alone for now."""
        return key in self._rests and self._clock.now() < self._rests[key][1]

    def is_hopeless(self, known: Collection[K]) -> bool:
        """Return whether none of *known*, all there are, was ever had, or can be with this configuration.

        Where the nsqds come from nsqlookupds, *known* is empty, and only an nsqd of another dialect is hopeless.
        """
        if self.any_joined:
            return False
        if any(isinstance(reason, WrongDialectError) for reason in self._reasons.values()):
            return True
        return bool(known) and all(isinstance(self._reasons.get(key), MISCONFIGURED) for key in known)

    def reasons(self) -> dict[K, NSQError]:
        """Return why each is not subscribed now."""
        return dict(self._reasons)
