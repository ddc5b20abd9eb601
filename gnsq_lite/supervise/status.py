"""Status pages over HTTP: /metrics, /healthz, /readyz, the live page and its data, from a thread of their own."""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import logging
import os
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any, Protocol

from gnsq_lite.supervise.access import Access, Refused, asked, body_length
from gnsq_lite.supervise.live_page import PRIVATE, live_page
from gnsq_lite.supervise.shared_page import SharedPage

log = logging.getLogger("gnsq_lite.supervise")

#: Seconds a request may take as a whole, its answer included.
TIMEOUT = 10.0
#: Requests that are read or answered at once; one more ends the oldest, so that no idle client keeps out a probe.
MOST = 32
#: Seconds a client has to send its request before another may take its place.
_HEAD_START = 0.02
#: Requests that wait at once for a page to be made; others are refused.
_MOST_WAITING = 32

TEXT, JSON = "text/plain; charset=utf-8", "application/json"

#: Content type and body.
Page = tuple[str, bytes]
#: Whether all is well, and the details.
Verdict = tuple[bool, dict[str, Any]]
_Answer = tuple[HTTPStatus, str, bytes]


class Pages(Protocol):
    """Makes the pages; called in the server's threads."""

    def metrics(self) -> Page:
        """The metrics.  Raises ImportError where their package is not installed."""

    def health(self) -> Verdict:
        """Whether the process lives."""

    def ready(self) -> Verdict:
        """Whether it handles messages."""

    def live(self, details: str) -> dict[str, Any]:
        """The live page's document; *details* may have "history", for the last minutes, and "brief", for no depths."""

    def act(self, action: str, topic: str, channel: str) -> bool:
        """Pause or resume a handler, or drain the worker; return False where there is no such handler."""


def _answered(make: Callable[[], _Answer]) -> _Answer:
    """Return what *make* returns, or an answer that says why there is none."""
    try:
        return make()
    except Refused as refused:
        return refused.status, TEXT, f"{refused.why}\n".encode()
    except ImportError as error:
        return HTTPStatus.NOT_IMPLEMENTED, TEXT, f"{error}\n".encode()
    except Exception as error:
        text = f"{type(error).__name__}: {error}\n"
        return HTTPStatus.INTERNAL_SERVER_ERROR, TEXT, text.encode("utf-8", "replace")


class _Shared:
    """The pages that take work, each made once for all concurrent requests."""

    def __init__(self, pages: Pages, has_control: bool) -> None:
        self._pages, self._has_control = pages, has_control
        self._made = {
            "/metrics": self._page(lambda: (HTTPStatus.OK, *pages.metrics())),
            "/readyz": self._page(lambda: verdict(pages.ready())),
            **{details: self._page(functools.partial(self._live, details)) for details in _DETAILS},
        }

    def get(self, path: str, query: str = "") -> _Answer:
        """Return ``/metrics``, ``/readyz`` or ``/api/status``."""
        return self._made["+".join(word for word in _WORDS if word in query) if path == "/api/status" else path].get()

    def _page(self, make: Callable[[], _Answer]) -> SharedPage[_Answer]:
        return SharedPage(lambda: _answered(make))

    def _live(self, details: str) -> _Answer:
        live = {**self._pages.live(details), "control": self._has_control}
        return HTTPStatus.OK, JSON, json.dumps(live).encode() + b"\n"


#: What ``/api/status?...`` may ask for.
_WORDS = ("history", "brief")
_DETAILS = ("", "history", "brief", "history+brief")


def verdict(told: Verdict) -> _Answer:
    """Return the answer of a probe."""
    good, details = told
    body = json.dumps({"ok": good, **details}).encode() + b"\n"
    return HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE, JSON, body


class _Handler(BaseHTTPRequestHandler):
    timeout = TIMEOUT
    server_version = "gnsq_lite"
    sys_version = ""
    server: _Server
    pages: Pages
    shared: _Shared
    access: Access

    def do_GET(self) -> None:
        self._answer(self._page)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        self._answer(self._act)

    def _answer(self, make: Callable[[], _Answer]) -> None:
        self._more: dict[str, str] = {}
        status, kind, body = _answered(make)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in self._more.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _page(self) -> _Answer:
        path, _, query = self.path.partition("?")
        if path == "/healthz":
            return verdict(self.pages.health())
        if path not in ("/", "/api/status", "/metrics", "/readyz"):
            return HTTPStatus.NOT_FOUND, TEXT, b"/ /api/status /metrics /healthz /readyz\n"
        if path in ("/", "/api/status"):
            self.access.check_host(self.headers.get("Host"))
            self._more = PRIVATE
        if path == "/":
            page, self._more = live_page()
            return HTTPStatus.OK, "text/html; charset=utf-8", page
        with self.server.waiting(self.connection) as may_wait:
            if may_wait:
                return self.shared.get(path, query)
        self._more = {**self._more, "Retry-After": "1"}
        raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "too many clients are waiting for this page: try again")

    def _act(self) -> _Answer:
        self._more = PRIVATE
        if self.path != "/api/control":
            raise Refused(HTTPStatus.NOT_FOUND, "only /api/control takes a POST")
        self.access.check_host(self.headers.get("Host"))
        self.access.check_act(dict(self.headers))
        body = self.rfile.read(body_length(self.headers.get("Content-Length")))
        try:
            data = json.loads(body)
        except (ValueError, RecursionError):
            raise Refused(HTTPStatus.BAD_REQUEST, "the body is not JSON") from None
        action, topic, channel = asked(data)
        with self.server.waiting(self.connection):
            is_known = self.pages.act(action, topic, channel)
        if not is_known:
            raise Refused(HTTPStatus.NOT_FOUND, "no handler has this topic and channel")
        log.warning("%s %s, asked for over HTTP by %s", action, f"{topic}/{channel}".strip("/"), self.client_address[0])
        return HTTPStatus.OK, JSON, b'{"ok": true}\n'

    def log_message(self, format: str, *args: Any) -> None:
        """No line for a request: a probe comes every few seconds."""


class _Server(socketserver.ThreadingMixIn, socketserver.BaseServer):
    """A thread for each request, few at a time and none for long; a client that goes away is no error."""

    daemon_threads = True

    def __init__(self, *args: Any) -> None:
        #: When each request that is read or answered must have ended, by its socket, the oldest first.
        self._open: dict[socket.socket, float] = {}
        self._waiting: set[socket.socket] = set()
        self.often: Callable[[], None] | None = None
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        while len(self._open) >= MOST:
            oldest, ends = next(iter(tuple(self._open.items())), (None, 0.0))
            if time.monotonic() < ends - TIMEOUT + _HEAD_START:
                time.sleep(_HEAD_START / 10)  # it may just be answered; the next ones wait in the system's queue
            else:
                self._drop(oldest)
        self._open[request] = time.monotonic() + TIMEOUT
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.pop(request, None)
        super().shutdown_request(request)

    @contextlib.contextmanager
    def waiting(self, request: socket.socket) -> Iterator[bool]:
        """Do not drop *request* meanwhile: its client is not idle.  False: there are too many of these."""
        ends = self._open.pop(request, time.monotonic())
        may_wait = len(self._waiting) < _MOST_WAITING
        if may_wait:
            self._waiting.add(request)
        try:
            yield may_wait
        finally:
            self._waiting.discard(request)
            self._open[request] = ends

    def service_actions(self) -> None:
        """Called every half second, and after each request."""
        now = time.monotonic()
        for request, ends in tuple(self._open.items()):
            if ends < now:
                self._drop(request)
        if self.often is not None:
            self.often()

    def _drop(self, request: socket.socket | None) -> None:
        """End the stream of a request; its thread then closes the socket."""
        if request is not None and self._open.pop(request, None) is not None:
            with contextlib.suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exc_info()[1]
        if isinstance(error, OSError):
            log.debug("a client of the status pages has gone: %s", error)
        else:
            log.error("a request for a status page failed", exc_info=error)


class _TCP(_Server, socketserver.TCPServer):
    allow_reuse_address = True
    request_queue_size = 1024


class _TCP6(_TCP):
    address_family = socket.AF_INET6


class _Unix(_Server, socketserver.UnixStreamServer):
    request_queue_size = 128


def _in_a_thread(name: str, run: Callable[[], None]) -> None:
    threading.Thread(target=run, name=name, daemon=True).start()


class StatusServer:
    """Serves *pages* at ``(host, port)``, port 0 being any, or at the path of a Unix socket.

    The server runs in a thread that *start_thread* starts.  In a monkey-patched process that is a native one, or a
    blocked handler would block the pages too.  *often* is called there every half second.  *access* holds the rules of
    the live page.
    """

    def __init__(
        self,
        pages: Pages,
        address: tuple[str, int] | str,
        start_thread: Callable[[str, Callable[[], None]], None] = _in_a_thread,
        often: Callable[[], None] | None = None,
        access: Access | None = None,
    ) -> None:
        access = access or Access()
        shared = _Shared(pages, access.token is not None)
        self._handler = type("Handler", (_Handler,), {"pages": pages, "shared": shared, "access": access})
        self._address, self._start_thread, self._often = address, start_thread, often
        self._error: Exception | None = None
        #: The port it listens on; 0 for a Unix socket.
        self.port = 0

    def start(self) -> StatusServer:
        """Listen and return.  Raises OSError: the port is taken, for one."""
        told, tells = os.pipe()
        try:
            self._start_thread("gnsq_lite-status", lambda: self._serve(tells))
            os.read(told, 1)  # a native wait, whatever is patched: the socket is made in its own thread
        finally:
            os.close(told)
        if self._error is not None:
            raise self._error
        return self

    def _serve(self, tells: int) -> None:
        try:
            server = self._listen()
        except Exception as error:  # OverflowError too: a port above 65535
            self._error = error
            return
        finally:
            os.write(tells, b".")  # wakes start()
            os.close(tells)
        server.often = self._often
        with server:
            server.serve_forever(poll_interval=0.5)

    def _listen(self) -> _Server:
        if isinstance(self._address, str):
            return _Unix(self._address, self._handler)
        kind = _TCP6 if ":" in self._address[0] else _TCP
        server = kind(self._address, self._handler)
        self.port = server.server_address[1]
        return server


class _UnixConnection(http.client.HTTPConnection):
    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.host)


def fetch(path: str, page: str, timeout: float = TIMEOUT) -> tuple[int, bytes]:
    """Return (status, body) of a page that a process serves on the Unix socket *path*.  Raises OSError."""
    connection = _UnixConnection(path, timeout=timeout)
    try:
        connection.request("GET", page, headers={"Host": "localhost"})
        response = connection.getresponse()
        return response.status, response.read()
    except http.client.HTTPException as error:
        raise OSError(f"{path}: {error!r}") from error
    finally:
        connection.close()
