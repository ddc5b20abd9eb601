"""Many HTTP clients at once that poll, drip or say nothing, and come again when they are turned away."""

from __future__ import annotations

import contextlib
import errno
import resource
import selectors
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from typing import Literal

Kind = Literal["poll", "drip", "silent"]

#: Seconds from an answer to a client's next question, and from one dripped byte to the next.
_PAUSE = 1.0
_DRIP = 0.5
_HEAD = b"GET /api/status HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "
_WHOLE = b"GET /api/status HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


class Crowd:
    """*count* clients of one address, all in one thread."""

    def __init__(self, address: tuple[str, int], kind: Kind, count: int) -> None:
        self._address, self._kind, self._count = address, kind, count
        self._selector = selectors.DefaultSelector()
        self._answers: dict[socket.socket, bytearray] = {}
        self._due: deque[tuple[float, socket.socket | None]] = deque()
        self._ends = threading.Event()
        #: Answers by status line, connections that ended without one, and connections made.
        self.seen: Counter[str] = Counter()

    def run(self) -> None:
        """Go on until told to end."""
        now = time.monotonic()
        self._due.extend((now, None) for _ in range(self._count))
        while not self._ends.is_set():
            now = time.monotonic()
            for _ in range(len(self._due)):
                at, client = self._due.popleft()
                if at > now:
                    self._due.append((at, client))
                elif client is None:
                    self._connect()
                else:
                    self._drip(client)
            for key, events in self._selector.select(0.02):
                self._act(key.fileobj, events)  # type: ignore[arg-type]
        for client in self._answers:
            client.close()
        self._selector.close()

    def end(self) -> None:
        self._ends.set()

    def _connect(self) -> None:
        client = socket.socket()
        client.setblocking(False)
        self._answers[client] = bytearray()
        self.seen["connections"] += 1
        error = client.connect_ex(self._address)
        assert error in (0, errno.EINPROGRESS), error
        self._selector.register(client, selectors.EVENT_READ | selectors.EVENT_WRITE)

    def _act(self, client: socket.socket, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                self._begin(client)
            if events & selectors.EVENT_READ:
                data = client.recv(1 << 18)
                self._answers[client] += data
                if not data:
                    self._ended(client, bytes(self._answers[client][:12]).decode("latin-1") or "none")
        except BlockingIOError:
            pass
        except OSError as error:
            self._ended(client, type(error).__name__)

    def _begin(self, client: socket.socket) -> None:
        self._selector.modify(client, selectors.EVENT_READ)
        if self._kind == "poll":
            client.sendall(_WHOLE)
        elif self._kind == "drip":
            client.sendall(_HEAD)
            self._due.append((time.monotonic() + _DRIP, client))

    def _drip(self, client: socket.socket) -> None:
        if client in self._answers:
            with contextlib.suppress(OSError):
                client.sendall(b"x")
            self._due.append((time.monotonic() + _DRIP, client))

    def _ended(self, client: socket.socket, how: str) -> None:
        self.seen[how] += 1
        self._selector.unregister(client)
        del self._answers[client]
        client.close()
        self._due.append((time.monotonic() + _PAUSE, None))


@contextlib.contextmanager
def crowd(address: tuple[str, int], kind: Kind, count: int) -> Iterator[Crowd]:
    """Send a crowd there, and have it leave."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 200
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard) if hard >= 0 else wanted, hard))
    found = Crowd(address, kind, count)
    thread = threading.Thread(target=found.run, name=f"{kind} crowd")
    thread.start()
    try:
        yield found
    finally:
        found.end()
        thread.join()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
