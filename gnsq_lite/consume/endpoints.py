"""What a Reader remembers of its endpoints: why an nsqd was lost, and which partitions are stopped."""

from __future__ import annotations

from collections.abc import Collection
from random import Random

from gnsq_lite.clock import Clock
from gnsq_lite.consume.run_handler import key_of
from gnsq_lite.dialect import Endpoint
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
from gnsq_lite.message import Message
from gnsq_lite.options import ReconnectOptions
from gnsq_lite.policy.attempts import Tries
from gnsq_lite.policy.reconnect import Reconnect

#: Errors that only another configuration mends, from nsqd itself or a verified handshake.  A connection that ends in
#: the TLS handshake, a bad record, a balancer's answer and an unknown frame are not among them: a restart causes these.
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


class Losses:
    """Remembers why nsqds are not subscribed now."""

    def __init__(self, options: ReconnectOptions, *, clock: Clock, rng: Random) -> None:
        self._options, self._clock, self._rng = options, clock, rng
        self._reasons: dict[Endpoint, NSQError] = {}
        self._rests: dict[Endpoint, tuple[Reconnect, float]] = {}
        #: Whether any nsqd was ever subscribed: from then on every fault is one that passes.
        self.any_joined = False

    def lost(self, endpoint: Endpoint, reason: NSQError) -> bool:
        """Note that *endpoint* was lost, or cannot be reached; return whether the reason differs from the last one."""
        before = self._reasons.get(endpoint)
        self._reasons[endpoint] = reason
        if isinstance(reason, (TLSError, *MISCONFIGURED)):
            retry = self._rests[endpoint][0] if endpoint in self._rests else Reconnect(self._options, self._rng)
            self._rests[endpoint] = (
                retry,
                self._clock.now() + retry.failed(longest=isinstance(reason, WrongDialectError)),
            )
        return str(before) != str(reason)

    def joined(self, endpoint: Endpoint) -> None:
        """Note that *endpoint* is subscribed."""
        self.any_joined = True
        self.forget(endpoint)

    def forget(self, endpoint: Endpoint) -> None:
        """Drop what was noted about *endpoint*."""
        self._reasons.pop(endpoint, None)
        self._rests.pop(endpoint, None)

    def rests(self, endpoint: Endpoint) -> bool:
        """Return whether *endpoint*, which refuses what it is asked for, is to be left alone for now."""
        return endpoint in self._rests and self._clock.now() < self._rests[endpoint][1]

    def is_hopeless(self, known: Collection[Endpoint]) -> bool:
        """Return whether none of *known*, all endpoints there are, was ever reached, or can be with this configuration.

        Where the nsqds come from nsqlookupds, *known* is empty, and only an nsqd of another dialect is hopeless.
        """
        if self.any_joined:
            return False
        if any(isinstance(reason, WrongDialectError) for reason in self._reasons.values()):
            return True
        return bool(known) and all(isinstance(self._reasons.get(each), MISCONFIGURED) for each in known)

    def reasons(self) -> dict[Endpoint, NSQError]:
        """Return why each is not subscribed now."""
        return dict(self._reasons)


def name_of(endpoint: Endpoint) -> int | str:
    """Return the unit of ordering: a partition, whichever nsqd leads it, or an nsqd without partitions."""
    return str(endpoint) if endpoint.partition is None else endpoint.partition


class StoppedPartitions:
    """The partitions that the Reader has stopped at a message that cannot be handled (YZ-13)."""

    def __init__(self, tries: Tries) -> None:
        self._tries = tries
        self._at: dict[int | str, tuple[str, bytes]] = {}

    def __contains__(self, endpoint: Endpoint) -> bool:
        return name_of(endpoint) in self._at

    def names(self) -> tuple[int | str, ...]:
        """Return the names of the stopped partitions."""
        return tuple(self._at)

    def stop(self, endpoint: Endpoint, message: Message) -> None:
        """Stop the partition of *endpoint* at *message*."""
        self._at[name_of(endpoint)] = key_of(message)

    def resume(self, name: int | str) -> None:
        """Resume a partition: its message is handled once more.  Raises OptionError if it is not stopped."""
        if name not in self._at:
            stopped = ", ".join(map(str, self._at)) or "none is"
            raise OptionError("partition", name, f"is not stopped ({stopped})")
        self._tries.not_begun(self._at.pop(name))
