"""urllib3 with one deadline for the whole call, the choice of a proxy, and its errors as ours.

urllib3's timeouts limit one ``recv`` each, so a server that sends a byte now and then is never timed out.  Here the
response is read piece by piece, and each piece has the remaining time of the call.  Connecting is limited by
``http_connect_timeout`` for each address of a name.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any
from urllib.parse import unquote_to_bytes, urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError as TransportError
from urllib3.util import parse_url

from gnsq_lite.errors import (
    HTTPCertificateError,
    HTTPConnectError,
    HTTPConnectionLost,
    HTTPError,
    HTTPResponseError,
    HTTPTimeout,
    OptionError,
)
from gnsq_lite.http.reply import shown
from gnsq_lite.options import HTTPOptions, TLSOptions, format_address

_deadline: ContextVar[float] = ContextVar("gnsq_lite_http_deadline")


@contextlib.contextmanager
def deadline(seconds: float) -> Iterator[Callable[[], float]]:
    """Limit all sends and reads of the block together to *seconds*; yield a function that returns the seconds left."""
    end = time.monotonic() + seconds
    token = _deadline.set(end)
    try:
        yield lambda: end - time.monotonic()
    finally:
        _deadline.reset(token)


def remaining() -> float:
    """Return the seconds left until the current deadline.  Raises TimeoutError when there are none."""
    left = _deadline.get() - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


class _DeadlineReader(io.RawIOBase):
    """Raw file of a socket; each read waits at most until the deadline."""

    def __init__(self, sock: Any) -> None:
        self._raw, self._sock = sock.makefile("rb", buffering=0), sock

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(remaining())
        count: int | None = self._raw.readinto(buffer)
        return count

    def readall(self) -> bytes:
        """Raise HTTPException: http.client would call this for a chunk of size -1, and read without a limit."""
        raise http.client.HTTPException("a read without a limit")

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()


class _DeadlineSocket:
    """A connected socket; each send and each read of its file waits at most until the deadline."""

    def __init__(self, sock: Any) -> None:
        self._sock = sock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def sendall(self, data: Any) -> None:
        self._sock.settimeout(remaining())  # urllib3 has set the time limit of connecting
        self._sock.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_DeadlineReader(self._sock))


class _DeadlineConnection(HTTPConnection):
    def connect(self) -> None:
        super().connect()
        self.sock: Any = _DeadlineSocket(self.sock)


class _DeadlineTLSConnection(HTTPSConnection):
    def connect(self) -> None:
        super().connect()
        self.sock: Any = _DeadlineSocket(self.sock)


def tls_settings(options: HTTPOptions) -> dict[str, Any]:
    """Return urllib3's arguments for TLS.  Raises OptionError for files that cannot be read."""
    tls = TLSOptions() if options.tls is None or isinstance(options.tls, bool) else options.tls
    if not isinstance(tls, TLSOptions):
        return {"ssl_context": tls}
    return {"ssl_context": tls.context(), "server_hostname": tls.server_hostname}


def open_pool(scheme: str, host: str, port: int, options: HTTPOptions, tls: dict[str, Any]) -> urllib3.PoolManager:
    """Return a pool manager for one server: with *tls* of :func:`tls_settings`, through the environment's proxy or not.

    Raises OptionError for a proxy of a kind that is not supported.
    """
    settings: dict[str, Any] = {"maxsize": options.http_pool_size, "num_pools": 2, "block": False, **tls}
    proxy = proxy_for(scheme, host, port) if options.environment_proxies else None
    manager: urllib3.PoolManager
    if proxy is None:
        manager = urllib3.PoolManager(**settings)
    else:
        url = parse_url(proxy)
        headers = {"Proxy-Authorization": basic(url.auth)} if url.auth else None
        manager = urllib3.ProxyManager(url._replace(auth=None).url, proxy_headers=headers, **settings)
    pool = manager.connection_from_url(f"{scheme}://{format_address((host, port))}")
    pool.ConnectionCls = _DeadlineTLSConnection if pool.scheme == "https" else _DeadlineConnection
    return manager


def basic(userinfo: str) -> str:
    """Return the Authorization header for a URL's percent-encoded ``user:password``: UTF-8 as in RFC 7617."""
    user, _, password = userinfo.partition(":")
    return "Basic " + b64encode(unquote_to_bytes(f"{user}:{password}")).decode("ascii")


def proxy_for(scheme: str, host: str, port: int) -> str | None:
    """Return the URL of the proxy in HTTP_PROXY, HTTPS_PROXY and NO_PROXY for this server, or None.

    Loopback addresses are never proxied, as in Go's net/http.  Raises OptionError for other than http and https.
    """
    if is_loopback(host) or proxy_bypass(f"{host}:{port}") or proxy_bypass(host):
        return None
    proxy = getproxies().get(scheme)
    if not proxy:
        return None
    if "://" not in proxy:
        proxy = f"http://{proxy}"
    if urlsplit(proxy).scheme not in ("http", "https"):
        raise OptionError(f"{scheme}_proxy", urlsplit(proxy).scheme, "only http and https proxies are supported")
    return proxy


def is_loopback(host: str) -> bool:
    """Whether *host* is this machine's loopback: localhost, 127.0.0.0/8 or ::1."""
    parts = host.split(".")
    return host.lower() in ("localhost", "::1") or (
        parts[0] == "127" and len(parts) == 4 and all(part.isdigit() for part in parts)
    )


#: What urllib3 raised, or its innermost cause, and the error for the caller.  The first match counts.
_TABLE: tuple[tuple[type[BaseException], type[HTTPError], str], ...] = (
    (urllib3.exceptions.NameResolutionError, HTTPConnectError, "the host name does not resolve"),
    (urllib3.exceptions.NewConnectionError, HTTPConnectError, "no connection"),  # a kind of ConnectTimeoutError
    (urllib3.exceptions.ConnectTimeoutError, HTTPConnectError, "no connection in time"),
    (urllib3.exceptions.ProxyError, HTTPConnectError, "the proxy gives no connection"),
    (urllib3.exceptions.LocationParseError, HTTPConnectError, "the address cannot be used"),
    (urllib3.exceptions.ReadTimeoutError, HTTPTimeout, "no whole answer in time"),
    (TimeoutError, HTTPTimeout, "no whole answer in time"),
    (urllib3.exceptions.SSLError, HTTPConnectError, "TLS failed"),
    (http.client.IncompleteRead, HTTPConnectionLost, "the answer ended early"),
    (ConnectionError, HTTPConnectionLost, "the connection ended before the answer"),  # RemoteDisconnected is one
    (http.client.HTTPException, HTTPResponseError, "the answer is not HTTP"),
    (ValueError, HTTPResponseError, "the answer is not HTTP"),  # of http.client, for a chunk of a negative size
    (OSError, HTTPConnectionLost, "the connection ended before the answer"),
    (TransportError, HTTPResponseError, "the answer is not understood"),
)


def translated(url: str, error: BaseException) -> HTTPError:
    """Return the HTTPError for what urllib3 raised in a call to *url*."""
    cause = _innermost(error)
    if "CERTIFICATE_VERIFY_FAILED" in str(cause):
        remedy = "; name its CA in TLSOptions(ca_file=...)"
        if "mismatch" in str(cause):
            remedy = "; set TLSOptions(server_hostname=...) to the name it is for"
        elif "expired" in str(cause) or "not yet valid" in str(cause):
            remedy = ""
        return HTTPCertificateError(url, f"the certificate does not verify: {_reason(cause)}{remedy}")
    for theirs, ours, why in _TABLE:
        if isinstance(error, theirs) or isinstance(cause, theirs):
            port = urllib3.util.parse_url(url).port
            # The TCP ports of nsqd and nsqlookupd close the connection of a client that speaks HTTP.
            hint = f"; is {port} a TCP port, and the HTTP port {port + 1}?" if port and "ended before" in why else ""
            return ours(url, f"{why}: {_reason(cause)}{hint}")
    return HTTPError(url, _reason(cause))


def _innermost(error: BaseException) -> BaseException:
    """Return the first cause of *error*.  ``__context__`` is not followed: it may be the caller's own exception."""
    for _ in range(10):
        arguments = [argument for argument in error.args if isinstance(argument, BaseException)]
        inner = getattr(error, "original_error", None) or error.__cause__ or (arguments[0] if arguments else None)
        if inner is None:
            break
        error = inner
    return error


def _reason(cause: BaseException) -> str:
    """Return the text of *cause*, without urllib3's own texts, which contain URLs and reprs of objects."""
    text = getattr(cause, "verify_message", None) or getattr(cause, "strerror", None)
    if not text:
        text = type(cause).__name__ if isinstance(cause, TransportError) else str(cause) or type(cause).__name__
    return shown(text)
