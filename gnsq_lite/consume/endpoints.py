"""Records why a Reader's nsqds are not subscribed, and decides whether a retry can help."""

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
)

#: Errors that only another configuration can fix, from nsqd itself or a verified handshake.  A connection that ends in
#: the TLS handshake, a bad record, a balancer's answer and an unknown frame are not listed: a restart can cause them.
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
)


class Losses:
    """The reasons why nsqds are not subscribed now."""

    def __init__(self) -> None:
        self._reasons: dict[Endpoint, NSQError] = {}
        #: Whether any nsqd was ever subscribed; from then on no error is final.
        self.any_joined = False

    def lost(self, endpoint: Endpoint, reason: NSQError) -> bool:
        """Record the loss of *endpoint*; return whether the reason differs from its last reason."""
        before = self._reasons.get(endpoint)
        self._reasons[endpoint] = reason
        return str(before) != str(reason)

    def joined(self, endpoint: Endpoint) -> None:
        """Record that *endpoint* is subscribed."""
        self.any_joined = True
        self.forget((endpoint,))

    def forget(self, endpoints: Iterable[Endpoint]) -> None:
        """Drop the reasons of *endpoints*."""
        for endpoint in endpoints:
            self._reasons.pop(endpoint, None)

    def is_hopeless(self, known: Collection[Endpoint]) -> bool:
        """Return whether no nsqd was ever subscribed and no retry can subscribe to any of *known*, all endpoints.

        If nsqlookupds list the nsqds, *known* is empty, and only an nsqd of another dialect is hopeless.
        """
        if self.any_joined:
            return False
        if any(isinstance(reason, WrongDialectError) for reason in self._reasons.values()):
            return True
        return bool(known) and all(isinstance(self._reasons.get(each), MISCONFIGURED) for each in known)

    def reasons(self) -> dict[Endpoint, NSQError]:
        """Return the reason of each endpoint that is not subscribed now."""
        return dict(self._reasons)
