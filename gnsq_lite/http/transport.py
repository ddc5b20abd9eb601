"""HTTP/1.1 connections with a deadline for the whole call, and the errors of a call.

A socket's timeout limits a single ``recv``, so a server that sends single bytes never times out.  This module limits
each send and read to the remaining time of the call.  ``http_connect_timeout`` limits the connect to each address of a
host name.
"""

from __future__ import annotations

import http.client
import io
import select
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from gnsq_lite.errors import (
    HTTPCertificateError,
    HTTPConnectError,
    HTTPConnectionLost,
    HTTPError,
    HTTPResponseError,
    HTTPTimeout,
)
from gnsq_lite.http.reply import shown


class _DeadlineReader(io.RawIOBase):
    """Raw file of a socket whose reads wait at most *remaining()* seconds."""

    def __init__(self, sock: Any, remaining: Callable[[], float]) -> None:
        self._raw, self._sock, self._remaining = sock.makefile("rb", buffering=0), sock, remaining

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(self._remaining())
        count: int | None = self._raw.readinto(buffer)
        return count

    def readall(self) -> bytes:
        """Raise HTTPException, because http.client calls this for a chunk of size -1, to read without a limit."""
        raise http.client.HTTPException("a read without a limit")

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()


class _DeadlineSocket:
    """A connected socket whose sends, and reads of whose file, wait at most *remaining()* seconds."""

    def __init__(self, sock: Any, remaining: Callable[[], float]) -> None:
        self._sock, self._remaining = sock, remaining
        self.fileno, self.close = sock.fileno, sock.close

    def sendall(self, data: Any) -> None:
        self._sock.settimeout(self._remaining())
        self._sock.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_DeadlineReader(self._sock, self._remaining))


class Connection(http.client.HTTPConnection):
    """A connection to one server.  Set :attr:`ends`, the deadline in monotonic seconds, before each call.

    *tls* is the context for https; *server_hostname* is the name to verify, by default *host*.
    """

    auto_open = 0

    def __init__(
        self, host: str, port: int, connect_timeout: float, tls: ssl.SSLContext | None, server_hostname: str | None
    ) -> None:
        super().__init__(host, port)
        self._connect_timeout, self._tls, self._server_hostname = connect_timeout, tls, server_hostname
        self.default_port = 80 if tls is None else 443  # omitted from the Host header
        self.ends = 0.0
        self.sock: Any = None

    def remaining(self) -> float:
        """Return the seconds left until the deadline.  Raises TimeoutError after the deadline."""
        left = self.ends - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        return left

    def connect(self) -> None:
        """Open the connection.  Raises OSError, or UnicodeError for an invalid host name."""
        sock = socket.create_connection((self.host, self.port), min(self._connect_timeout, self.remaining()))
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                sock.settimeout(min(self._connect_timeout, self.remaining()))
                sock = self._tls.wrap_socket(sock, server_hostname=self._server_hostname or self.host)
        except BaseException:
            sock.close()
            raise
        self.sock = _DeadlineSocket(sock, self.remaining)

    def is_ended(self) -> bool:
        """Whether the server has closed the idle connection, or sent bytes that no request asked for."""
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        return bool(poll.poll(0))

    def send_request(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None
    ) -> http.client.HTTPResponse:
        """Send a request; return the response, whose body is not read yet.  Raises OSError, HTTPException."""
        with suppress(BrokenPipeError):  # a server that refuses a large body responds before it has read the body
            self.request(method, target, body, headers)
        return self.getresponse()


def is_loopback(host: str) -> bool:
    """Whether *host* is a loopback address: localhost, 127.0.0.0/8 or ::1."""
    parts = host.split(".")
    return host.lower() in ("localhost", "::1") or (
        parts[0] == "127" and len(parts) == 4 and all(part.isdigit() for part in parts)
    )


def connect_error(url: str, error: Exception) -> HTTPError:
    """Translate an exception of :meth:`Connection.connect` in a call to *url*."""
    if isinstance(error, ssl.SSLCertVerificationError):
        remedy = "; set TLSOptions(ca_file=...) to its CA"
        if "mismatch" in str(error):
            remedy = "; set TLSOptions(server_hostname=...) to the certificate's host name"
        elif "expired" in str(error) or "not yet valid" in str(error):
            remedy = ""
        return HTTPCertificateError(url, f"the certificate does not verify: {_reason(error)}{remedy}")
    why = "no connection"
    if isinstance(error, (socket.gaierror, UnicodeError)):
        why = "the host name does not resolve"
    elif isinstance(error, TimeoutError):
        why = "no connection in time"
    elif isinstance(error, ssl.SSLError):
        why = "TLS failed"
    return HTTPConnectError(url, f"{why}: {_reason(error)}")


def response_error(url: str, error: Exception) -> HTTPError:
    """Translate an exception of sending a request to *url* and reading the response."""
    if isinstance(error, TimeoutError):
        return HTTPTimeout(url, f"no complete response in time: {_reason(error)}")
    if isinstance(error, http.client.IncompleteRead):
        return HTTPConnectionLost(url, f"the response is incomplete: {_reason(error)}")
    if isinstance(error, OSError):  # http.client.RemoteDisconnected is also an OSError
        port = urlsplit(url).port
        # nsqd and nsqlookupd close an HTTP client's connection to their TCP ports.
        hint = f"; is {port} a TCP port, and the HTTP port {port + 1}?" if port else ""
        return HTTPConnectionLost(url, f"the connection ended before the response: {_reason(error)}{hint}")
    return HTTPResponseError(url, f"the response is not HTTP: {_reason(error)}")


def _reason(error: Exception) -> str:
    text = getattr(error, "verify_message", None) or getattr(error, "strerror", None)
    return shown(text or str(error) or type(error).__name__)
