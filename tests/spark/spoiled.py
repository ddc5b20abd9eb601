"""A proxy before an S3 server that spoils what a test tells it to: what no server does when it is asked to."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: What a rule is asked of: method, path, and whether the call may only create.
Asked = tuple[str, str, bool]


class Answer:
    """What becomes of a call."""

    def __init__(
        self, status: int = 0, code: str = "", *, lost: bool = False, late: int = 0, passes: bool = True
    ) -> None:
        #: This status, and S3's word for it, in place of the server's answer; 0: the server's own.
        self.status, self.code = status, code
        #: The connection is closed in place of an answer.
        self.lost = lost
        #: Seconds until the server has the call.
        self.late = late
        #: Whether the server gets the call at all.
        self.passes = passes


def refused(status: int, code: str) -> Answer:
    """Return the answer to a call that the server never has."""
    return Answer(status, code, passes=False)


Rule = Callable[[Asked], Answer | None]


def once(rule: Rule, times: int = 1) -> Rule:
    """Return *rule*, for the first calls of each kind."""
    seen: dict[Asked, int] = {}

    def limited(asked: Asked) -> Answer | None:
        answer = rule(asked)
        if answer is not None:
            seen[asked] = seen.get(asked, 0) + 1
        return answer if seen.get(asked, 0) <= times else None

    return limited


class Spoiled:
    """The server of *port* again, at :attr:`port`."""

    def __init__(self, port: int, options: dict[str, str]) -> None:
        self.rule: Rule = lambda asked: None
        #: Whether a call that may only create replaces what is there.
        self.replaces = False
        #: Those of a source.
        self.options, self._behind = options, port
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def ask(self, method: str, path: str, headers: list[tuple[str, str]], body: bytes) -> Any:
        """Return (status, headers, body) of the server's answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self._behind)
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, text in headers:
            connection.putheader(name, text)
        connection.endheaders(body)
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        return answer.status, answer.getheaders(), data


def _handler(proxy: Spoiled) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def call(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            creates = self.headers.get("If-None-Match") is not None
            answer = proxy.rule((self.command, self.path, creates)) or Answer()
            time.sleep(answer.late)
            status, headers, data = answer.status, [], b""
            if answer.passes:
                status, headers, data = proxy.ask(self.command, self.path, self.headers.items(), body)
            if answer.lost:
                self.close_connection = True
                return
            if answer.status:
                status, headers, data = answer.status, [], f"<Error><Code>{answer.code}</Code></Error>".encode()
            elif status == 412 and proxy.replaces:
                status, headers, data = 200, [("ETag", '"0"')], b""
            self.send_response_only(status)
            length = str(len(data))
            for name, text in headers:
                if name.lower() == "content-length" and self.command == "HEAD":
                    length = text
                elif name.lower() not in ("content-length", "transfer-encoding", "connection"):
                    self.send_header(name, text)
            self.send_header("Content-Length", length)
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = call

    return Handler
