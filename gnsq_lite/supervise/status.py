"""Serves /metrics, /healthz, /readyz, the live page and its data over HTTP, in a separate thread."""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import http.client
import io
import ipaddress
import json
import logging
import os
import re
import selectors
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Protocol

from gnsq_lite.clock import SYSTEM_CLOCK, Clock

log = logging.getLogger("gnsq_lite.supervise")

#: Maximum seconds from the accept of a connection to the end of the response.
TIMEOUT = 10.0
#: Maximum number of open connections of one server.
MAX_CONNECTIONS = 64
#: Maximum bytes of a request's head.
_MAX_HEAD = 64 * 1024
#: Seconds to wait after a connection was closed for a new one, so that clients that reconnect at once use little CPU.
_PAUSE = 0.003
#: Seconds for which a page is cached, so that a thousand clients cost little more than one client.
KEEP = 0.25

TEXT, JSON = "text/plain; charset=utf-8", "application/json"
#: Headers of the live page and its data: no caching, no framing by other sites, no guessed content type.
_PRIVATE = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

#: Paths of the live page and its data.
_PAGES = ("/", "/api/status", "/api/history", "/api/running")

#: Content type and body.
Page = tuple[str, bytes]
#: Whether a check passed, and its details.
Verdict = tuple[bool, dict[str, Any]]
_Answer = tuple[HTTPStatus, str, bytes]


class Pages(Protocol):
    """Source of the pages.  The server calls the methods in its threads."""

    def metrics(self) -> Page:
        """Return the metrics.  Raises ImportError if the package prometheus_client is not installed."""

    def health(self) -> Verdict:
        """Return whether the process works."""

    def ready(self) -> Verdict:
        """Return whether every handler is ready to receive messages."""

    def live(self, brief: bool) -> dict[str, Any]:
        """Return the document for the live page.  A *brief* document has no depths."""

    def history(self) -> dict[str, Any]:
        """Return the samples of the last ten minutes for the charts."""

    def running(self) -> dict[str, Any]:
        """Return the running handler calls, with their stacks."""


class CachedPage:
    """Page that is cached for :data:`KEEP` seconds.  *make* renders it, in one thread at a time, and must not raise."""

    def __init__(self, make: Callable[[], _Answer], clock: Clock = SYSTEM_CLOCK) -> None:
        self._make, self._clock, self._lock = make, clock, threading.Lock()
        self._page: _Answer | None = None
        self._made_at = 0.0

    def get(self) -> _Answer:
        """Return the page."""
        with self._lock:
            if self._page is None or self._clock.now() - self._made_at >= KEEP:
                self._page = self._make()
                self._made_at = self._clock.now()
            return self._page


def _answered(make: Callable[[], _Answer]) -> _Answer:
    """Call *make*, and turn an exception into an error page."""
    try:
        return make()
    except ImportError as error:
        return HTTPStatus.NOT_IMPLEMENTED, TEXT, f"{error}\n".encode()
    except Exception as error:
        text = f"{type(error).__name__}: {error}\n"
        return HTTPStatus.INTERNAL_SERVER_ERROR, TEXT, text.encode("utf-8", "replace")


def _verdict(verdict: Verdict) -> _Answer:
    good, details = verdict
    body = json.dumps({"ok": good, **details}).encode() + b"\n"
    return HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE, JSON, body


def _cached(pages: Pages) -> dict[str, CachedPage]:
    """Return the cached pages by path.  ``/api/status?brief`` is a separate page."""

    def data(make: Callable[[], dict[str, Any]]) -> Callable[[], _Answer]:
        return lambda: (HTTPStatus.OK, JSON, json.dumps(make()).encode() + b"\n")

    made: dict[str, Callable[[], _Answer]] = {
        "/metrics": lambda: (HTTPStatus.OK, *pages.metrics()),
        "/readyz": lambda: _verdict(pages.ready()),
        "/api/running": data(pages.running),
        "/api/history": data(pages.history),
        "/api/status": data(lambda: pages.live(False)),
        "/api/status?brief": data(lambda: pages.live(True)),
    }
    return {path: CachedPage(functools.partial(_answered, make)) for path, make in made.items()}


@functools.cache
def live_page() -> tuple[bytes, str]:
    """Return the live page and its Content-Security-Policy, which allows only the page's own script and style."""
    body = Path(__file__).with_name("live.html").read_bytes()
    allowed = ""
    for kind in (b"script", b"style"):
        inline = re.search(rb"<%b>(.*?)</%b>" % (kind, kind), body, re.S)
        digest = base64.b64encode(hashlib.sha256(inline[1] if inline is not None else b"").digest()).decode()
        allowed += f"{kind.decode()}-src 'sha256-{digest}'; "
    return body, (
        f"default-src 'none'; {allowed}connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def is_local_name(header: str | None) -> bool:
    """Return whether a ``Host`` header is an IP address or ``localhost``."""
    host = (header or "").lower()
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0].rstrip(".")
    with contextlib.suppress(ValueError):
        return name == "localhost" or bool(ipaddress.ip_address(name))
    return False


class _Handler(BaseHTTPRequestHandler):
    server_version = "gnsq_lite"
    sys_version = ""
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.rfile = io.BytesIO(self.server.head_of(self.request))

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        headers = dict(_PRIVATE) if path in _PAGES else {}
        if path == "/":
            headers["Content-Security-Policy"] = live_page()[1]
        status, kind, body = self._page(path, query)
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET

    def _page(self, path: str, query: str) -> _Answer:
        if path == "/healthz":
            return _answered(lambda: _verdict(self.server.pages.health()))
        if path in ("/metrics", "/readyz"):
            return self.server.cached[path].get()
        if path not in _PAGES:
            return HTTPStatus.NOT_FOUND, TEXT, b"/ /api/status /api/history /api/running /metrics /healthz /readyz\n"
        if self.server.is_loopback and not is_local_name(self.headers.get("Host")):
            # Otherwise a site whose name resolves to 127.0.0.1 (DNS rebinding) could read the page in a browser.
            text = b"on a loopback address, open the live page by IP address or as localhost: see --metrics-host\n"
            return HTTPStatus.FORBIDDEN, TEXT, text
        if path == "/":
            return HTTPStatus.OK, "text/html; charset=utf-8", live_page()[0]
        return self.server.cached[path + ("?brief" if path == "/api/status" and query == "brief" else "")].get()

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing, because probes send a request every few seconds."""


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Reads requests in one thread, and answers each complete request in another thread.

    If MAX_CONNECTIONS are open, a new connection takes the place of the oldest one whose request is not complete.  The
    server closes a connection after TIMEOUT.  A client that disconnects causes no error.
    """

    daemon_threads = True
    pages: Pages
    cached: dict[str, CachedPage]
    is_loopback = False

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        #: Deadline and bytes of each request, the oldest first; of incomplete and of complete requests.
        self._partial: dict[socket.socket, tuple[float, bytearray]] = {}
        self._complete: dict[socket.socket, bytes] = {}

    def serve_forever(self, poll_interval: float = 0.5) -> None:
        """Serve until the process ends."""
        self.socket.setblocking(False)
        with selectors.DefaultSelector() as selector:
            selector.register(self.socket, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select(poll_interval):
                    if key.fileobj is self.socket:
                        self._accept(selector)
                    elif key.fileobj in self._partial:  # and not closed meanwhile for a new connection
                        self._read(selector, key.fileobj)
                now = SYSTEM_CLOCK.now()
                for request in [each for each, (deadline, _) in self._partial.items() if deadline <= now]:
                    self._drop(selector, request)

    def _accept(self, selector: selectors.BaseSelector) -> None:
        try:
            request, _ = self.socket.accept()
        except BlockingIOError:
            return
        except OSError:  # no descriptor is free; the pause keeps serve_forever() from trying again at once
            self._drop_oldest(selector)
            time.sleep(0.1)
            return
        if len(self._partial) + len(self._complete) >= MAX_CONNECTIONS and not self._drop_oldest(selector):
            request.close()
            return
        request.setblocking(False)
        self._partial[request] = SYSTEM_CLOCK.now() + TIMEOUT, bytearray()
        selector.register(request, selectors.EVENT_READ)

    def _read(self, selector: selectors.BaseSelector, request: Any) -> None:
        """Read what the client has sent, and answer a complete request in a thread."""
        deadline, head = self._partial[request]
        try:
            head += (data := request.recv(_MAX_HEAD))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data or len(head) > _MAX_HEAD:
            self._drop(selector, request)
        elif b"\r\n\r\n" in head:
            selector.unregister(request)
            del self._partial[request]
            self._complete[request] = bytes(head)
            request.settimeout(max(0.001, deadline - SYSTEM_CLOCK.now()))  # sendall() applies it to the whole response
            try:
                self.process_request(request, "")
            except RuntimeError as error:  # the process can start no thread
                log.error("a request for a status page failed: %s", error)
                self.shutdown_request(request)

    def _drop(self, selector: selectors.BaseSelector, request: socket.socket) -> None:
        selector.unregister(request)
        del self._partial[request]
        request.close()

    def _drop_oldest(self, selector: selectors.BaseSelector) -> bool:
        for request in self._partial:
            self._drop(selector, request)
            time.sleep(_PAUSE)
            return True
        return False

    def head_of(self, request: Any) -> bytes:
        """Return the head of a complete request."""
        return self._complete[request]

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        self._complete.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exc_info()[1]
        if isinstance(error, OSError):
            log.debug("a client of the status pages closed its connection: %s", error)
        else:
            log.error("a request for a status page failed", exc_info=error)


class _TCP(_Server):
    allow_reuse_address = True
    request_queue_size = 1024


class _TCP6(_TCP):
    address_family = socket.AF_INET6


class _Unix(_Server):
    address_family = socket.AF_UNIX
    request_queue_size = 128


def _in_a_thread(name: str, run: Callable[[], None]) -> None:
    threading.Thread(target=run, name=name, daemon=True).start()


class StatusServer:
    """Serves *pages* at ``(host, port)`` or at the path of a Unix socket.  Port 0 picks a free port.

    *start_thread* starts the server's thread.  In a monkey-patched process it must start a native thread, because a
    blocking handler would otherwise block the pages too.
    """

    def __init__(
        self,
        pages: Pages,
        address: tuple[str, int] | str,
        start_thread: Callable[[str, Callable[[], None]], None] = _in_a_thread,
    ) -> None:
        self._pages, self._address, self._start_thread = pages, address, start_thread
        self._error: Exception | None = None
        #: Port on which the server listens, or 0 for a Unix socket.
        self.port = 0

    def start(self) -> StatusServer:
        """Listen, and return the server.  Raises OSError, for example if the port is in use."""
        readable, writable = os.pipe()
        try:
            self._start_thread("gnsq_lite-status", lambda: self._serve(writable))
            os.read(readable, 1)  # os.read() is never patched, so it waits for the native thread that binds the socket
        finally:
            os.close(readable)
        if self._error is not None:
            raise self._error
        return self

    def _serve(self, writable: int) -> None:
        try:
            server = self._listen()
        except Exception as error:  # also OverflowError, for a port above 65535
            self._error = error
            return
        finally:
            os.write(writable, b".")  # wakes start()
            os.close(writable)
        with server:
            server.serve_forever()

    def _listen(self) -> _Server:
        server: _Server
        if isinstance(self._address, str):
            server = _Unix(self._address, _Handler)
        else:
            server = (_TCP6 if ":" in self._address[0] else _TCP)(self._address, _Handler)
            self.port = server.server_address[1]
            server.is_loopback = ipaddress.ip_address(str(server.server_address[0])).is_loopback
        server.pages, server.cached = self._pages, _cached(self._pages)
        return server


class _UnixConnection(http.client.HTTPConnection):
    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.host)


def fetch(path: str, page: str, timeout: float = TIMEOUT) -> tuple[int, bytes]:
    """GET *page* from the process that listens on the Unix socket *path*.  Return (status, body).  Raises OSError."""
    connection = _UnixConnection(path, timeout=timeout)
    try:
        connection.request("GET", page, headers={"Host": "localhost"})
        response = connection.getresponse()
        return response.status, response.read()
    except http.client.HTTPException as error:
        raise OSError(f"{path}: {error!r}") from error
    finally:
        connection.close()
