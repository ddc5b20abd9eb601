"""Decodes bytes from nsqd into frames (WIRE-2 to WIRE-5).

::

    4 bytes  int32  size of the rest
    4 bytes  int32  type: 0 response, 1 error, 2 message
    the rest        data; in a message frame (nsqd/message.go:43 @v1.3.0):

    8 bytes  int64    time of the publish, nanoseconds since 1970
    2 bytes  uint16   attempts, including this one
    16 bytes          id (hexadecimal ASCII from nsqd; any bytes from Youzan's)
    the rest          body

The decoder accepts any bytes: it returns frames, holds an incomplete frame, or raises ProtocolError.  The result does
not depend on how the bytes are split into reads.  The decoder checks the size of a frame before it buffers the frame.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any, Final, Generic, NamedTuple, TypeVar

from gnsq_lite._core import scan
from gnsq_lite.errors import ProtocolError
from gnsq_lite.wire.constants import (
    FRAME_ERROR,
    FRAME_HEAD_LENGTH,
    FRAME_MESSAGE,
    FRAME_RESPONSE,
    HEARTBEAT,
    MAX_TEXT_FRAME,
    MESSAGE_HEAD_LENGTH,
    OK,
    SIZE_LENGTH,
    TYPE_LENGTH,
)
from gnsq_lite.wire.receive_buffer import ReceiveBuffer

MessageT = TypeVar("MessageT")


class Frame(NamedTuple):
    """A response or an error frame, or in the handshake any frame.  ``kind`` is one of the constants FRAME_*."""

    kind: int
    body: bytes


#: The two most frequent frames.  The decoder always returns these objects.
OK_FRAME: Final = Frame(FRAME_RESPONSE, OK)
HEARTBEAT_FRAME: Final = Frame(FRAME_RESPONSE, HEARTBEAT)

_FRAME_HEAD = Struct(">iI")
OK_BYTES: Final = _FRAME_HEAD.pack(TYPE_LENGTH + len(OK), FRAME_RESPONSE) + OK
_SMALLEST_MESSAGE: Final = TYPE_LENGTH + MESSAGE_HEAD_LENGTH


def count_oks(data: bytes) -> int:
    """Return the number of OK frames in *data*, or 0 if *data* contains anything else."""
    if data == OK_BYTES:
        return 1
    count = len(data) // len(OK_BYTES)
    return count if data == OK_BYTES * count else 0


class FrameDecoder(Generic[MessageT]):
    """Splits the bytes of one connection into messages and other frames.

    Args:
        max_frame_size: Maximum of a frame's size field (WIRE-4).  For frames that are not messages, the maximum is also
            MAX_TEXT_FRAME.
        make_message: Called as ``make_message(owner, timestamp_ns, attempts, id, body)`` for each message frame.
        owner: The first argument of *make_message*.

    After an error the decoder is unusable: feed() and feed_one() raise it again, and feed_messages() returns None.
    """

    def __init__(
        self,
        max_frame_size: int,
        make_message: Callable[[Any, int, int, bytes, bytes], MessageT],
        owner: Any = None,
    ) -> None:
        self.limit = max_frame_size
        self._buffer, self._is_buffering = ReceiveBuffer(), False
        self.make_message = make_message
        self.owner = owner
        #: Decodes message frames: :func:`gnsq_lite._core.scan`, or a function with the same arguments.
        self.scan: Callable[..., int] = scan
        #: The error that ended the stream, or None.
        self.error: ProtocolError | None = None

    @property
    def pending_bytes(self) -> int:
        """Number of held bytes, which belong to an incomplete frame."""
        return len(self._buffer)

    def feed(self, data: bytes) -> tuple[list[MessageT], list[Frame]]:
        """Decode the bytes of one read.  Return its complete messages in order, and its other complete frames in order.

        Raises ProtocolError for invalid bytes, and if ``make_message`` raises it.  If complete frames precede the
        invalid bytes, this call returns the frames and sets :attr:`error`.  The next call raises the error.
        """
        if self.error is not None:
            raise self.error
        whole = self._buffer.join(data) if self._is_buffering else data
        found: list[MessageT] = []
        others: list[Frame] = []
        if whole is not None:
            try:
                self._cut(whole, found, others)
            except ProtocolError as error:
                self._fail(error)
                if not found and not others:
                    raise
        return found, others

    def feed_messages(self, data: bytes) -> list[MessageT] | None:
        """Return the messages in *data* if it consists of complete, valid messages and no bytes are held, else None.

        If the result is None, pass *data* to :meth:`feed`.
        """
        if self._is_buffering or self.error is not None:
            return None
        found: list[MessageT] = []
        try:
            at = self.scan(data, 0, self.limit, self.make_message, self.owner, found)
        except ProtocolError:
            return None
        return found if at == len(data) else None

    def feed_one(self, data: bytes) -> Frame | None:
        """Decode bytes of a handshake.  Return one frame of any kind, or None if it is incomplete.

        The decoder holds the bytes after the frame for the next call.  If TLS or compression starts after the frame,
        the caller takes these bytes with :meth:`take_pending` (SEC-3).  Raises ProtocolError.
        """
        if self.error is not None:
            raise self.error
        whole = self._buffer.join(data)
        if whole is None:
            return None
        try:
            end = self._end(whole, 0)
        except ProtocolError as error:
            self._fail(error)
            raise
        if end > len(whole):
            self._keep(whole, end)
            return None
        self._keep(whole[end:], 0)
        return Frame(_FRAME_HEAD.unpack_from(whole)[1], whole[FRAME_HEAD_LENGTH:end])

    def take_pending(self) -> bytes:
        """Remove and return the held bytes."""
        self._is_buffering = False
        return self._buffer.take()

    def _fail(self, error: ProtocolError) -> None:
        self.error = error
        self.take_pending()

    def _keep(self, rest: bytes, wanted: int) -> None:
        self._buffer.keep(rest, wanted)
        self._is_buffering = bool(rest)

    def _cut(self, data: bytes, found: list[MessageT], others: list[Frame]) -> None:
        """Append the complete frames of *data* to the lists, and hold the rest."""
        at, length = 0, len(data)
        while True:
            while data.startswith(OK_BYTES, at) and self.limit >= 6:  # a Writer reads almost only OK
                others.append(OK_FRAME)
                at += len(OK_BYTES)
            if length - at >= _SMALLEST_MESSAGE:
                at = self.scan(data, at, self.limit, self.make_message, self.owner, found)
            if at == length:  # most reads end here
                if self._is_buffering:
                    self._keep(b"", 0)
                return
            end = self._end(data, at)
            if end > length:
                self._keep(data[at:], end - at)
                return
            kind, body = _FRAME_HEAD.unpack_from(data, at)[1], data[at + FRAME_HEAD_LENGTH : end]
            others.append(HEARTBEAT_FRAME if kind == FRAME_RESPONSE and body == HEARTBEAT else Frame(kind, body))
            at = end

    def _end(self, data: bytes, at: int) -> int:
        """Return the position after the frame at *at*, or after its next field if its head is incomplete."""
        known = len(data) - at
        if known < SIZE_LENGTH:
            return at + SIZE_LENGTH
        size = int.from_bytes(data[at : at + SIZE_LENGTH], "big", signed=True)
        if not TYPE_LENGTH <= size <= self.limit:
            raise _no_frame(f"a frame's size is {size}, outside {TYPE_LENGTH}..{self.limit}", data, at)
        if known < FRAME_HEAD_LENGTH:
            return at + FRAME_HEAD_LENGTH
        kind = _FRAME_HEAD.unpack_from(data, at)[1]
        if kind not in (FRAME_RESPONSE, FRAME_ERROR, FRAME_MESSAGE):
            raise _no_frame(f"unknown frame type {kind}", data, at)
        if kind == FRAME_MESSAGE and size < _SMALLEST_MESSAGE:
            raise ProtocolError(
                f"a message has {size - TYPE_LENGTH} bytes, less than its head of {MESSAGE_HEAD_LENGTH}"
            )
        if kind != FRAME_MESSAGE and size > MAX_TEXT_FRAME:
            what = "an error" if kind == FRAME_ERROR else "a response"
            raise ProtocolError(f"{what} has {size} bytes; the maximum is {MAX_TEXT_FRAME}")
        return at + SIZE_LENGTH + size


def _no_frame(why: str, data: bytes, at: int) -> ProtocolError:
    """Return the error for invalid bytes.  Its text names HTTP or TLS if the bytes at *at* look like HTTP or TLS."""
    if data.startswith(b"HTTP", at):
        why += ": this is an HTTP answer; use nsqd's TCP port (4150), not its HTTP port (4151)"
    elif data.startswith((b"\x15\x03", b"\x16\x03"), at):
        why += ": this is a TLS record; use nsqd's TCP port (4150), not its HTTPS port (4152)"
    return ProtocolError(why)
