"""Calls the HTTP API of an NSQ server.

* All sends and reads of a call end within ``http_timeout`` (:mod:`gnsq_lite.http.transport`).
* A call reads at most ``http_max_body`` bytes, and decompresses nothing.
* A call follows no redirect, so that a token is sent only to the given server.
* A call sends its request once, without retries.
* A failed call raises one of the ``HTTP...`` classes of :mod:`gnsq_lite.errors`.

A call blocks its thread or greenlet.  If the process has imported gevent, a call does not block other greenlets, even
without monkey-patching (:mod:`gnsq_lite.blocking_calls`).
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import sys
from collections.abc import Callable, Mapping
from http.client import HTTPException
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import urllib3
from urllib3.exceptions import HTTPError as TransportError

from gnsq_lite.errors import (
    HTTPResponseError,
    HTTPStatusError,
    HTTPTimeout,
    OptionError,
)
from gnsq_lite.http.reply import Reply, explain, read_up_to, shown
from gnsq_lite.http.transport import TLSSettings, basic, deadline, is_loopback, open_pool, remaining, translated
from gnsq_lite.keywords import check_names
from gnsq_lite.options import Address, HTTPOptions, format_address, parse_address, parse_url, shown_address
from gnsq_lite.version import __version__

log = logging.getLogger("gnsq_lite.http")

T = TypeVar("T")
Self = TypeVar("Self", bound="HTTPClient")

_ACCEPT = "application/vnd.nsq; version=1.0"  # older servers then respond without a wrapper
_ERROR_BODY = 8192  # maximum bytes to read of an error response
_SHOWN_PARAMETERS = ("topic", "channel", "partition", "node", "access", "format")


@functools.lru_cache(1000)
def _warn_unencrypted(url: str) -> None:
    log.warning("%s: the credentials are sent unencrypted; use https", url)


def _run(call: Callable[[], T], limit: float) -> T:
    """Run *call*, which has its own deadline.  If gevent is imported, do not block other greenlets."""
    if "gevent" not in sys.modules:
        return call()
    from gnsq_lite.blocking_calls import call_cooperatively

    return call_cooperatively(call, timeout=limit)


class HTTPClient:
    """Client for one server, with a connection pool.  Safe for threads, greenlets and forked children.

    Args:
        address: ``"host"``, ``"host:port"``, ``(host, port)``, or an ``http://`` or ``https://`` URL.  The URL may
            contain ``user:password@`` and a path prefix.  The default scheme is http, or https if ``tls`` is set.
        options: Options of the calls.
        settings: Fields of :class:`~gnsq_lite.options.HTTPOptions`.  They override *options*.

    Raises OptionError.  The first call opens the first connection.  A call reads the files of ``TLSOptions`` again if
    they were replaced.
    """

    default_port = 0

    def __init__(self, address: str | Address, options: HTTPOptions | None = None, **settings: Any) -> None:
        if options is not None and not isinstance(options, HTTPOptions):
            hint = f"; write the address as one string, {f'{address}:{options}'!r}" if isinstance(options, int) else ""
            raise OptionError("options", options, f"must be HTTPOptions{hint}")
        check_names(settings, (field.name for field in dataclasses.fields(HTTPOptions)), type(self))
        self.options = dataclasses.replace(options or HTTPOptions(), **settings)
        self._scheme, self._host, self._port, self._prefix, credentials = self._parse(address)
        self._headers = {"Accept": _ACCEPT, "Accept-Encoding": "identity", "User-Agent": f"gnsq_lite/{__version__}"}
        self._authorise(credentials)
        self._tls = TLSSettings(self.options) if self._scheme == "https" else None
        self._pool: urllib3.HTTPConnectionPool | None = None
        self._pid = os.getpid()

    def _parse(self, address: str | Address) -> tuple[str, str, int, str, str | None]:
        tls = self.options.tls is not None
        if not isinstance(address, str) or "://" not in address:
            host, port = parse_address(address, default_port=self.default_port, option="address")
            return "https" if tls else "http", host, port, "", None
        url, (host, port) = parse_url(address, option="address")
        if url.scheme == "http" and tls:
            raise OptionError("tls", "set", f"contradicts {shown_address(address)}; use https://")
        credentials = None if url.username is None else f"{url.username}:{url.password or ''}"
        return url.scheme, host, port, url.path.rstrip("/"), credentials

    def _authorise(self, credentials: str | None) -> None:
        token = self.options.auth_token
        if token is not None and credentials is not None:
            raise OptionError("auth_token", "<hidden>", "contradicts the user and password of the address")
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        elif credentials is not None:
            self._headers["Authorization"] = basic(credentials)
        if (token or credentials) and self._scheme == "http" and not is_loopback(self._host):
            _warn_unencrypted(self.url)

    @property
    def url(self) -> str:
        """The server's URL, without secrets."""
        return f"{self._scheme}://{format_address((self._host, self._port))}{self._prefix}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the idle connections.  A later call opens new connections."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def ping(self) -> str:
        """Return ``OK`` if the server is healthy.  If not, raise HTTPStatusError with the server's text."""
        return self.get("/ping").text()

    def get(self, path: str, params: Mapping[str, Any] | None = None) -> Reply:
        """Send a GET request, and return the response.  Raises HTTPError."""
        return self.call("GET", path, params)

    def post(self, path: str, params: Mapping[str, Any] | None = None, body: bytes = b"") -> Reply:
        """Send a POST request, and return the response.  Raises HTTPError."""
        return self.call("POST", path, params, body)

    def call(self, method: str, path: str, params: Mapping[str, Any] | None = None, body: bytes | None = None) -> Reply:
        """Send one request, and return the complete response.  Raises HTTPError.

        A parameter that is None is omitted.  True and False are sent as ``true`` and ``false``.
        """
        given = {name: value for name, value in (params or {}).items() if value is not None}
        given = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in given.items()}
        target = self._prefix + quote(path, safe="/?=&%")
        if given:
            target += ("&" if "?" in target else "?") + urlencode(given, quote_via=quote)
        named = {name: value for name, value in given.items() if name in _SHOWN_PARAMETERS}
        url = self.url + path + (f"?{urlencode(named)}" if named else "")
        limit = self.options.http_timeout
        try:
            return _run(lambda: self._once(method, target, url, body), limit + 0.5)
        except TimeoutError:
            raise HTTPTimeout(url, f"no complete response in {limit:g} s") from None

    def _once(self, method: str, target: str, url: str, body: bytes | None) -> Reply:
        pool = self._pool_here()
        try:
            with deadline(self.options.http_timeout):
                response = pool.urlopen(
                    method,
                    target,
                    body=body,
                    headers=self._headers,
                    timeout=urllib3.Timeout(connect=self.options.http_connect_timeout, total=remaining()),
                    retries=False,
                    redirect=False,
                    preload_content=False,
                    decode_content=False,
                )
                try:
                    reply = self._read(response, url)
                except BaseException:
                    response.close()  # otherwise the next call would read the rest of this response
                    raise
                finally:
                    response.release_conn()
        except (TransportError, HTTPException, OSError, ValueError) as error:
            raise translated(url, error) from error
        if not 200 <= reply.status < 300:
            raise HTTPStatusError(url, reply.status, explain(reply))
        return reply

    def _read(self, response: urllib3.BaseHTTPResponse, url: str) -> Reply:
        headers, is_error = response.headers, not 200 <= response.status < 300
        encoding = headers.get("Content-Encoding", "identity")
        if encoding.lower() not in ("identity", "") and not is_error:
            raise HTTPResponseError(url, f"the response is encoded ({shown(encoding)}), which was not requested")
        body = read_up_to(response, url, _ERROR_BODY if is_error else self.options.http_max_body, cut=is_error)
        return Reply(url, response.status, headers.get("Content-Type", ""), body)

    def _pool_here(self) -> urllib3.HTTPConnectionPool:
        if self._tls is not None and self._tls.refresh():
            self.close()
        pool = self._pool
        if pool is None or self._pid != os.getpid():  # a forked child must not write to its parent's sockets
            tls = self._tls.arguments if self._tls is not None else {}
            pool = self._pool = open_pool(self._scheme, self._host, self._port, self.options.http_pool_size, tls)
            self._pid = os.getpid()
        return pool
