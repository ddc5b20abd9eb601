"""Settings that the cores of Readers and Writers share: checked and complete."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from gnsq_lite.errors import NSQError, OptionError
from gnsq_lite.keywords import check_callables
from gnsq_lite.message import Message
from gnsq_lite.option_fields import hook
from gnsq_lite.options import (
    Address,
    ConnectionOptions,
    HTTPOptions,
    LookupOptions,
    TLSOptions,
)
from gnsq_lite.wire.identify import build_identify

#: Maps the (host, port) that nsqlookupd announces to the one to connect to.
AddressMap = Callable[[str, int], Address] | Mapping[str, str]


def check_connection(options: ConnectionOptions) -> None:
    """Raise OptionError, at construction and not at the first connection, for what only shows when it is used.

    That is a file that cannot be read, and what ``extra_identify`` may not hold.
    """
    if isinstance(options.tls, TLSOptions):
        options.tls.context()
    build_identify(options, hostname_default="")


def check_lookup(options: LookupOptions) -> None:
    """Raise OptionError, at construction, for what no client of an nsqlookupd takes."""
    tls = options.lookupd_tls
    try:
        HTTPOptions(tls=tls, auth_token=options.lookupd_token)
    except OptionError as error:
        name = {"tls": "lookupd_tls", "auth_token": "lookupd_token"}[error.name]
        raise OptionError(name, error.value, error.why) from None
    if isinstance(tls, TLSOptions):
        tls.context()


@dataclass(frozen=True, slots=True)
class Hooks:
    """Callbacks of the user; each is called in the I/O loop and must not wait.  What one raises is logged."""

    on_connected: Callable[[str], Any] | None = hook("address", "an nsqd is connected and subscribed")
    on_disconnected: Callable[[str, NSQError], Any] | None = hook(
        "address, error", "a connection was lost or could not be made; *error* says why"
    )
    on_error: Callable[[NSQError], Any] | None = hook(
        "error", "a connection was lost, nsqd refused a late answer, or an ordered partition was stopped"
    )
    on_failure: Callable[[Message, BaseException], Any] | None = hook(
        "message, error", "a handler raised *error* (not Requeue), or on_give_up did; the message has been requeued"
    )
    on_backoff: Callable[[float], Any] | None = hook(
        "seconds", "backoff pauses the Reader for so many seconds; 0.0: backoff is over"
    )
    on_slow: Callable[[Message, float], Any] | None = hook(
        "message, seconds", "its handler has run for *seconds*, the soft_time_limit, and runs on"
    )

    def __post_init__(self) -> None:
        check_callables(**{each.name: getattr(self, each.name) for each in fields(self)})
