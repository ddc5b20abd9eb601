"""Flags that several commands share; their names are those of nsq's own utilities."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from gnsq_lite.cli import goconfig
from gnsq_lite.cli.completion import channel_names, topic_names
from gnsq_lite.cli.goflags import CONNECTION, OUTPUT, SECURITY, Duration, option
from gnsq_lite.cli.output import errors
from gnsq_lite.keywords import url_list, with_environment
from gnsq_lite.options import HTTPOptions, TLSOptions

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
    help="An nsqd's HTTP; repeatable.",
)
as_json = option("--json", "as_json", is_flag=True, section=OUTPUT, help="Print JSON.")
topics = option(
    "--topic",
    "topics",
    multiple=True,
    required=True,
    shell_complete=topic_names,
    help="Topic to read; may be repeated.",
)
max_in_flight = option(
    "--max-in-flight",
    type=click.IntRange(1),
    default=200,
    show_default=True,
    section=CONNECTION,
    help="Most messages in flight.",
)


def status_every(what: str) -> Callable[[Any], Any]:
    """Return ``--status-every`` for a command that counts *what*, messages or calls."""
    return option(
        "--status-every",
        type=click.IntRange(0),
        default=250,
        show_default=True,
        section=OUTPUT,
        help=f"Print times after so many {what}; 0: never.",
    )


consumer_opts = option(
    "--consumer-opt",
    "consumer_opts",
    multiple=True,
    metavar="NAME,VALUE",
    section=CONNECTION,
    help="An option of go-nsq's Consumer; repeatable.",
)
producer_opts = option(
    "--producer-opt",
    "producer_opts",
    multiple=True,
    metavar="NAME,VALUE",
    section=CONNECTION,
    help="An option of go-nsq's Producer; repeatable.",
)

_SECURITY = (
    option("--tls", is_flag=True, section=SECURITY, help="Use TLS, verified; fail where nsqd does not offer it."),
    option(
        "--tls-root-ca-file",
        metavar="FILE",
        section=SECURITY,
        help="CAs to trust instead of the system's; implies --tls.",
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
        help="AUTH secret; better in the environment: NSQ_AUTH_SECRET.",
    ),
)


def _add(options: Iterable[Callable[[F], F]], function: F) -> F:
    for one in reversed(tuple(options)):
        function = one(function)
    return function


def addresses(function: F) -> F:
    """Add --nsqd-tcp-address and --lookupd-http-address."""
    return _add((_NSQDS, lookupds), function)


def security(function: F) -> F:
    """Add the flags of TLS, compression and AUTH."""
    return _add(_SECURITY, function)


def channel(default: str | None, text: str = "Channel to read.") -> Callable[[F], F]:
    """Return --channel with its default."""
    return option(
        "--channel", default=default, show_default=default is not None, shell_complete=channel_names, help=text
    )


def http_timeouts(request: float) -> Callable[[F], F]:
    """Return the flags of HTTP's time limits, which default to 2 seconds and to *request*."""

    def add(function: F) -> F:
        both = (("connect", "2s", "Time to connect."), ("request", f"{request:g}s", "Time for a whole call."))
        made = [
            option(
                f"--http-client-{name}-timeout",
                type=Duration(above=0.0),
                default=default,
                show_default=True,
                section=CONNECTION,
                help=text,
            )
            for name, default, text in both
        ]
        return _add(made, function)

    return add


def http_options(options: dict[str, Any]) -> HTTPOptions:
    """Take the flags of :func:`http_timeouts` out of *options*."""
    connect, request = (options.pop(f"http_client_{name}_timeout") for name in ("connect", "request"))
    return HTTPOptions(http_connect_timeout=connect, http_timeout=request)


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


def of_reader(options: dict[str, Any], **defaults: Any) -> dict[str, Any]:
    """Take --consumer-opt and the security flags out of *options*; return what they and *defaults* say together.

    A flag wins over --consumer-opt, and that over the defaults.
    """
    settings = {**defaults, **_with_opts(options, "consumer")}
    if "requeue_delay" in settings and "max_requeue_delay" in settings:
        settings["requeue_delay"] = min(settings["requeue_delay"], settings["max_requeue_delay"])
    return settings


def of_writer(options: dict[str, Any]) -> dict[str, Any]:
    """Take --producer-opt and the security flags out of *options*; return what they say together."""
    return _with_opts(options, "producer")


def _with_opts(options: dict[str, Any], kind: str) -> dict[str, Any]:
    options.pop("producer_opts" if kind == "consumer" else "consumer_opts", None)
    security = secured(options)
    found, notes = goconfig.keywords(options.pop(f"{kind}_opts"), flag=f"--{kind}-opt")
    for note in notes:
        errors.print(f"gnsq-lite: {note}", markup=False)
    return {**found, **{name: value for name, value in security.items() if value is not None}}
