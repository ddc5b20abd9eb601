"""Adds a deadline for the whole call to urllib3, chooses the proxy, and translates urllib3's errors.

A timeout of urllib3 limits a single ``recv``, so a server that sends single bytes never times out.  This module limits
each read to the remaining time of the call.  ``http_connect_timeout`` limits the connect to each address of a host
name.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import time
from base64 import b64encode
from collections.abc import Iterator
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
def deadline(seconds: float) -> Iterator[None]:
    """Limit the total time of all sends and reads in the block to *seconds*."""
    token = _deadline.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _deadline.reset(token)


def remaining() -> float:
    """Return the seconds left until the current deadline.  Raises TimeoutError after the deadline."""
    left = _deadline.get() - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


class _DeadlineReader(io.RawIOBase):
    """Raw file of a socket.  Its reads wait at most until the deadline."""

    def __init__(self, sock: Any) -> None:
        self._raw, self._sock = sock.makefile("rb", buffering=0), sock

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(remaining())
        count: int | None = self._raw.readinto(buffer)
        return count

    def readall(self) -> bytes:
        """Raise HTTPException.  http.client calls this method for a chunk of size -1, to read without a size limit."""
        raise http.client.HTTPException("a read without a limit")

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()


class _DeadlineSocket:
    """A connected socket.  Sends, and reads from the file of makefile(), wait at most until the deadline."""

    def __init__(self, sock: Any) -> None:
        self._sock = sock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def sendall(self, data: Any) -> None:
        self._sock.settimeout(remaining())  # replaces the connect timeout that urllib3 set
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
    """Make urllib3's arguments for TLS.  Raises OptionError for files that cannot be read."""
    tls = TLSOptions() if options.tls is None or isinstance(options.tls, bool) else options.tls
    if not isinstance(tls, TLSOptions):
        return {"ssl_context": tls}
    return {"ssl_context": tls.context(), "server_hostname": tls.server_hostname}


def open_pool(scheme: str, host: str, port: int, options: HTTPOptions, tls: dict[str, Any]) -> urllib3.PoolManager:
    """Make a pool manager for one server, which uses the proxy of the environment if the options allow this.

    *tls* is the result of :func:`tls_settings`.  Raises OptionError for an unsupported kind of proxy.
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
    """Make the Authorization header (RFC 7617) from the percent-encoded ``user:password`` of a URL."""
    user, _, password = userinfo.partition(":")
    return "Basic " + b64encode(unquote_to_bytes(f"{user}:{password}")).decode("ascii")


def proxy_for(scheme: str, host: str, port: int) -> str | None:
    """Return the URL of the proxy for a server from HTTP_PROXY, HTTPS_PROXY and NO_PROXY, or None.

    A loopback address never has a proxy, as in Go's net/http.  Raises OptionError if the proxy is not http or https.
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
    """Whether *host* is a loopback address: localhost, 127.0.0.0/8 or ::1."""
    parts = host.split(".")
    return host.lower() in ("localhost", "::1") or (
        parts[0] == "127" and len(parts) == 4 and all(part.isdigit() for part in parts)
    )


#: (class of urllib3's exception or of its innermost cause, error to raise, its text).  The first match is used.
_TABLE: tuple[tuple[type[BaseException], type[HTTPError], str], ...] = (
    (urllib3.exceptions.NameResolutionError, HTTPConnectError, "the host name does not resolve"),
    (urllib3.exceptions.NewConnectionError, HTTPConnectError, "no connection"),  # a subclass of ConnectTimeoutError
    (urllib3.exceptions.ConnectTimeoutError, HTTPConnectError, "no connection in time"),
    (urllib3.exceptions.ProxyError, HTTPConnectError, "the proxy refused the connection"),
    (urllib3.exceptions.LocationParseError, HTTPConnectError, "the address cannot be used"),
    (urllib3.exceptions.ReadTimeoutError, HTTPTimeout, "no complete response in time"),
    (TimeoutError, HTTPTimeout, "no complete response in time"),
    (urllib3.exceptions.SSLError, HTTPConnectError, "TLS failed"),
    (http.client.IncompleteRead, HTTPConnectionLost, "the response is incomplete"),
    (ConnectionError, HTTPConnectionLost, "the connection ended before the response"),  # also RemoteDisconnected
    (http.client.HTTPException, HTTPResponseError, "the response is not HTTP"),
    (ValueError, HTTPResponseError, "the response is not HTTP"),  # http.client: a chunk of negative size
    (OSError, HTTPConnectionLost, "the connection ended before the response"),
    (TransportError, HTTPResponseError, "the response is invalid"),
)


def translated(url: str, error: BaseException) -> HTTPError:
    """Translate an exception that urllib3 raised in a call to *url* into an HTTPError."""
    cause = _innermost(error)
    if "CERTIFICATE_VERIFY_FAILED" in str(cause):
        remedy = "; set TLSOptions(ca_file=...) to its CA"
        if "mismatch" in str(cause):
            remedy = "; set TLSOptions(server_hostname=...) to the certificate's host name"
        elif "expired" in str(cause) or "not yet valid" in str(cause):
            remedy = ""
        return HTTPCertificateError(url, f"the certificate does not verify: {_reason(cause)}{remedy}")
    for theirs, ours, why in _TABLE:
        if isinstance(error, theirs) or isinstance(cause, theirs):
            port = urllib3.util.parse_url(url).port
            # If an HTTP client connects to their TCP ports, nsqd and nsqlookupd close the connection.
            hint = f"; is {port} a TCP port, and the HTTP port {port + 1}?" if port and "ended before" in why else ""
            return ours(url, f"{why}: {_reason(cause)}{hint}")
    return HTTPError(url, _reason(cause))


def _innermost(error: BaseException) -> BaseException:
    """Return the innermost cause of *error*.  Ignore ``__context__``, which may be an exception of the caller."""
    for _ in range(10):
        arguments = [argument for argument in error.args if isinstance(argument, BaseException)]
        inner = getattr(error, "original_error", None) or error.__cause__ or (arguments[0] if arguments else None)
        if inner is None:
            break
        error = inner
    return error


def _reason(cause: BaseException) -> str:
    """Return the text of *cause*.  Replace urllib3's own texts, which contain URLs and reprs, by the class name."""
    text = getattr(cause, "verify_message", None) or getattr(cause, "strerror", None)
    if not text:
        text = type(cause).__name__ if isinstance(cause, TransportError) else str(cause) or type(cause).__name__
    return shown(text)
