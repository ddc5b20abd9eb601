"""Checked settings for the cores of Readers and Writers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

from gnsq_lite.dialect import Dialect, Endpoint
from gnsq_lite.errors import NSQError
from gnsq_lite.keywords import Addresses, check_callables
from gnsq_lite.message import Message
from gnsq_lite.net.os_threads import check_process
from gnsq_lite.option_fields import check_ranges, documented, hook
from gnsq_lite.options import (
    Address,
    ConnectionOptions,
    DialectName,
    LookupOptions,
    ReconnectOptions,
    TLSOptions,
    parse_address,
)
from gnsq_lite.wire.identify import build_identify

#: Maps the (host, port) of an nsqd in nsqlookupd's answer to the address to connect to.
AddressMap = Callable[[str, int], Address] | Mapping[str, str]


def check_connection(options: ConnectionOptions, lookup: LookupOptions) -> None:
    """Raise OptionError if a TLS file cannot be read, ``extra_identify`` is invalid or the process is unsuitable.

    Without this check the first connection would raise the error.
    """
    check_process()
    for tls in (options.tls, lookup.lookupd_tls):
        if isinstance(tls, TLSOptions):
            tls.context()
    build_identify(options, hostname_default="")


@dataclass(frozen=True, kw_only=True)
class SharedOptions:
    """Options of Readers and Writers that concern discovery, addresses and the dialect."""

    lookupd_http_addresses: Addresses | None = documented(
        None, "nsqlookupds that list the nsqds, each written as in nsqd_tcp_addresses or as an http(s) URL"
    )
    dialect: DialectName | Dialect = documented("nsq", "'nsq', 'youzan', or a YouzanDialect")
    address_map: AddressMap | None = documented(
        None, "addresses to use instead of those that nsqds announce: a dict, or a function of (host, port)"
    )
    allowed_addresses: Callable[[str, int], bool] | None = documented(
        None, "function of (host, port) that returns whether the client may connect to a listed nsqd or nsqlookupd"
    )

    def __post_init__(self) -> None:
        check_ranges(self)
        check_callables(address_map=self.address_map, allowed_addresses=self.allowed_addresses)


@dataclass(frozen=True, kw_only=True)
class CoreSettings(SharedOptions):
    """Checked settings for the core of a Reader or Writer."""

    dialect: Dialect
    endpoints: Sequence[Endpoint]
    lookupds: Sequence[str]
    connection: ConnectionOptions
    reconnect: ReconnectOptions
    lookup: LookupOptions


@dataclass(frozen=True, kw_only=True)
class Hooks:
    """Callbacks of the user, which run in greenlets of the I/O loop and must not block it.

    ``on_failure`` may run in a handler's thread.  The library logs exceptions of the callbacks.
    """

    on_connected: Callable[[str], None] | None = hook("address", "the Reader is connected and subscribed to an nsqd")
    on_disconnected: Callable[[str, NSQError], None] | None = hook(
        "address, error", "a connection was lost or not opened because of *error*, except while the Reader closes"
    )
    on_error: Callable[[NSQError], None] | None = hook("error", "a connection failed, or nsqd refused a late answer")
    on_failure: Callable[[Message, BaseException], None] | None = hook(
        "message, error",
        "a handler or on_give_up raised *error* (not Requeue); the message was requeued or given up.  Runs in the"
        " handler's thread or greenlet; in another thread if time_limit ended a handler in a thread; in the I/O loop in"
        " a monkey-patched process with handler_pool='thread'",
    )
    on_backoff: Callable[[float], None] | None = hook(
        "seconds", "backoff pauses the Reader, or a partition, for *seconds*; 0.0: backoff is over"
    )

    def __post_init__(self) -> None:
        check_callables(**{each.name: getattr(self, each.name) for each in fields(self)})


def mapped(address_map: AddressMap | None, endpoint: Endpoint) -> Address | None:
    """Return the address to which *address_map* maps *endpoint*, or None.  Raises NSQError if the map fails.

    *address_map* is a function of (host, port), or a dict from "host:port" or "host" to "host:port" or "host".
    """
    if address_map is None:
        return None
    try:
        if callable(address_map):
            found: Address | str | None = address_map(endpoint.host, endpoint.port)
        else:
            found = address_map.get(f"{endpoint.host}:{endpoint.port}") or address_map.get(endpoint.host)
        return None if found is None else parse_address(found, default_port=endpoint.port, option="address_map")
    except Exception as error:
        raise NSQError(f"{endpoint}: address_map failed: {type(error).__name__}: {error}") from error


def without_credentials(address: str) -> str:
    """Remove ``user:password@`` from a URL.  Return any other address unchanged."""
    return re.sub("://[^/]*@", "://", address)
