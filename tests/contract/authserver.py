"""An HTTP auth server for nsqd: it sends the responses that a test sets, and records the requests."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


class AuthServer:
    """Use as a context manager.  ``answers`` maps a secret to (status, reply); other secrets get 403."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, Any]] = {}
        #: The query of each request.
        self.asked: list[dict[str, str]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
                server.asked.append({"path": parts.path, **query})
                status, reply = server.answers.get(query.get("secret", ""), (403, {"message": "NO"}))
                body = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    @property
    def address(self) -> str:
        """``host:port``."""
        host, port = self._server.server_address[:2]
        return f"{host!s}:{port}"

    def allow(
        self,
        secret: str,
        *,
        topic: str = ".*",
        channels: tuple[str, ...] = (".*",),
        permissions: tuple[str, ...] = ("subscribe", "publish"),
        ttl: int = 60,
    ) -> None:
        """Give *secret* one authorization."""
        authorization = {"topic": topic, "channels": list(channels), "permissions": list(permissions)}
        reply = {"ttl": ttl, "identity": "me", "identity_url": "http://me.example", "authorizations": [authorization]}
        self.answers[secret] = (200, reply)

    def __enter__(self) -> AuthServer:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
