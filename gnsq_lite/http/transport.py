"""Adds a deadline for the whole call to urllib3, and translates urllib3's errors.

A timeout of urllib3 limits a single ``recv``, so a server that sends single bytes never times out.  This module limits
each send and read to the remaining time of the call.  ``http_connect_timeout`` limits the connect to each address of a
host name, so a host with several unreachable addresses may take longer than ``http_timeout``.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import ssl
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any
from urllib.parse import unquote_to_bytes

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError as TransportError

from gnsq_lite.errors import (
    HTTPConnectError,
    HTTPConnectionLost,
    HTTPError,
    HTTPResponseError,
    HTTPTimeout,
)
from gnsq_lite.http.reply import shown
from gnsq_lite.options import HTTPOptions, TLSOptions, strict_verification_hint

#: Maximum bytes of the status line, the headers and the "100 Continue" responses before them.
_MAX_HEAD = 128 * 1024

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


@contextlib.contextmanager
def _after_handshake() -> Iterator[None]:
    """Convert a TLS error to ConnectionError.  translated() reports an SSLError as a request that was not sent."""
    try:
        yield
    except ssl.SSLError as error:
        raise ConnectionError(str(error)) from error


class _DeadlineReader(io.RawIOBase):
    """Raw file of a socket.  Its reads wait at most until the deadline, and read *limit* bytes, unless it is None."""

    def __init__(self, sock: Any) -> None:
        self._raw, self._sock = sock.makefile("rb", buffering=0), sock
        self.limit: int | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(remaining())
        with _after_handshake():
            count: int | None = self._raw.readinto(buffer)
        if self.limit is not None:
            self.limit -= count or 0
            if self.limit < 0:
                raise http.client.HTTPException(f"the headers have more than {_MAX_HEAD} bytes")
        return count

    def readall(self) -> bytes:
        """Raise HTTPException.  http.client calls this method for a chunk of size -1, to read without a size limit."""
        raise http.client.HTTPException("a read without a limit")

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()


class _DeadlineSocket:
    """A connected socket whose :meth:`sendall` waits at most until the deadline."""

    def __init__(self, sock: Any) -> None:
        self._sock = sock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def sendall(self, data: Any) -> None:
        self._sock.settimeout(remaining())  # replaces the connect timeout that urllib3 set
        with _after_handshake():
            self._sock.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_DeadlineReader(self._sock))


class _LimitedResponse(http.client.HTTPResponse):
    """Response whose status line and headers have a maximum size.

    http.client skips any number of "100 Continue" responses, which uses all of a core until the deadline.
    """

    fp: Any

    def begin(self) -> None:
        reader = self.fp.raw
        reader.limit = _MAX_HEAD
        super().begin()
        reader.limit = None


class _DeadlineConnection(HTTPConnection):
    response_class = _LimitedResponse

    def connect(self) -> None:
        super().connect()
        self.sock: Any = _DeadlineSocket(self.sock)


class _DeadlineTLSConnection(HTTPSConnection):
    response_class = _LimitedResponse

    def connect(self) -> None:
        super().connect()
        self.sock: Any = _DeadlineSocket(self.sock)


class TLSSettings:
    """urllib3's arguments for TLS.  They are made again when a file of the TLSOptions was replaced.

    Raises OptionError, also in :meth:`refresh`, for files that cannot be read.
    """

    def __init__(self, options: HTTPOptions) -> None:
        self._tls = TLSOptions() if options.tls is None or isinstance(options.tls, bool) else options.tls
        self._versions: object = None
        self.arguments: dict[str, Any] = {"ssl_context": self._tls}
        self.refresh()

    def refresh(self) -> bool:
        """Make the arguments again if a file was replaced, and return whether one was."""
        if not isinstance(self._tls, TLSOptions):
            return False
        versions = self._tls.file_versions()  # before the files are read, so that no later version is missed
        if versions == self._versions:
            return False
        self.arguments = {"ssl_context": self._tls.context(), "server_hostname": self._tls.server_hostname}
        self._versions = versions
        return True


def open_pool(scheme: str, host: str, port: int, size: int, tls: Mapping[str, Any]) -> urllib3.HTTPConnectionPool:
    """Make a pool of up to *size* idle connections to one server.  *tls* is ``TLSSettings.arguments``."""
    kind = urllib3.HTTPSConnectionPool if scheme == "https" else urllib3.HTTPConnectionPool
    pool = kind(host, port, maxsize=size, block=False, **tls)
    pool.ConnectionCls = _DeadlineTLSConnection if scheme == "https" else _DeadlineConnection
    return pool


def basic(userinfo: str) -> str:
    """Make the Authorization header (RFC 7617) from the percent-encoded ``user:password`` of a URL."""
    user, _, password = userinfo.partition(":")
    return "Basic " + b64encode(unquote_to_bytes(f"{user}:{password}")).decode("ascii")


def is_loopback(host: str) -> bool:
    """Return whether *host* is a loopback address: localhost, 127.0.0.0/8 or ::1."""
    parts = host.split(".")
    return host.lower() in ("localhost", "::1") or (
        parts[0] == "127" and len(parts) == 4 and all(part.isdigit() for part in parts)
    )


#: (classes of urllib3's exception or of its innermost cause, error to raise, its text).  The first match is used.
_TABLE: tuple[tuple[Any, type[HTTPError], str], ...] = (
    (urllib3.exceptions.NameResolutionError, HTTPConnectError, "the host name does not resolve"),
    (urllib3.exceptions.NewConnectionError, HTTPConnectError, "no connection"),  # a subclass of ConnectTimeoutError
    (urllib3.exceptions.ConnectTimeoutError, HTTPConnectError, "no connection in time"),
    ((urllib3.exceptions.ReadTimeoutError, TimeoutError), HTTPTimeout, "no complete response in time"),
    (urllib3.exceptions.SSLError, HTTPConnectError, "TLS failed"),
    (http.client.IncompleteRead, HTTPConnectionLost, "the response is incomplete"),
    (ConnectionError, HTTPConnectionLost, "the connection ended before the response"),  # also RemoteDisconnected
    # http.client raises ValueError for a chunk of negative size.
    ((http.client.HTTPException, ValueError), HTTPResponseError, "the response is not HTTP"),
    (OSError, HTTPConnectionLost, "the connection ended before the response"),
    (TransportError, HTTPResponseError, "the response is invalid"),
)


def translated(url: str, error: BaseException) -> HTTPError:
    """Translate an exception that urllib3 raised in a call to *url* into an HTTPError."""
    cause = _innermost(error)
    if "CERTIFICATE_VERIFY_FAILED" in str(cause):
        remedy = strict_verification_hint(str(cause)) or "; set TLSOptions(ca_file=...) to its CA"
        if "mismatch" in str(cause):
            remedy = "; set TLSOptions(server_hostname=...) to the certificate's host name"
        elif "expired" in str(cause) or "not yet valid" in str(cause):
            remedy = ""
        return HTTPConnectError(url, f"the certificate does not verify: {_reason(cause)}{remedy}")
    for theirs, ours, why in _TABLE:
        if isinstance(error, theirs) or isinstance(cause, theirs):
            port = urllib3.util.parse_url(url).port or 0
            # If an HTTP client connects to their TCP ports, nsqd and nsqlookupd close the connection.
            is_suspect = url.startswith("http:") and "ended before" in why
            hint = f"; is {port} a TCP port, and the HTTP port {port + 1}?" if is_suspect else ""
            return ours(url, f"{why}: {_reason(cause)}{hint}")
    return HTTPError(url, _reason(cause))


def _innermost(error: BaseException) -> BaseException:
    """Return the innermost cause of *error*.  Do not follow ``__context__``, which may be an error of the caller."""
    for _ in range(10):
        arguments = [argument for argument in error.args if isinstance(argument, BaseException)]
        inner = getattr(error, "original_error", None) or error.__cause__ or (arguments[0] if arguments else None)
        if inner is None:
            break
        error = inner
    return error


def _reason(cause: BaseException) -> str:
    """Return the text of *cause*, or its class name for an error of urllib3, whose text contains URLs and reprs."""
    text = getattr(cause, "verify_message", None) or getattr(cause, "strerror", None)
    if not text:
        text = type(cause).__name__ if isinstance(cause, TransportError) else str(cause) or type(cause).__name__
    return shown(text)
