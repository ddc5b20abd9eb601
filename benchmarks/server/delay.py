"""A proxy that delays each direction by a millisecond: ``python delay.py HOST:PORT``.  It prints its own address."""

from __future__ import annotations

import select
import socket
import sys
import time
from collections import deque
from typing import Any


def proxy(target: str) -> None:
    """Forward connections to *target*, and delay every chunk by a millisecond.  Uses a single thread."""
    host, _, port = target.rpartition(":")
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    print(f"127.0.0.1:{listener.getsockname()[1]}", flush=True)
    poll, ends, late = select.epoll(), dict[int, tuple[socket.socket, socket.socket]](), deque[Any]()
    poll.register(listener, select.EPOLLIN)
    while True:
        wait = max(0.0, late[0][0] - time.monotonic()) if late else -1
        for fd, _ in poll.poll(wait):
            if fd == listener.fileno():
                pair = (listener.accept()[0], socket.create_connection((host, int(port))))
                for source, sink in (pair, pair[::-1]):
                    source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    ends[source.fileno()] = (source, sink)
                    poll.register(source, select.EPOLLIN)
                continue
            source, sink = ends[fd]
            try:
                data = source.recv(65536)
            except OSError:
                data = b""
            if not data:
                poll.unregister(fd)
            late.append((time.monotonic() + 0.001, sink, data))
        while late and late[0][0] <= time.monotonic():
            _, sink, data = late.popleft()
            try:
                sink.sendall(data) if data else sink.shutdown(socket.SHUT_WR)
            except OSError:
                pass


if __name__ == "__main__":
    proxy(sys.argv[1])
