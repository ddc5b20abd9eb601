"""A Writer's connection that its loop opens and watches, and whose socket it lends to callers' threads.

The loop watches the socket while no thread reads, sends what no thread waits for, and gets every read that holds more
than OKs and receipts, so that one place decides what an answer means.  The threads' side is
:class:`gnsq_lite.publish.shared_connection.SharedConnection`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, cast

from gnsq_lite.clock import SYSTEM_CLOCK
from gnsq_lite.errors import ConnectionLost
from gnsq_lite.net.connection import Connection
from gnsq_lite.net.loop import Loop
from gnsq_lite.net.nested import holding, is_nested
from gnsq_lite.net.stream import Stream
from gnsq_lite.net.target import Target
from gnsq_lite.options import ConnectionOptions
from gnsq_lite.publish.answer_queue import AnswerQueue
from gnsq_lite.publish.carrying import carry, pure_carry
from gnsq_lite.publish.in_threads import InThreads
from gnsq_lite.publish.pipelined import REROUTED, STALE, PublishOwner
from gnsq_lite.publish.publication import Publication
from gnsq_lite.publish.thread_io import ThreadIO

#: The loop, in a role that the publish of a thread may have too.
LOOP: Any = object()
#: Publishes and their commands; None for what is no publish.
Queue = list[tuple["Publication | None", bytes]]


class WatchedConnection(Connection):
    """A connection to one nsqd, with what its loop does on it."""

    outlives = REROUTED

    __slots__ = (
        *("_queue", "_pending", "_followers", "_sender", "_reader", "_lent", "_ending", "_sends", "_reads"),
        *("read_at", "_lock", "_destination", "_taken", "_fd", "_bytes_in", "_bytes_out", "_join_queue"),
    )

    def __init__(
        self,
        loop: Loop,
        target: Target,
        options: ConnectionOptions,
        owner: PublishOwner,
        threads: InThreads,
        pending: AnswerQueue[Publication],
        join_queue: Callable[[Queue], Queue] | None = None,
    ) -> None:
        super().__init__(loop, target, options, owner, threads.clock)
        self._destination, self._threads, self._lock, self._pending = owner, threads, threads.lock, pending
        self._taken = threads.taken
        #: What is not written yet, and what joins neighbours to MPUBs.
        self._queue: Queue = []
        self._join_queue = join_queue
        #: Publishes whose threads wait for their answer, or to read.
        self._followers: deque[Publication] = deque()
        self._sender: Any = None
        self._reader: Any = LOOP
        #: Whether threads may use it; and whether its end waits for one that still does.
        self._lent = self._ending = False
        #: Whether the thread that sends, or reads, is where its interruption would lose what it has.
        self._sends = self._reads = False
        #: Roles whose publish had an outcome when last looked at.
        self._overstayed: list[Any] = []
        #: How threads send and read, once they may.
        self._io = cast("ThreadIO", None)
        #: What carries a plain publish, by that descriptor, and counts bytes of its own.
        self._carry, self._fd = pure_carry, -1
        self._bytes_in = self._bytes_out = 0

    # -- for the loop

    def run(self) -> None:
        """Read until the connection ends, beside the threads; waits.  Always ends with an exception, the reason."""
        stream = self._stream
        if stream is not None:
            stream.hears_out = True
        if stream is not None and stream.share(self):
            self._io = ThreadIO(stream, self._codec)
            if self._codec is not None:
                self._codec = self._io
            if not self._io.is_coded and self.clock is SYSTEM_CLOCK:
                self._carry, self._fd = carry, self._io.fd
            self._lent = True
        super().run()

    def traffic(self) -> tuple[int, int]:
        """Bytes received and sent."""
        received, sent = super().traffic()
        return received + self._bytes_in, sent + self._bytes_out

    def _deliver(self, data: bytes) -> None:
        if self._decoder.pending_bytes or not self._settle(data):
            super()._deliver(data)

    def send(self, data: bytes) -> None:
        """Queue *data* that is not a publish.  From any thread; never waits."""
        with self._lock:
            self._enqueue(None, data)

    def send_publish(self, publication: Publication) -> bool:
        """Queue it; False, and nothing is sent, when the connection turns out to have ended; in the loop's thread."""
        if self._is_stale() and cast("Stream", self._stream).has_ended():
            self._destination.on_disconnected(self)
            return False
        command = publication.command()
        with self._lock:
            self._enqueue(publication, command)
        return True

    def _enqueue(self, publication: Publication | None, command: bytes) -> None:
        """Queue a command; all that is queued in one turn of the loop is one write.  Under the lock."""
        self._queue.append((publication, command))
        if not self._due:
            self.loop.call_soon(self._flush)  # first: a thread may be interrupted in between
            self._due = True

    def put_in_thread(self, publication: Publication) -> bool:
        """Queue a publish that nobody waits for yet; False: the loop is to carry it out."""
        if not self._queue and self._is_stale():
            return False  # the loop looks whether it has ended
        # One that may be joined to others has its command when it is sent.
        joins = self._join_queue is not None and not (publication.batch or publication.data)
        command = b"" if joins else publication.command()
        with self._lock:
            if not self._lent or self._destination.silent:
                return False
            self._enqueue(publication, command)
        return True

    def _flush(self) -> None:
        with self._lock:
            self._due = False
            mine = self._sender is None
            if mine:
                self._sender = LOOP
        self._watch()
        if mine:
            self._send_queued()

    def _send_queued(self) -> None:
        """Write what is queued; what nsqd does not take now goes on when it does."""
        stream: Any = self._stream
        stream.send_own()
        while stream.closed is None and not (stream.unsent and self._lent) and (data := self._take_queue()) is not None:
            self._emit(data)

    def drained(self) -> None:
        """Go on if it is the loop that sends: nsqd has taken what it had written, or a thread left the rest to it."""
        with self._lock:
            goes_on = self._sender is LOOP
        if goes_on:
            self._send_queued()

    def _watch_soon(self) -> None:
        self.loop.call_soon(self._watch)

    def _watch(self) -> None:
        if self._reader is None and self._stream is not None:
            self._stream.watch()

    def loop_waits(self) -> bool:
        """The loop has read what it had: a thread that waits goes on, or else the loop watches."""
        with self._lock:
            if not self._decoder.pending_bytes:  # what is left of a frame goes to who has its beginning
                self._next_reader()
            return not isinstance(self._reader, Publication)

    def loop_reads(self) -> bool:
        """Something has come: the loop reads it unless a thread does."""
        with self._lock:
            if self._reader is None:
                self._reader = LOOP
            return self._reader is LOOP

    def _is_stale(self) -> bool:
        """Whether its end may not have shown: nothing is under way, nor was anything read just now."""
        return not (self._pending or self._queue) and self.clock.now() - self.read_at > STALE

    def unsent_publishes(self, *, take: bool = False) -> list[Publication]:
        """Return what is queued without an outcome, in order; with *take*, remove it too."""
        if holding and is_nested():  # stats() of a signal handler
            queue = list(self._queue)
        else:
            with self._lock:
                queue, self._queue = self._queue, [] if take else self._queue
        return [publication for publication, _ in queue if publication is not None and not publication.done()]

    def forget_done(self) -> None:
        """Drop what was given up before its turn: an nsqd that takes nothing may go on so for long."""
        with self._lock:
            self._queue = [each for each in self._queue if each[0] is None or not each[0].decided]

    def look_after(self) -> None:
        """Do what no thread does, and take back the role of a thread that is gone; called about once a second."""
        with self._lock:
            over = [role for role in (self._sender, self._reader) if isinstance(role, Publication) and role.done()]
            is_lost = any(role is old for role in over for old in self._overstayed)
            self._overstayed = over
            if is_lost:
                self._sender = self._reader = LOOP
        if is_lost:
            self.close(ConnectionLost(self.address, "a thread ended in the middle of a publish"))
        self._flush()  # what a thread that was interrupted has left, too

    def tls_sends(self) -> None:
        """TLS has something to send for itself, when nobody else sends; at the latest within a second."""
        self.loop.call_soon(self._flush)

    def sends(self) -> bool:
        """Whether a thread is sending."""
        return isinstance(self._sender, Publication)

    def leave(self) -> bool:
        """The stream ends: threads take no more roles."""
        with self._lock:
            self._lent = False
            self._ending = isinstance(self._sender, Publication) or isinstance(self._reader, Publication)
            return not self._ending

    # -- for both

    def _take_queue(self) -> bytes | None:
        """Return what to write now and expect its answers; None: nothing is left, and the sender is done."""
        with self._lock:
            queue = self._queue
            if not queue or not (self._lent or self._sender is LOOP):
                self._sender, self._sends = None, False
                return None
            commands = []
            if self._join_queue is not None:
                queue = self._join_queue(queue)
            self._queue = []
            try:
                for publication, command in queue:
                    if publication is not None:
                        if publication.decided:  # given up before its turn
                            continue
                        publication.sent = True
                        self._pending.append(publication)
                    commands.append(command)
            except BaseException:  # interrupted: each stays where the end of the connection finds it
                self._queue = [each for each in queue if each[0] not in self._pending]
                raise
        return commands[0] if len(commands) == 1 else b"".join(commands)

    def _settle(self, data: bytes) -> bool:
        """Settle what a read of nothing but OKs answers; False: it is for the loop."""
        with self._lock:
            return not self._destination.silent and self._pending.take_oks(data, self._threads.taken)

    def _next_reader(self) -> None:
        """Hand the reading on, to the first thread that waits; under the lock."""
        while self._followers:
            publication = self._followers.popleft()
            if not publication.decided and self._lent:
                self._reader = publication
                publication.open_gate()
                return
        self._reader = None

    def _next_sender(self) -> None:
        """Hand the sending on: to another thread that waits, to who reads, or to the loop; under the lock.

        The loop is the last: a handler may block it.  Who waits keeps its place in the line, and who reads looks
        between two reads.
        """
        for other in (*self._followers, self._reader):
            if self._lent and isinstance(other, Publication) and other is not self._sender and not other.decided:
                self._sender = other
                if other is not self._reader:
                    other.open_gate()
                return
        self.loop.call_soon(self.drained)  # first: a thread may be interrupted in between
        self._sender = LOOP
