"""Why a Reader's nsqds are not subscribed, and which of these reasons no retry can fix."""

from __future__ import annotations

from collections.abc import Collection, Iterable

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
    TLSNotGranted,
    TLSRequiredError,
    UnauthorizedError,
    WrongDialectError,
    WrongPortError,
)

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

    def __init__(self) -> None:
        self._reasons: dict[Endpoint, NSQError] = {}
        #: Whether any nsqd was ever subscribed: from then on every fault is one that passes.
        self.any_joined = False

    def lost(self, endpoint: Endpoint, reason: NSQError) -> bool:
        """Note that *endpoint* was lost, or cannot be reached; return whether the reason differs from the last one."""
        before = self._reasons.get(endpoint)
        self._reasons[endpoint] = reason
        return str(before) != str(reason)

    def joined(self, endpoint: Endpoint) -> None:
        """Note that *endpoint* is subscribed."""
        self.any_joined = True
        self.forget((endpoint,))

    def forget(self, endpoints: Iterable[Endpoint]) -> None:
        """Drop what was noted about *endpoints*."""
        for endpoint in endpoints:
            self._reasons.pop(endpoint, None)

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
