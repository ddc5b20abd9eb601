"""Flags that several commands share; their names are those of nsq's own utilities."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from gnsq_lite.keywords import url_list, with_environment
from gnsq_lite.options import TLSOptions

F = TypeVar("F", bound=Callable[..., Any])

_ADDRESSES = (
    click.option("--nsqd-tcp-address", "nsqds", multiple=True, metavar="HOST:PORT", help="An nsqd; may be repeated."),
    click.option(
        "--lookupd-http-address", "lookupds", multiple=True, metavar="HOST:PORT", help="A nsqlookupd; may be repeated."
    ),
)

_SECURITY = (
    click.option("--tls", is_flag=True, help="Use TLS, verified; fail where nsqd does not offer it."),
    click.option("--tls-root-ca-file", metavar="FILE", help="CAs to trust instead of the system's; implies --tls."),
    click.option("--tls-cert", metavar="FILE", help="Client certificate; implies --tls."),
    click.option("--tls-key", metavar="FILE", help="Key of the client certificate."),
    click.option("--compression", type=click.Choice(["snappy", "deflate"]), help="Compress the connection."),
    click.option("--auth-secret", metavar="SECRET", help="AUTH secret; better in the environment: NSQ_AUTH_SECRET."),
)


def _add(options: Iterable[Callable[[F], F]], function: F) -> F:
    for option in reversed(tuple(options)):
        function = option(function)
    return function


def addresses(function: F) -> F:
    """Add --nsqd-tcp-address and --lookupd-http-address."""
    return _add(_ADDRESSES, function)


def security(function: F) -> F:
    """Add the flags of TLS, compression and AUTH."""
    return _add(_SECURITY, function)


def where(nsqds: tuple[str, ...], lookupds: tuple[str, ...]) -> dict[str, Any]:
    """Return the address keywords of a Reader or Writer."""
    return {"nsqd_tcp_addresses": list(nsqds) or None, "lookupd_http_addresses": list(lookupds) or None}


def lookupd_urls(lookupds: tuple[str, ...]) -> list[str]:
    """Return the nsqlookupds to ask: the flags, else NSQ_LOOKUPD_HTTP_ADDRESSES, else 127.0.0.1:4161."""
    return url_list(list(lookupds) or os.environ.get("NSQ_LOOKUPD_HTTP_ADDRESSES") or "127.0.0.1:4161")


def uses_lookupd(nsqds: tuple[str, ...], lookupds: tuple[str, ...]) -> bool:
    """Whether a Reader with these flags would ask nsqlookupds."""
    return bool(with_environment(nsqds, lookupds)[1])


def secured(options: dict[str, Any]) -> dict[str, Any]:
    """Take the security flags out of *options* and return them as keywords of a Reader or Writer."""
    ca, cert, key = (options.pop(name) for name in ("tls_root_ca_file", "tls_cert", "tls_key"))
    if key and not cert:
        raise click.UsageError("--tls-key needs --tls-cert")
    tls = options.pop("tls") or bool(ca or cert)
    secret = options.pop("auth_secret") or os.environ.get("NSQ_AUTH_SECRET")
    return {
        "tls": TLSOptions(ca_file=ca, cert_file=cert, key_file=key) if tls else None,
        "compression": options.pop("compression"),
        "auth_secret": secret or None,
    }
