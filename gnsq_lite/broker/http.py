"""The broker's HTTP server, based on gevent's WSGI server.  Routes, parameters and replies are the same as in nsqd."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_to_bytes

import gevent
import gevent.pool
from gevent.pywsgi import WSGIHandler, WSGIServer

from gnsq_lite.broker import gojson
from gnsq_lite.broker.listener import listen
from gnsq_lite.broker.topics import is_valid_name

_REASONS = {
    200: "OK",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    413: "Request Entity Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
_BAD_ESCAPE = re.compile(r"%(?![0-9a-fA-F]{2})")
_JSON = "application/json; charset=utf-8"
_MOST_CONNECTIONS = 1000
_TEXT = "text/plain; charset=utf-8"


class HTTPFailure(Exception):
    """An error reply: a status and nsqd's error text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(status, text)
        self.status, self.text = status, text


class Request:
    """One request.  Only :meth:`read` reads the body."""

    def __init__(self, environ: dict[str, Any]) -> None:
        self.method: str = environ["REQUEST_METHOD"]
        self.path: str = environ["PATH_INFO"]
        self.query: str = environ.get("QUERY_STRING", "")
        self.accept: str = environ.get("HTTP_ACCEPT", "")
        self._input = environ["wsgi.input"]
        self.content_length = int(environ.get("CONTENT_LENGTH") or -1)
        self._params: dict[str, list[str]] | None = None

    @property
    def params(self) -> dict[str, list[str]]:
        """Values of each query parameter, by name.  Raises HTTPFailure if Go could not parse the query."""
        if self._params is None:
            self._params = parse_query(self.query)
        return self._params

    def get(self, name: str, missing: str | None = None) -> str:
        """Return the first value of a parameter.

        If the query lacks the parameter, return "" if *missing* is None, or raise HTTPFailure with the text *missing*.
        """
        values = self.params.get(name)
        if values is None and missing is not None:
            raise HTTPFailure(400, missing)
        return values[0] if values else ""

    def read(self, limit: int) -> bytes:
        """Read the body, at most *limit* bytes."""
        parts, left = [], limit
        while left > 0:
            part = self._input.read(min(left, 1 << 16))
            if not part:
                break
            parts.append(part)
            left -= len(part)
        return b"".join(parts)


def parse_query(query: str) -> dict[str, list[str]]:
    """Parse the parameters as Go's url.ParseQuery does.  Raises HTTPFailure(400, INVALID_REQUEST)."""
    params: dict[str, list[str]] = {}
    for pair in query.split("&"):
        if not pair:
            continue
        if ";" in pair or _BAD_ESCAPE.search(pair):
            raise HTTPFailure(400, "INVALID_REQUEST")
        key, _, value = pair.partition("=")
        params.setdefault(_unescaped(key), []).append(_unescaped(value))
    return params


def topic_and_channel(request: Request) -> tuple[str, str]:
    """Return the topic and channel names (internal/http_api/topic_channel_args.go @v1.3.0).  Raises HTTPFailure."""
    names = []
    for kind in ("topic", "channel"):
        name = request.get(kind, f"MISSING_ARG_{kind.upper()}")
        if not is_valid_name(name):
            raise HTTPFailure(400, f"INVALID_ARG_{kind.upper()}")
        names.append(name)
    return names[0], names[1]


def _unescaped(text: str) -> str:
    return unquote_to_bytes(text.replace("+", " ")).decode("utf-8", "surrogateescape")


Answer = object  # str and bytes become text, None becomes an empty body, any other object becomes JSON
Handler = Callable[[Request], Answer]


@dataclass
class Fault:
    """A wrong or late reply, for tests.  If ``body`` is None, the correct reply is sent ``delay`` seconds late."""

    path: str
    status: int = 200
    body: bytes | None = None
    headers: tuple[tuple[str, str], ...] = (("Content-Type", _JSON),)
    delay: float = 0.0
    repeat: int = 1
    times: int | None = None

    def use_for(self, path: str) -> bool:
        """Return whether the fault applies to *path*.  If it applies, count the use."""
        if self.path not in ("*", path) or self.times == 0:
            return False
        if self.times is not None:
            self.times -= 1
        return True

    def chunks(self) -> Iterator[bytes]:
        """Yield the body, ``repeat`` times."""
        for _ in range(self.repeat):
            yield self.body or b""


class HTTPFaults:
    """Makes one HTTP API misbehave.  Thread-safe.

    ``path`` is a path such as "/lookup", or "*" for any path.  The fault applies ``times`` times, or until
    :meth:`clear` if ``times`` is None.
    """

    def __init__(self, call: Callable[[Callable[[], Any]], Any], app: Callable[[], App]) -> None:
        self._call, self._app = call, app

    def _add(self, fault: Fault) -> None:
        self._call(lambda: self._app().faults.append(fault))

    def _forget(self) -> None:
        self._app().faults.clear()

    def answer(
        self,
        path: str = "*",
        *,
        status: int = 500,
        body: bytes = b'{"message":"INTERNAL_ERROR"}',
        headers: tuple[tuple[str, str], ...] = (("Content-Type", _JSON),),
        delay: float = 0.0,
        times: int | None = None,
    ) -> None:
        """Reply with *status*, *headers* and *body* to any request for *path*."""
        self._add(Fault(path, status, body, headers, delay, 1, times))

    def delay(self, seconds: float, path: str = "*", *, times: int | None = None) -> None:
        """Send the correct reply *seconds* late."""
        self._add(Fault(path, delay=seconds, times=times))

    def flood(self, path: str = "*", *, chunk: bytes = b" " * 65536, chunks: int = 1 << 20) -> None:
        """Reply 200 with a body that repeats *chunk* *chunks* times."""
        self._add(Fault(path, 200, chunk, repeat=chunks))

    def clear(self) -> None:
        """Remove all faults."""
        self._call(self._forget)


class App:
    """A WSGI application with a table of routes.  Other paths and methods get nsqd's error replies."""

    def __init__(self, server_name: str) -> None:
        self._server_name = server_name
        self._routes: dict[str, dict[str, Handler]] = {}
        self._plain: set[Handler] = set()
        self.before: Callable[[Request], tuple[int, str, bytes] | None] = lambda request: None
        self.faults: list[Fault] = []

    def add(self, method: str, path: str, handler: Handler, *, plain: bool = False) -> None:
        """Call *handler* for requests of *path*.  If *plain* is true, the reply is text without nsqd's header."""
        self._routes.setdefault(path, {})[method] = handler
        if plain:
            self._plain.add(handler)

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        request = Request(environ)
        fault = next((fault for fault in self.faults if fault.use_for(request.path)), None)
        if fault is not None:
            gevent.sleep(fault.delay)
            if fault.body is not None:
                start_response(f"{fault.status} {_REASONS.get(fault.status, 'Fault')}", list(fault.headers))
                return fault.chunks()
        special = self.before(request)
        headers = [("Server", self._server_name)]
        if special is not None:
            status, kind, body = special
            headers += [("X-NSQ-Content-Type", "nsq; version=1.0"), ("Content-Type", kind)]
        else:
            status, body, more = self._answer(request)
            headers += more
        headers.append(("Content-Length", str(len(body))))
        start_response(f"{status} {_REASONS[status]}", headers)
        return [b""] if request.method == "HEAD" else [body]

    def _answer(self, request: Request) -> tuple[int, bytes, list[tuple[str, str]]]:
        methods = self._routes.get(request.path)
        if methods is None:
            return _version_1(404, "NOT_FOUND")
        handler = methods.get(request.method)
        allowed = [("Allow", ", ".join(sorted([*methods, "OPTIONS"])))]
        if handler is None and request.method == "OPTIONS":
            return 200, b"", allowed
        if handler is None:
            status, body, headers = _version_1(405, "METHOD_NOT_ALLOWED")
            return status, body, headers + allowed
        try:
            value = handler(request)
        except HTTPFailure as failure:
            return _version_1(failure.status, failure.text)
        if handler in self._plain:
            return 200, str(value).encode(), [("Content-Type", _TEXT)]
        return _version_1(200, value)


def _version_1(status: int, value: object) -> tuple[int, bytes, list[tuple[str, str]]]:
    """Encode a reply in nsqd's format (internal/http_api/api_response.go @v1.3.0)."""
    headers = [("X-NSQ-Content-Type", "nsq; version=1.0")]
    if status != 200:
        return status, gojson.encode({"message": value}), [("Content-Type", _JSON), *headers]
    if value in (None, "", b""):
        return status, b"", headers
    if isinstance(value, bytes):
        return status, value, [("Content-Type", _TEXT), *headers]
    if isinstance(value, str):
        return status, value.encode("utf-8", "surrogateescape"), [("Content-Type", _TEXT), *headers]
    return status, gojson.encode(value), [("Content-Type", _JSON), *headers]


class _Handler(WSGIHandler):
    """Ignores a client that disconnects during its request.  gevent would print a traceback."""

    def read_request(self, raw_requestline: str) -> Any:
        try:
            return super().read_request(raw_requestline)
        except OSError:
            return None


class _Server(WSGIServer):
    """Sets TCP_NODELAY, and ignores clients that disconnect before they receive the reply."""

    handler_class = _Handler

    def handle(self, sock: Any, address: Any) -> None:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # otherwise each body waits 40 ms for an ACK
            super().handle(sock, address)
        except OSError:
            pass


class HTTPListener:
    """An HTTP or HTTPS server in the calling thread's hub.

    The constructor opens the port, and :meth:`start` begins to accept connections.
    """

    def __init__(self, host: str, port: int, app: App, context: ssl.SSLContext | None = None) -> None:
        self._socket = listen(host, port)
        self.port: int = self._socket.getsockname()[1]
        tls: dict[str, Any] = {} if context is None else {"ssl_context": context}
        pool = gevent.pool.Pool(_MOST_CONNECTIONS)
        self._server = _Server(self._socket, app, log=None, error_log=None, spawn=pool, **tls)

    def start(self) -> None:
        """Start to accept connections.  The call may switch greenlets, because gevent looks up the host's name."""
        self._server.start()

    def sockets(self) -> list[Any]:
        """Return the open sockets.  A forked child closes its copies."""
        return [self._socket]

    def close(self) -> None:
        """Stop at once, and close all connections."""
        self._server.stop(timeout=0)
        self._socket.close()
