"""A Writer's connection on which callers' threads publish by themselves: leader and followers.

A thread that finds nobody sending sends for all.  A thread that finds nobody reading reads for all until its own answer
has come, and hands the reading to the first that still waits.  The loop takes part too: it watches the socket while no
thread reads, sends what no thread waits for, and gets every read that holds more than OKs and receipts, so that one
place decides what an answer means.

A thread may be interrupted anywhere.  Each role belongs to a publish, so a role left behind is noticed; the connection
ends only if a command or an answer may have been torn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from gnsq_lite.errors import ConnectionLost, NSQConnectionError
from gnsq_lite.net.connection import Connection
from gnsq_lite.net.loop import Loop
from gnsq_lite.net.os_threads import native_lock
from gnsq_lite.net.stream import READ_SIZE, Stream, lost
from gnsq_lite.net.target import Target
from gnsq_lite.options import ConnectionOptions
from gnsq_lite.publish.answer_queue import AnswerQueue
from gnsq_lite.publish.in_threads import InThreads
from gnsq_lite.publish.pipelined import STALE, PublishOwner
from gnsq_lite.publish.publication import Publication
from gnsq_lite.publish.thread_io import ThreadIO

_ONE_READ = (READ_SIZE,)
#: Writes that a thread does for others before it leaves them to the loop.
_MOST_WRITES = 8
#: The loop, in a role that the publish of a thread may have too.
LOOP: Any = object()
#: Publishes and their commands; None for what is no publish.
Queue = list[tuple["Publication | None", bytes]]


class SharedConnection(Connection):
    """A connection to one nsqd that the loop opens and watches, and threads use."""

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

    # -- for the loop

    def run(self) -> None:
        """Read until the connection ends, beside the threads; waits.  Always ends with an exception, the reason."""
        stream = self._stream
        if stream is not None and stream.share(self):
            self._io = ThreadIO(stream, self._codec)
            if self._codec is not None:
                self._codec = self._io
            self._lent = True
        super().run()

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
        if self._is_stale():
            return False  # the loop looks whether it has ended
        command = publication.command()
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
        with self._lock:
            queue, self._queue = self._queue, [] if take else self._queue
        return [publication for publication, _ in queue if publication is not None and not publication.done()]

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

    # -- for a caller's thread

    def publish(self, publication: Publication, command: bytes) -> bool:
        """Publish, and wait for the outcome, in the caller's thread; False: nothing was sent, it is the loop's."""
        try:
            with self._lock:
                if not self._lent or self._destination.silent:
                    return False
                stale = False
                if self._reader is None:
                    self._reader = publication
                    stale = not self._pending and self.clock.now() - self.read_at > STALE
                if not stale:
                    self._join(publication, command)
            if stale and not self._join_alive(publication, command):
                return False
            if self._sender is publication:
                self._send_for_all()
            while not publication.decided:
                if self._reader is publication:
                    self._read_for_all(publication)
                else:
                    self._follow(publication)
            return True
        except BaseException:
            self._threads.left_alone(publication)
            raise
        finally:
            self._quit(publication)

    def _join(self, publication: Publication, command: bytes) -> None:
        """Queue it and take what role is free; under the lock."""
        self._queue.append((publication, command))
        if self._sender is None:
            self._sender = publication
        if self._reader is not publication:
            self._wait_in_line(publication)

    def _join_alive(self, publication: Publication, command: bytes) -> bool:
        """As the reader, check that the connection is alive, and queue it; False: something has arrived."""
        alive = not self._stream.something_came()  # type: ignore[union-attr]
        with self._lock:
            # What came may be the answer to one that another thread has sent meanwhile.
            if (alive or self._pending) and self._lent:
                self._join(publication, command)
                return True
        self.loop.call_soon(self._watch)
        return False

    def _wait_in_line(self, publication: Publication) -> None:
        gate = native_lock()
        gate.acquire()
        publication.gate = gate
        self._followers.append(publication)

    def _take_queue(self) -> bytes | None:
        """Return what to write now and expect its answers; None: nothing is left, and the sender is done."""
        with self._lock:
            queue = self._queue
            if not queue or not (self._lent or self._sender is LOOP):
                self._sender, self._sends = None, False
                return None
            commands = []
            if self._join_queue is not None and len(queue) > 1:
                queue = self._join_queue([each for each in queue if each[0] is None or not each[0].decided])
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

    def _send_for_all(self) -> None:
        for _ in range(_MOST_WRITES):
            self._sends = True
            data = self._take_queue()
            if data is None:
                return
            try:
                if self._io.is_coded:
                    data = self._io.encode(data)
                sent = self._io.write(data, self._io.flags)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError as error:
                self._leave_sending(partial(self.close, lost(self.address, error)))
                return
            self._stream.bytes_out += sent  # type: ignore[union-attr]
            if sent < len(data):
                self._stream.leave_rest(data[sent:])  # type: ignore[union-attr]
                break
            self._sends = False
        self._leave_sending(self.drained)

    def _leave_sending(self, act: Callable[[], None]) -> None:
        """Let the loop go on with *act* in the thread's place."""
        with self._lock:
            self.loop.call_soon(act)
            self._sender, self._sends = LOOP, False

    def _read_for_all(self, mine: Publication) -> None:
        """Read once, and settle what was answered."""
        got: list[bytes] = []
        try:
            got.extend(map(self._io.receive, _ONE_READ))  # so that an interruption leaves in the list what has come
        except (BlockingIOError, InterruptedError):
            self._keep_deadline(mine)
            return
        except OSError as error:
            self._give_back(lost(self.address, error), mine)
            return
        finally:
            if got:  # if only with an interruption
                self._reads = True
                self._take_read(got[0], mine)
        if not mine.decided:  # answers to others may come without a pause
            self._keep_deadline(mine)

    def _take_read(self, data: bytes, mine: Publication) -> None:
        """Settle what a read answers, or leave it to the loop."""
        if data and not self._io.is_coded and self._settle(data):
            self._stream.bytes_in += len(data)  # type: ignore[union-attr]
        elif (left := self._io.decode(data, self._settle)) is not None:
            self._give_back(left, mine)
            return
        self.read_at, self._reads = self.clock.now(), False

    def _settle(self, data: bytes) -> bool:
        """Settle what a read of nothing but OKs answers; False: it is for the loop."""
        with self._lock:
            return not self._destination.silent and self._pending.take_oks(data, self._threads.taken)

    def _give_back(self, data: bytes | NSQConnectionError, mine: Publication) -> None:
        """Leave the reading, and what was read, to the loop."""
        with self._lock:
            if mine.gate is not None:  # it waits in line again, in front
                self._followers.appendleft(mine)
            self._stream.give(data)  # type: ignore[union-attr]
            self._reader = LOOP
            self._reads = False

    def _follow(self, mine: Publication) -> None:
        """Wait until it is answered, or is to read."""
        gate = mine.gate
        if gate is None:
            with self._lock:
                if self._reader is None and self._lent:
                    self._reader = mine
                else:
                    self._wait_in_line(mine)
        elif not gate.acquire(True, max(0.0, mine.deadline - self.clock.now())):
            self._keep_deadline(mine)

    def _keep_deadline(self, mine: Publication) -> None:
        if self.clock.now() >= mine.deadline:
            self._threads.give_up(mine)
            with self._lock:  # the loop, which sees to the rest of it, may be a turn away (PUB-4)
                if self._pending and self._pending[0].done():
                    self._destination.silent = True

    def _next_reader(self) -> None:
        """Hand the reading on, to the first thread that waits; under the lock."""
        while self._followers:
            publication = self._followers.popleft()
            if not publication.decided and self._lent:
                self._reader = publication
                publication.open_gate()
                return
        self._reader = None

    def _quit(self, mine: Publication) -> None:
        """Give back its role; its thread leaves, normally or interrupted."""
        with self._lock:
            torn = False
            if not mine.decided and mine in self._followers:
                self._followers.remove(mine)  # nobody is there to read any more
            if self._reader is mine:
                torn, self._reader = self._reads, LOOP
                if not torn:  # else what comes next would answer what was read already
                    self._next_reader()
                if self._reader is None and self._pending:
                    self.loop.call_soon(self._watch)
            if self._sender is mine:
                torn = torn or self._sends
                self._sender = LOOP
                if not torn:
                    self.loop.call_soon(self.drained)
            if self._ending and not (isinstance(self._sender, Publication) or isinstance(self._reader, Publication)):
                self._ending = False
                self._stream.release()  # type: ignore[union-attr]
        if torn:
            why = "a thread was interrupted in the middle of a write or of an answer"
            self.loop.call_soon(lambda: self.close(ConnectionLost(self.address, why)))
