"""A nsqlookupd that says one thing."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def lookupd(job: dict[str, Any], address: str) -> Iterator[None]:
    """Serve ``/lookup`` with one nsqd while inside, where the case asks for it."""
    if job.get("extra") != "lookupd":
        yield
        return
    host, port = address.rsplit(":", 1)
    producer = {"broadcast_address": host, "tcp_port": int(port), "http_port": 1, "hostname": host, "version": "1.3.0"}
    text = json.dumps({"channels": [], "producers": [producer]}).encode()

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    job["lookupd"] = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
