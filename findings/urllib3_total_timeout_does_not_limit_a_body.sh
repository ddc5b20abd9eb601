#!/bin/sh
# urllib3 2.8.0: Timeout(total=0.5) limits the connect and each single read of the response, not their sum.  A body of which
# one byte comes every 0.2 s takes two seconds and raises no timeout.
# Depends on it: gnsq_lite/http/transport.py, which limits each read to the time that the call has left;
# tests/system/test_http_hostile.py.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check urllib3==2.8.0
seen=$("$folder/venv/bin/python" - "$folder" <<'PROGRAM'
import threading
import time
from socketserver import StreamRequestHandler, ThreadingTCPServer

import urllib3


class Slow(StreamRequestHandler):
    def handle(self) -> None:
        while self.rfile.readline() not in (b"\r\n", b""):
            pass
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n")
        for _ in range(10):
            time.sleep(0.2)
            self.wfile.write(b"x")


ThreadingTCPServer.daemon_threads = True
server = ThreadingTCPServer(("127.0.0.1", 0), Slow)
threading.Thread(target=server.serve_forever, daemon=True).start()
start = time.monotonic()
limit = urllib3.Timeout(total=0.5)
body = urllib3.PoolManager().request("GET", f"http://127.0.0.1:{server.server_address[1]}/", timeout=limit).data
print(len(body), "bytes; longer than the total timeout:", time.monotonic() - start > 1.5)
PROGRAM
)
echo "$seen"
[ "$seen" = "10 bytes; longer than the total timeout: True" ]
