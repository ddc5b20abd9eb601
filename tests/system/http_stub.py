"""HTTP servers for tests: one runs a script for each connection, the other has a table of answers."""

from __future__ import annotations

import json
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

Script = Callable[[socket.socket], None]


@contextmanager
def scripted(script: Script) -> Iterator[str]:
    """Listen on a free port, and run *script* with each connection.  Yield ``host:port``."""
    listener = socket.create_server(("127.0.0.1", 0))
    stopped = threading.Event()
    open_sockets: list[socket.socket] = []

    def serve(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            script(connection)

    def accept() -> None:
        while not stopped.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            open_sockets.append(connection)
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        stopped.set()
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for connection in open_sockets:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def read_request(connection: socket.socket) -> bytes:
    """Read and return the head of one request, with the bytes of the body that came with it."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = connection.recv(65536)
        if not part:
            break
        data += part
    return data


def answer(body: bytes, status: str = "200 OK", **headers: str) -> bytes:
    """Return the bytes of a complete answer."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def replying(reply: bytes) -> Script:
    """Return a script that reads a request, sends *reply*, and waits until the client disconnects."""

    def script(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(reply)
        while connection.recv(65536):
            pass

    return script


class Stub:
    """A correct server: set ``stub.answers["/lookup"] = (200, {...})``; ``stub.requests`` has the requests."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.answers: dict[str, tuple[int, Any]] = {}
        self.requests: list[Request] = []


class Request:
    """One request that the stub received."""

    def __init__(self, method: str, target: str, headers: dict[str, str], body: bytes, port: int) -> None:
        self.method, self.target, self.headers, self.body, self.port = method, target, headers, body, port
        self.path = urlsplit(target).path
        self.params = {name: values[0] for name, values in parse_qs(urlsplit(target).query).items()}


@contextmanager
def stub(tls: ssl.SSLContext | None = None, port: int = 0) -> Iterator[Stub]:
    """Serve a :class:`Stub` on *port* (0: a free port), over TLS if *tls* is given."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Request(self.command, self.path, headers, body, self.client_address[1])
            served.requests.append(request)
            status, value = served.answers.get(request.path, (404, {"message": "NOT_FOUND"}))
            reply = value if isinstance(value, bytes) else json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        do_GET = do_POST = do_PUT = serve

        def log_message(self, *args: Any) -> None:
            """Log nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *args: Any) -> None:
            """Print nothing, because some tests expect a refused handshake."""

        def _handle_request_noblock(self) -> None:
            """Accept in this process only: a forked child that is monkey-patched inherits this loop as a greenlet."""
            if os.getpid() == owner:
                super()._handle_request_noblock()  # type: ignore[misc]

    owner = os.getpid()
    server = Server(("127.0.0.1", port), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    served = Stub(f"127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
