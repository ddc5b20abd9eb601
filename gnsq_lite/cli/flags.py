"""Flags that several commands share.  NSQ's utilities use the same names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from gnsq_lite.cli.completion import topic_names
from gnsq_lite.cli.params import CONNECTION, OUTPUT, SECURITY, Duration, option
from gnsq_lite.keywords import url_list
from gnsq_lite.options import TLSOptions

F = TypeVar("F", bound=Callable[..., Any])

_NSQDS = option(
    "--nsqd-tcp-address", "nsqds", multiple=True, metavar="HOST:PORT", section=CONNECTION, help="An nsqd; repeatable."
)
lookupds = option(
    "--lookupd-http-address",
    "lookupds",
    multiple=True,
    metavar="HOST:PORT",
    section=CONNECTION,
    help="An nsqlookupd; repeatable.",
)
nsqd_http = option(
    "--nsqd-http-address",
    "nsqd_http",
    multiple=True,
    metavar="HOST:PORT",
    section=CONNECTION,
    help="HTTP address of an nsqd; repeatable.",
)
as_json = option("--json", "as_json", is_flag=True, section=OUTPUT, help="Print JSON.")
topics = option(
    "--topic",
    "topics",
    multiple=True,
    required=True,
    shell_complete=topic_names,
    help="Topic to read; repeatable.",
)
http_timeout = option(
    "--http-timeout",
    type=Duration(low=0.001, high=3600.0),
    default="10s",
    show_default=True,
    section=CONNECTION,
    help="Time limit of each HTTP request.",
)
publish_timeout = option(
    "--timeout",
    type=Duration(low=0.1),
    default="15s",
    show_default=True,
    section=CONNECTION,
    help="Time limit of each publish.",
)

_SECURITY = (
    option("--tls", is_flag=True, section=SECURITY, help="Use TLS and verify nsqd; fail if nsqd does not offer TLS."),
    option(
        "--tls-root-ca-file",
        metavar="FILE",
        section=SECURITY,
        help="File of trusted CAs, instead of the system's; implies --tls.",
    ),
    option("--tls-cert", metavar="FILE", section=SECURITY, help="Client certificate; implies --tls."),
    option("--tls-key", metavar="FILE", section=SECURITY, help="Key of the client certificate."),
    option(
        "--compression", type=click.Choice(["snappy", "deflate"]), section=SECURITY, help="Compress the connection."
    ),
    option(
        "--auth-secret",
        metavar="SECRET",
        section=SECURITY,
        help="AUTH secret; prefer the environment variable NSQ_AUTH_SECRET.",
    ),
)

_DIALECT = option(
    "--dialect",
    type=click.Choice(["nsq", "youzan"]),
    default="nsq",
    show_default=True,
    section=CONNECTION,
    help="Protocol of plain NSQ or of Youzan's NSQ.",
)


def _add(options: Iterable[Callable[[F], F]], function: F) -> F:
    for one in reversed(tuple(options)):
        function = one(function)
    return function


def addresses(function: F) -> F:
    """Add --nsqd-tcp-address and --lookupd-http-address."""
    return _add((_NSQDS, lookupds), function)


def security(function: F) -> F:
    """Add the flags of the dialect, TLS, compression and AUTH."""
    return _add((_DIALECT, *_SECURITY), function)


def where(nsqds: tuple[str, ...], lookupds: tuple[str, ...]) -> dict[str, Any]:
    """Return the address keywords of a Reader or Writer."""
    return {"nsqd_tcp_addresses": list(nsqds) or None, "lookupd_http_addresses": list(lookupds) or None}


def lookupd_urls(lookupds: tuple[str, ...]) -> list[str]:
    """Return the nsqlookupds given by the flags, else by NSQ_LOOKUPD_HTTP_ADDRESSES, else 127.0.0.1:4161."""
    return url_list(list(lookupds) or os.environ.get("NSQ_LOOKUPD_HTTP_ADDRESSES") or "127.0.0.1:4161")


def secured(options: dict[str, Any]) -> dict[str, Any]:
    """Remove the flags of :func:`security` from *options*, and return them as keywords of a Reader or Writer."""
    ca, cert, key = (options.pop(name) for name in ("tls_root_ca_file", "tls_cert", "tls_key"))
    if key and not cert:
        raise click.UsageError("--tls-key needs --tls-cert")
    tls = options.pop("tls") or bool(ca or cert)
    secret = options.pop("auth_secret") or os.environ.get("NSQ_AUTH_SECRET")
    return {
        "dialect": options.pop("dialect"),
        "tls": TLSOptions(ca_file=ca, cert_file=cert, key_file=key) if tls else None,
        "compression": options.pop("compression"),
        "auth_secret": secret or None,
    }
