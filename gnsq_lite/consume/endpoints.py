"""Records why a Reader is not subscribed to its nsqds, and decides whether retries can help."""

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

#: Errors that only another configuration can fix.  Errors that a restart of nsqd or of a load balancer may cause, such
#: as a bad TLS record or an unknown frame, are not listed.
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

        Retries cannot help if one nsqd has another dialect, or if all *known* endpoints have an error in MISCONFIGURED.
        """
        if self.any_joined:
            return False
        if any(isinstance(reason, WrongDialectError) for reason in self._reasons.values()):
            return True
        return bool(known) and all(isinstance(self._reasons.get(each), MISCONFIGURED) for each in known)

    def reasons(self) -> dict[Endpoint, NSQError]:
        """Return the reason for each endpoint without a subscription."""
        return dict(self._reasons)
