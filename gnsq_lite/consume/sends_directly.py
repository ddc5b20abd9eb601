"""A Reader's connection that can send an answer at once, past the stream: where a message comes only after it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from gnsq_lite.consume.subscribed import Subscribed
from gnsq_lite.net.lost import lost
from gnsq_lite.net.stream import Stream


class SendsDirectly(Subscribed):
    """Writes to the socket itself where no bytes change on their way."""

    def __init__(self, *connection: Any, **options: Any) -> None:
        super().__init__(*connection, **options)
        #: Sends, with those flags, past the stream; None: bytes change on their way.
        self._write: Callable[[bytes, int], int] | None = None
        self._flags = 0

    def run(self) -> None:
        """Read until the connection ends; waits.  Always ends with an exception, the reason."""
        stream = self._stream
        if stream is not None and stream.tls is None and self._codec is None:
            self._use_socket(stream)
        super().run()

    def _use_socket(self, stream: Stream) -> None:
        """Have what passes the stream by, where no bytes change on their way."""
        _, self._write, self._flags, _ = stream.calls()

    def _send_here(self, data: bytes) -> None:
        """Send *data*, while nothing else waits to be sent; what nsqd does not take now is for the loop."""
        stream: Any = self._stream
        try:
            sent = self._write(data, self._flags)  # type: ignore[misc]
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self.loop.call_soon(partial(self.close, lost(self.address, error)))
            return
        stream.bytes_out += sent
        if sent < len(data):
            stream.leave_rest(data[sent:])
