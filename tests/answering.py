"""A server for programs that tests run: it reads publishes and answers each as the program says."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable

OK = b"\0\0\0\6\0\0\0\0OK"


def answering(answer: Callable[[socket.socket, int], None]) -> str:
    """Serve connections; call *answer* with one and the number of the command it has read; return the address."""
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        with listener:
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    def serve(nsqd: socket.socket) -> None:
        # Closed here, as Python would warn of what is not; and it aborts where a daemon writes while it exits.
        with nsqd, nsqd.makefile("rb") as commands:
            commands.read(4)
            count = 0
            while commands.readline():
                commands.read(struct.unpack(">I", commands.read(4))[0])
                count += 1
                answer(nsqd, count)

    threading.Thread(target=accept, daemon=True).start()
    return f"127.0.0.1:{listener.getsockname()[1]}"
