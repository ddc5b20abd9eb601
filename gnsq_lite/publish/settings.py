"""The settings of a Writer's core: all checked, nothing left to look up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gnsq_lite.dialect import Dialect, Endpoint
from gnsq_lite.errors import AuthFirstError, CertificateError, NSQError, TLSNotGranted, WrongDialectError
from gnsq_lite.net.settings import AddressMap
from gnsq_lite.options import ConnectionOptions, LookupOptions, ReconnectOptions

#: The endpoint of a publish that any nsqd may take.
NOWHERE = Endpoint("", 0)
#: Errors that waiting does not mend: where nsqd was never reached, publishes fail with them at once.
_MISCONFIGURED = (CertificateError, TLSNotGranted, AuthFirstError, WrongDialectError)


def hopeless(errors: Sequence[NSQError | None]) -> NSQError | None:
    """Return the error that waiting does not mend, given why each nsqd was never connected; None: wait.

    One nsqd of another dialect is enough: the others of its cluster are alike.
    """
    wrong = [error for error in errors if isinstance(error, WrongDialectError)]
    if wrong or all(isinstance(error, _MISCONFIGURED) for error in errors):
        return next(iter(wrong or errors), None)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """A Writer's options, checked and split by the part they are for."""

    dialect: Dialect
    endpoints: Sequence[Endpoint]
    lookupds: Sequence[str]
    connection: ConnectionOptions
    reconnect: ReconnectOptions
    lookup: LookupOptions
    #: Bytes of an MPUB at the most.
    max_body_size: int
    #: Bytes that publishes nobody waits for may have on their way.
    max_pending: int
    coalesce: bool
    #: Blocking connections to one nsqd at the most.
    max_connections: int = 100
    #: How often a publish of unknown outcome is sent again.
    retries: int = 0
    address_map: AddressMap | None = None
    allowed_addresses: Callable[[str, int], bool] | None = None
