"""Scripts for an nsqd that breaks the protocol."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from tests.frames import OK, frame
from tests.system.http_stub import scripted

#: Function that sends an nsqd's bytes on a connection.
Speak = Callable[[socket.socket], None]


def steps(*each: bytes | Speak) -> Speak:
    """Return a script that sends the steps that are bytes, and calls the others with the connection."""

    def speak(connection: socket.socket) -> None:
        for step in each:
            if isinstance(step, bytes):
                connection.sendall(step)
            else:
                step(connection)

    return speak


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


def granting(**answer: Any) -> Speak:
    """Return the step that answers IDENTIFY with *answer*."""
    return partial(shake_hands, **answer)


def drain(connection: socket.socket) -> None:
    """Read until the client disconnects."""
    while connection.recv(65536):
        pass


def subscribed(*then: bytes | Speak) -> Speak:
    """Return a script that answers a Reader's SUB and does the steps *then*."""
    return steps(shake_hands, read_command, OK, *then)


def small_buffer(connection: socket.socket) -> None:
    """Let the kernel accept few bytes of the client that the script does not read."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)


@contextmanager
def hostile(speak: Speak) -> Iterator[tuple[str, list[int]]]:
    """Serve *speak*; yield its address and a list with an entry for each connection."""
    seen: list[int] = []

    def serve(connection: socket.socket) -> None:
        seen.append(1)
        speak(connection)

    with scripted(serve) as address:
        yield address, seen
