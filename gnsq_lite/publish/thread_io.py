"""What threads send and read on a connection that they share with the loop, with its TLS and its compression.

Each direction is one stream: who sends encodes and writes in one order, who reads decodes in the order of the reads.
What a thread has decoded and is not for it, the loop takes as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, islice

from gnsq_lite.errors import DecompressionError, NSQConnectionError
from gnsq_lite.net.stream import Stream
from gnsq_lite.wire.compress import Codec


class ThreadIO:
    """The coding of one connection: for threads, of whom one sends and one reads at a time; for the loop, the codec.

    A thread that is interrupted in here leaves a stream on which nothing more can be sent, or read.
    """

    def __init__(self, stream: Stream, codec: Codec | None) -> None:
        self._stream, self._codec = stream, codec
        #: Of bytes at most; waits a moment, and then raises BlockingIOError.  And what sends, with its flags.
        self.receive, self.write, self.flags, self.fd = stream.calls()
        #: Whether bytes change on the way; where they do not, neither coding needs to be asked.
        self.is_coded = codec is not None or stream.tls is not None
        #: What a thread has decompressed, and the loop is to take first.
        self._held: Iterator[bytes] = iter(())

    def encode(self, data: bytes) -> bytes:
        """Return what to send for *data*.  Raises TLSError."""
        return self._stream.encrypt(data if self._codec is None else self._codec.compress(data))

    def decode(self, data: bytes, take: Callable[[bytes], bool]) -> bytes | NSQConnectionError | None:
        """Have *take* called with what a read completes, if that is not much; return what to give to the loop.

        None: nothing, for it was taken, or nothing is complete.  b"": all of it comes from :meth:`decompress`.
        """
        try:
            plain = self._stream.decrypt(data)
        except NSQConnectionError as error:
            return error
        if self._codec is None or not plain:
            return None if not plain or take(plain) else plain
        pieces, first = self._codec.decompress(plain), list[bytes]()
        try:
            first.extend(islice(pieces, 2))  # no more: they may be without end
        except DecompressionError:
            pieces = iter(())  # the codec raises it again when the loop has had what came before
        else:
            if not first or (len(first) == 1 and take(first[0])):
                return None
        self._held = chain(first, pieces)
        return b""

    # -- for the loop, as its codec

    def compress(self, data: bytes) -> bytes:
        """Return *data* compressed."""
        return data if self._codec is None else self._codec.compress(data)

    def decompress(self, data: bytes) -> Iterator[bytes]:
        """Yield what a thread has left, and what *data* decompresses to.  Raises DecompressionError."""
        held, self._held = self._held, iter(())
        yield from held
        if self._codec is not None:
            yield from self._codec.decompress(data)
