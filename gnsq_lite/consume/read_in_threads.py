"""A connection whose handlers' threads go from one message to the next by themselves.

To hand a message to a thread, and its answer back to the loop, costs more than all else that is done for it.  So where
one message is in flight at a time, the thread whose handler has returned sends FIN itself, and waits a moment for the
next message, which it then handles.  It leaves to the loop whatever is no single message, and the reading when nothing
comes for a moment, or when all other threads of the pool are at work.  Where more are in flight is in
:mod:`gnsq_lite.consume.unordered_in_threads`.

While a thread handles a message that it has read, nobody reads: the server sends none before its FIN.  About once a
second, and when that message gets any other answer, the loop watches again: a heartbeat is answered while a handler
works.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from gnsq_lite.consume.sends_directly import SendsDirectly
from gnsq_lite.errors import ConnectionLost, NSQConnectionError, NSQError
from gnsq_lite.message import Message
from gnsq_lite.net.lost import lost
from gnsq_lite.net.nested import Holding, holds
from gnsq_lite.net.os_threads import native_ident, native_rlock
from gnsq_lite.net.stream import READ_SIZE, Stream
from gnsq_lite.wire import commands

#: Seconds that a thread waits for the next message, about.
MOMENT = 0.005
#: Who is about to take bytes from the socket, if it is not the thread of that number.
NOBODY, LOOP = 0, -1


class Threads(Protocol):
    """The pool whose threads run the handlers."""

    def can_spare_one(self) -> bool:
        """Whether a thread may wait for a moment."""

    @property
    def take_next(self) -> Callable[[Any], object]:
        """Queues what the calling thread is to do next."""

    def take_on(self, jobs: list[Any]) -> None:
        """Queue what the calling thread, and others, are to do next."""

    #: Called in each of the threads that finds nothing queued; True: it has queued something.
    read_on: Callable[[], bool]


class ReadInThreads(SendsDirectly):
    """The loop and one thread take turns; the lock guards whose turn it is, the counts and the writes."""

    def __init__(self, threads: Threads, *connection: Any, **options: Any) -> None:
        super().__init__(*connection, reads_in_hub=True, **options)
        self._threads = threads
        self._lock = native_rlock()
        self._reader = NOBODY
        #: Whether threads may use the socket; whether its end waits for the one that still does.
        self._is_lent = self._is_ending = False
        #: Whether a thread is to wait: messages have come at once.
        self._is_brisk = False
        self._ended_at = self.clock.now()
        self._receive: Callable[[int], bytes]

    # -- in a handler's thread

    def handled(self, message: Message) -> None:
        """Send FIN and wait a moment for the next message, for this thread to handle it; or leave both to the loop."""
        try:
            if not (self._is_brisk and self._may_wait() and self._end_here(message)):
                self._ended_at = self.clock.now()
                self.finish(message)
                return
            self._take_read(self._receive_here())
        except BaseException:
            self._close_for_ended_thread()
            raise

    def _receive_here(self) -> bytes | NSQConnectionError | None:
        """Return what comes, or the end of the connection; None: nothing, for a moment."""
        try:
            return self._receive(READ_SIZE)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            return lost(self.address, error)

    def _close_for_ended_thread(self) -> None:
        """The calling thread is ended, maybe with a FIN or a message in its hands."""
        self.loop.call_soon(partial(self.close, ConnectionLost(self.address, "a handler's thread was ended")))
        if self._reader == native_ident():
            self._take_read(None)

    def _may_wait(self) -> bool:
        """Whether the calling thread is not needed elsewhere for a moment."""
        return self._threads.can_spare_one()

    def _ends(self, message: Message) -> bool:
        """Under the lock: whether nothing is to be done for its end but to send FIN, and then for the next message."""
        raise NotImplementedError

    def _begins(self, message: Message) -> bool:
        """Under the lock: whether nothing is to be done for a message that has come but to handle it."""
        raise NotImplementedError

    @holds
    def _end_here(self, message: Message) -> bool:
        """Send FIN and become the reader; False, and nothing is done, where there is more to do than that."""
        with Holding(), self._lock:
            stream: Any = self._stream
            is_watched = self._flow.watches or not self._share
            if is_watched or not self._is_lent or self._reader or self._due or stream.unsent:
                return False
            if not self._ends(message):
                return False
            self._reader = native_ident()
            self.finished += 1
            self.in_flight.count -= 1
            self._send_here(commands.finish(message.id))
        return True

    def _take_read(self, data: bytes | NSQConnectionError | None) -> bool:
        """Have threads go on with what a read has brought, and return True; else the loop goes on."""
        messages = self._only_messages(data) if isinstance(data, bytes) and self._is_lent else None
        return self._go_on_with_one(messages, data)

    @holds
    def _go_on_with_one(self, messages: list[Message] | None, data: bytes | NSQConnectionError | None) -> bool:
        """Begin the message that has come, if *messages*, which is all of *data*, is but one."""
        with Holding(), self._lock:
            self._reader = NOBODY
            stream: Any = self._stream
            is_more = self._flow.watches or not self._share or self.in_flight.count
            if self._is_lent and messages and not is_more and self._takes_one(messages):
                stream.bytes_in += len(data)  # type: ignore[arg-type]
                return True
            if stream.closed is not None:
                if self._is_ending:
                    self._is_ending = False
                    stream.release()
            elif data is None:
                self.loop.call_soon(self._go_on_reading)
            else:
                self._reader = LOOP
                stream.give(self._checked(data))
        return False

    def _only_messages(self, data: bytes) -> list[Message] | None:
        """Return the messages that are all of *data*, which nobody has taken with that; None: it is anything else.

        Not under the lock, for which the loop waits: new objects have garbage collected, and a finalizer may wait for
        the loop.  The few that are made under the lock are why it is held as :mod:`gnsq_lite.net.nested` has it.
        """
        self.read_at = self.clock.now()
        return self._decoder.feed_messages(data)

    def _takes_one(self, messages: list[Message]) -> bool:
        """Under the lock: begin the message that has come, if it is but one."""
        if len(messages) > 1 or not self._begins(messages[0]):
            return False
        self.in_flight.add_first(messages, self.read_at)
        self._threads.take_next(messages[0])
        return True

    def _checked(self, data: bytes | NSQConnectionError) -> bytes | NSQConnectionError:
        """Return what a read has brought, or what its emptiness means."""
        try:
            return self._stream.decrypt(data) if isinstance(data, bytes) else data  # type: ignore[union-attr]
        except NSQConnectionError as error:
            return error

    # -- in the loop

    def _use_socket(self, stream: Stream) -> None:
        """Also: have threads read beside the loop."""
        super()._use_socket(stream)
        if stream.share(self, int(MOMENT * 1e6)):
            self._receive = stream.calls()[0]
            self._is_lent = self._is_brisk = True

    def _take_messages(self, data: bytes) -> bool:
        with self._lock:
            if not super()._take_messages(data):
                return False
            self._is_brisk = self.read_at - self._ended_at < MOMENT
            return self.loop_waits()

    def _go_on_reading(self) -> None:
        """Watch the socket again, unless a thread reads."""
        with self._lock:
            if self._reader == NOBODY and self.is_open():
                self._stream.watch()  # type: ignore[union-attr]

    def _flush(self) -> None:
        with self._lock:
            self._go_on_reading()  # a message may follow what goes out
            super()._flush()

    def check(self, now: float) -> None:
        """Also: answer what has come while a handler works."""
        self._go_on_reading()
        super().check(now)

    def count_out(self, now: float) -> list[Message]:
        """Do so while no thread begins a message."""
        with self._lock:
            return super().count_out(now)

    def cut(self) -> list[Message]:
        """The connection is gone."""
        with self._lock:
            return super().cut()

    def send_close(self, on_answered: Callable[[], None]) -> None:
        """Also: threads begin no more messages."""
        with self._lock:
            self._is_lent = False
            super().send_close(on_answered)

    def close(self, reason: NSQError) -> None:
        """Close at once; a thread that reads finds out."""
        with self._lock:
            super().close(reason)

    def abandon(self) -> None:
        """In a forked child: whoever held the lock is the parent's."""
        self._lock = native_rlock()
        self._is_lent = False
        super().abandon()

    # -- for the stream, in the loop: whose turn it is

    def loop_waits(self) -> bool:
        """The loop has read what it had."""
        with self._lock:
            if self._reader == LOOP:
                self._reader = NOBODY
            return self._reader == NOBODY

    def loop_reads(self) -> bool:
        """Something has come: the loop reads it unless a thread does."""
        with self._lock:
            if self._reader == NOBODY:
                self._reader = LOOP
            return self._reader == LOOP

    def leave(self) -> bool:
        """The stream ends: no thread reads from it again."""
        with self._lock:
            self._is_lent = False
            self._is_ending = self._reader not in (NOBODY, LOOP)
            return not self._is_ending

    def sends(self) -> bool:
        """Whether a thread is sending: never here, as it does so under the lock."""
        return False

    def drained(self) -> None:
        """What a thread could not send is sent."""

    def tls_sends(self) -> None:
        """There is no TLS."""
