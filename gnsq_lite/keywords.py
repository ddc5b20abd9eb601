"""Checks the keyword arguments of Reader and Writer, and splits them into option dataclasses."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from gnsq_lite.errors import OptionError
from gnsq_lite.options import (
    Address,
    TLSOptions,
    format_address,
    lookupd_address,
    parse_address,
    parse_url,
    shown_address,
)

T = TypeVar("T")

#: One address, or several.
Addresses = str | Address | Iterable[str | Address]

DEFAULT_TCP_PORT = 4150
DEFAULT_LOOKUPD_PORT = 4161


def check_names(known: Mapping[str, Any], names: Iterable[str], owner: Callable[..., Any]) -> None:
    """Raise OptionError for a keyword that is not in *names*, and suggest a similar name or parameter of *owner*."""
    allowed = set(names)
    for name, value in known.items():
        if name not in allowed:
            parameters = inspect.signature(owner).parameters.values()
            named = [each.name for each in parameters if each.kind is not each.VAR_KEYWORD]
            near = difflib.get_close_matches(name, [*allowed, *named], 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            shown = value if value is None or isinstance(value, (int, float)) else "<hidden>"  # may be a secret
            raise OptionError(name, shown, f"there is no such option{hint}")


def split(known: Mapping[str, Any], owner: Callable[..., Any], *kinds: type[Any]) -> list[Any]:
    """Make an instance of each dataclass in *kinds* from the keywords that are its fields.

    ``tls=True`` becomes TLSOptions(), and ``tls=False`` becomes None.  Raises OptionError for a keyword that no
    dataclass has.  The error suggests the closest field or parameter of *owner*.
    """
    names = {field.name: kind for kind in kinds for field in dataclasses.fields(kind)}
    check_names(known, names, owner)
    if isinstance(known.get("tls"), bool):
        known = {**known, "tls": TLSOptions() if known["tls"] else None}
    return [kind(**{n: v for n, v in known.items() if names[n] is kind}) for kind in kinds]


def address_list(given: Addresses | None, *, option: str, default_port: int) -> list[Address]:
    """Parse *given* into (host, port) pairs without duplicates.  Raises OptionError."""

    def read(one: str | Address) -> Address:
        return parse_address(one, default_port=default_port, option=option)

    return _read_each(given, read, option, "must be 'host:port' or a list of such addresses")


def url_list(given: Addresses | None) -> list[str]:
    """Check nsqlookupd addresses; return them as ``host:port`` or as http(s) URLs.  Raises OptionError."""
    option = "lookupd_http_addresses"

    def read(one: str | Address) -> str:
        one = lookupd_address(one)
        if isinstance(one, str) and one.startswith(("http://", "https://")):
            parse_url(one, option=option)
            return one
        return format_address(parse_address(one, default_port=DEFAULT_LOOKUPD_PORT, option=option))

    return _read_each(given, read, option, "must be 'host:port', a URL, or a list of such addresses")


def _read_each(given: Addresses | None, read: Callable[[str | Address], T], option: str, wanted: str) -> list[T]:
    """Apply *read* to each address, and remove duplicates.

    A comma in a password splits a URL into two addresses, and the first has no "@".  Therefore an error shows an
    address only if no address contains "@", "?" or "#".
    """
    if given is None:
        return []
    if isinstance(given, str):
        given = given.replace(",", " ").split()
    elif isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], int):
        given = [given]
    if not isinstance(given, Iterable) or isinstance(given, (bytes, bytearray)):
        raise OptionError(option, shown_address(given), wanted)
    listed = list(given)
    try:
        return list(dict.fromkeys(read(one) for one in listed))
    except OptionError as error:
        if shown_address(listed) is listed:
            raise
        why = error.why
    raise OptionError(option, "<hidden>", why)  # after the except block, so that no __context__ shows the password


def check_callables(**given: Any) -> None:
    """Raise OptionError for a value that is neither None nor a function.  ``address_map`` may also be a mapping."""
    for name, value in given.items():
        if value is None or (name == "address_map" and isinstance(value, Mapping)):
            continue
        if not callable(value):
            raise OptionError(name, value, f"must be a function{' or a dict' if name == 'address_map' else ''}")
        check_runs(name, value)


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether *function* is an ``async def``, or an object with ``async def __call__``."""
    return any(map(inspect.iscoroutinefunction, (function, type(function).__call__)))


def check_runs(option: str, function: Callable[..., Any], *, awaits: bool = False) -> None:
    """Raise OptionError for a function whose call does not run its body.

    These are generator functions, and unless the caller *awaits* the result, ``async def``.
    """
    for one in (function, type(function).__call__):
        if (inspect.iscoroutinefunction(one) and not awaits) or inspect.isasyncgenfunction(one):
            why = "is an async def, which the library does not await here: pass a function that calls asyncio.run()"
        elif inspect.isgeneratorfunction(one):
            why = "is a generator function (it contains yield): calling it does not run its body"
        else:
            continue
        raise OptionError(option, getattr(function, "__qualname__", function), why)


def with_environment(
    nsqds: Addresses | None, lookupds: Addresses | None, environ: Mapping[str, str] = os.environ
) -> tuple[Addresses | None, Addresses | None]:
    """Choose the addresses: the arguments, else the environment variables, else nsqd on this host (CFG-2).

    An argument that contains only spaces and commas raises OptionError.  Such an environment variable counts as unset.
    """
    if nsqds or lookupds:
        for name, given in (("nsqd_tcp_addresses", nsqds), ("lookupd_http_addresses", lookupds)):
            if isinstance(given, str) and given and not given.strip(", \t\r\n"):
                raise OptionError(name, given, "names no address")
        return nsqds, lookupds
    if environ.get("NSQ_LOOKUPD_HTTP_ADDRESSES", "").strip(", \t\r\n"):
        return None, environ["NSQ_LOOKUPD_HTTP_ADDRESSES"]
    return environ.get("NSQD_TCP_ADDRESSES", "").strip(", \t\r\n") or "127.0.0.1:4150", None


def key_bytes(key: Any) -> bytes | None:
    """Convert a partition key (Youzan) to bytes.  Raises OptionError."""
    if key is None or isinstance(key, bytes):
        return key
    if isinstance(key, str):
        try:
            return key.encode()
        except UnicodeEncodeError:
            raise OptionError("key", key, "must be text that can be encoded as UTF-8") from None
    raise OptionError("key", key, "must be str or bytes")
