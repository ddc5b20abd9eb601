"""Scripts for an nsqd that breaks the protocol."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.system.http_stub import scripted

#: Function that sends an nsqd's bytes on a connection.
Speak = Callable[[socket.socket], None]


def frame(kind: int, data: bytes) -> bytes:
    return struct.pack(">iI", len(data) + 4, kind) + data


OK = frame(0, b"OK")


HEAD = struct.pack(">qH16s", 1, 1, b"0123456789abcdef")


def read_command(connection: socket.socket) -> bytes:
    """Read a line; of IDENTIFY, AUTH and PUB also the body."""
    line = b""
    while not line.endswith(b"\n"):
        byte = connection.recv(1)
        if not byte:
            raise OSError("gone")
        line += byte
    if line.removeprefix(b"  V2").startswith((b"IDENTIFY", b"AUTH", b"PUB")):
        size = int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "big")
        connection.recv(size, socket.MSG_WAITALL)
    return line


def shake_hands(connection: socket.socket, **answer: Any) -> None:
    """Be an nsqd up to the answer to IDENTIFY."""
    read_command(connection)
    connection.sendall(frame(0, json.dumps({"max_rdy_count": 2500, "version": "1.3.0", **answer}).encode()))


def drain(connection: socket.socket) -> None:
    while connection.recv(65536):
        pass


@contextmanager
def hostile(speak: Speak) -> Iterator[tuple[str, list[int]]]:
    """Serve *speak*; yield its address and a list with an entry for each connection."""
    seen: list[int] = []

    def serve(connection: socket.socket) -> None:
        seen.append(1)
        speak(connection)

    with scripted(serve) as address:
        yield address, seen
