"""urllib3 with a deadline for the call as a whole, and the choice of a proxy.

urllib3's timeouts bound one ``recv`` each, so a server that sends a byte now and then is never timed out: not in its
headers, not in its body, not in a trailer.  Here every send and every receive gets only what is left of the call's
own deadline.  (A name that resolves to several addresses may take ``http_connect_timeout`` for each of them.)
"""

from __future__ import annotations

import contextlib
import http.client
import io
import socket
import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import ConnectTimeoutError, LocationParseError, NameResolutionError, NewConnectionError
from urllib3.util import parse_url

from gnsq_lite.errors import OptionError
from gnsq_lite.http.credentials import basic
from gnsq_lite.options import HTTPOptions, TLSOptions

_deadline: ContextVar[float] = ContextVar("gnsq_lite_http_deadline")


@contextlib.contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Bound all reads and writes of the block, which runs in this thread or greenlet, by *seconds* together."""
    token = _deadline.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _deadline.reset(token)


def remaining() -> float:
    """Return the seconds left of the current deadline.  Raises TimeoutError when there are none."""
    left = _deadline.get() - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


class _DeadlineReader(io.RawIOBase):
    """A socket's raw file that never waits beyond the deadline."""

    def __init__(self, raw: Any, sock: Any) -> None:
        self._raw, self._sock = raw, sock

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(remaining())
        count: int | None = self._raw.readinto(buffer)
        return count

    def readall(self) -> bytes:
        """Raise HTTPException: nobody asks for all there is, but a chunk whose size is -1 would get it."""
        raise http.client.HTTPException("a read without a bound")

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()


class _DeadlineResponse(http.client.HTTPResponse):
    """Reads status line, headers, chunk sizes, body and trailers through a :class:`_DeadlineReader`."""

    def __init__(self, sock: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp = io.BufferedReader(_DeadlineReader(self.fp.detach(), sock))


class _DeadlineConnection(HTTPConnection):
    """Connects and sends within the deadline."""

    response_class = _DeadlineResponse

    def _new_conn(self) -> Any:
        """Connect.  gevent's function closes the socket of a greenlet that is killed meanwhile; urllib3's does not."""
        self.timeout: float = min(self.timeout or remaining(), remaining())
        host = self._dns_host
        try:
            sock = socket.create_connection((host, self.port), self.timeout, self.source_address)
        except socket.gaierror as error:
            raise NameResolutionError(self.host, self, error) from error
        except UnicodeError:
            raise LocationParseError(f"{host!r}, label empty or too long") from None
        except TimeoutError as error:
            raise ConnectTimeoutError(self, f"no connection to {host} in {self.timeout:g} s") from error
        except OSError as error:
            raise NewConnectionError(self, f"no connection to {host}: {error}") from error
        for option in self.socket_options or ():
            sock.setsockopt(*option)
        return sock

    @property
    def is_connected(self) -> bool:
        """Whether one that was kept is still good; asked with the pool's only reference to it in hand."""
        try:
            return super().is_connected
        except BaseException:  # killed: patched, the look is a turn of gevent's loop
            self.close()
            raise

    def connect(self) -> None:
        super().connect()
        self.sock.settimeout(remaining())

    def request(self, *args: Any, **kwargs: Any) -> None:
        if self.sock is not None:  # kept from an earlier call; urllib3 would send with the connect timeout
            self.timeout = remaining()
        super().request(*args, **kwargs)


class _DeadlineTLSConnection(_DeadlineConnection, HTTPSConnection):
    """The same over TLS."""


class _Pool(HTTPConnectionPool):
    ConnectionCls: Any = _DeadlineConnection


class _TLSPool(HTTPSConnectionPool):
    ConnectionCls: Any = _DeadlineTLSConnection


_POOLS: dict[str, type[HTTPConnectionPool]] = {"http": _Pool, "https": _TLSPool}


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
        url, credentials = _split_credentials(proxy)
        headers = {"Proxy-Authorization": basic(credentials)} if credentials else None
        manager = urllib3.ProxyManager(url, proxy_headers=headers, **settings)
    manager.pool_classes_by_scheme = _POOLS
    return manager


def proxy_for(scheme: str, host: str, port: int) -> str | None:
    """Return the URL of the proxy that the environment names for this server, or None.

    As in Go's net/http, which NSQ's own tools use, loopback addresses are never proxied: another machine's loopback
    is not the one that was meant.  Otherwise HTTP_PROXY, HTTPS_PROXY and NO_PROXY are read as urllib reads them.
    Raises OptionError for a proxy that is neither http nor https.
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


def _split_credentials(proxy: str) -> tuple[str, str | None]:
    url = parse_url(proxy)
    return url._replace(auth=None).url, url.auth
