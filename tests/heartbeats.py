"""A proxy that measures how long heartbeats wait for their NOP; ``python -m tests.heartbeats HOST:PORT``.

A process of its own, so that the client's load does not stop its clock.  It prints its address, forwards connections
until its standard input ends, and prints the seconds of each heartbeat as JSON.  A heartbeat's time begins when its
bytes came from nsqd, before they are passed on, and ends when the NOP came from the client.  Bodies must contain
neither.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections import deque

HEARTBEAT = b"\x00\x00\x00\x0f\x00\x00\x00\x00_heartbeat_"
NOP = b"NOP\n"


class Counter:
    """Counts a pattern in a stream, however it is cut."""

    def __init__(self, pattern: bytes) -> None:
        self._pattern = pattern
        self._tail = b""

    def count(self, data: bytes) -> int:
        """Return how often the pattern ends in *data*."""
        whole = self._tail + data
        self._tail = whole[-(len(self._pattern) - 1) :]
        return whole.count(self._pattern)


class Gaps:
    """The seconds between the heartbeats and the NOPs of all connections."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._open: list[deque[float]] = []

    def connection(self) -> deque[float]:
        """Return the times of a connection's heartbeats that have no NOP yet."""
        self._open.append(deque())
        return self._open[-1]

    def close(self, now: float, at_least: float = 0.5) -> list[float]:
        """Return all seconds; a heartbeat that waits for *at_least* is as slow as it is old."""
        return self.seconds + [now - at for waiting in self._open for at in waiting if now - at > at_least]


def forward(source: socket.socket, sink: socket.socket, pattern: bytes, seen: object) -> None:
    """Pass bytes on; call *seen* once for each *pattern* before its bytes are passed on."""
    counter = Counter(pattern)
    try:
        while data := source.recv(262144):
            for _ in range(counter.count(data)):
                seen()  # type: ignore[operator]
            sink.sendall(data)
    except OSError:
        pass
    for sock in (source, sink):
        try:
            sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


def serve(target: str, listener: socket.socket, gaps: Gaps) -> None:
    """Forward each connection to *target*."""
    host, _, port = target.rpartition(":")
    while True:
        client, _ = listener.accept()
        server = socket.create_connection((host, int(port)))
        for sock in (client, server):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        waiting = gaps.connection()

        def beaten(waiting: deque[float] = waiting) -> None:
            waiting.append(time.monotonic())

        def answered(waiting: deque[float] = waiting) -> None:
            if waiting:
                gaps.seconds.append(time.monotonic() - waiting.popleft())

        threading.Thread(target=forward, args=(server, client, HEARTBEAT, beaten), daemon=True).start()
        threading.Thread(target=forward, args=(client, server, NOP, answered), daemon=True).start()


class Watch:
    """The proxy as a process, seen from the one that is measured."""

    def __init__(self, target: str) -> None:
        command = [sys.executable, "-m", "tests.heartbeats", target]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().decode().strip()

    def end(self) -> list[float]:
        """End it and return the seconds of each heartbeat."""
        output, _ = self._process.communicate()
        return [float(each) for each in json.loads(output or b"[]")]


def main(target: str) -> None:
    """Run until standard input ends."""
    listener = socket.create_server(("127.0.0.1", 0))
    gaps = Gaps()
    print(f"127.0.0.1:{listener.getsockname()[1]}", flush=True)
    threading.Thread(target=serve, args=(target, listener, gaps), daemon=True).start()
    sys.stdin.read()
    print(json.dumps(gaps.close(time.monotonic())), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
