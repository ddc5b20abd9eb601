"""A Writer's connection on which callers' threads publish by themselves: leader and followers.

A thread that finds nobody sending sends for all, and after some writes another goes on.  A thread that finds nobody
reading reads for all until its own answer has come, and hands the reading to the first that still waits.  The loop
takes part too, in the base class.

A thread may be interrupted anywhere.  Each role belongs to a publish, so a role left behind is noticed; the connection
ends only if a command or an answer may have been torn.

Most publishes are carried by C (:mod:`gnsq_lite.publish.carrying`), which takes the same roles, and leaves to what is
here whatever is out of the ordinary: TLS and compression, all but OKs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from gnsq_lite.errors import ConnectionLost, NSQConnectionError
from gnsq_lite.net.lost import lost
from gnsq_lite.net.nested import holding, holds
from gnsq_lite.net.os_threads import native_ident
from gnsq_lite.net.stream import READ_SIZE
from gnsq_lite.publish.answer_queue import Taken
from gnsq_lite.publish.carrying import DONE, NOT_BEGUN, held_lock, know
from gnsq_lite.publish.coalescing import Gathering
from gnsq_lite.publish.pipelined import STALE
from gnsq_lite.publish.publication import Publication
from gnsq_lite.publish.watched_connection import LOOP, WatchedConnection

_ONE_READ = (READ_SIZE,)
#: Writes that a thread does for others before another does them.
_MOST_WRITES = 8


class SharedConnection(WatchedConnection):
    """A connection to one nsqd that the loop opens and watches, and threads use."""

    __slots__ = ()

    # -- for a caller's thread

    @holds
    def publish(self, publication: Publication, command: bytes) -> bool:
        """Publish, and wait for the outcome, in the caller's thread; False: nothing was sent, it is the loop's."""
        done = NOT_BEGUN
        try:
            done = self._carry(self, publication, command)
            if done == DONE:
                return True
            holding.add(native_ident())
            if done == NOT_BEGUN and not self._begin(publication, command):
                return False
            while not publication.decided:
                if self._sender is publication:
                    self._send_for_all()
                elif self._reader is publication:
                    self._read_for_all(publication)
                else:
                    self._follow(publication)
            return True
        except BaseException:
            self._threads.left_alone(publication)
            raise
        finally:
            if done != DONE:
                holding.add(native_ident())
                self._quit(publication)
                holding.discard(native_ident())

    def _begin(self, publication: Publication, command: bytes) -> bool:
        """Queue it and take what role is free; False: it is the loop's."""
        with self._lock:
            if not self._lent or self._destination.silent:
                return False
            stale = False
            if self._reader is None:
                self._reader = publication
                stale = not self._pending and self.clock.now() - self.read_at > STALE
            if not stale:
                self._join(publication, command)
        return not stale or self._join_alive(publication, command)

    def _join(self, publication: Publication, command: bytes) -> None:
        """Queue it and take what role is free; under the lock."""
        self._queue.append((publication, command))
        if self._sender is None:
            self._sender = publication
        if self._reader is not publication:
            self._wait_in_line(publication)

    def _join_alive(self, publication: Publication, command: bytes) -> bool:
        """As the reader, check that the connection is alive, and queue it; False: something has arrived."""
        alive = self._is_quiet(publication)
        with self._lock:
            if self._reader is not publication:
                return False  # what came is the loop's
            # What came may be the answer to one that another thread has sent meanwhile.
            if (alive or self._pending) and self._lent:
                self._join(publication, command)
                return True
        self._watch_soon()
        return False

    def _is_quiet(self, mine: Publication) -> bool:
        """As the reader: whether nothing has come, but for what decodes to nothing."""
        while self._stream.something_came():  # type: ignore[union-attr]
            if not self._io.is_coded:
                return False
            self._read_for_all(mine)
            if self._reader is not mine:
                return False
        return True

    def _wait_in_line(self, publication: Publication) -> None:
        publication.gate = held_lock()
        self._followers.append(publication)

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
            except OSError as error:
                self._on_failed_write(data, error)
                return
            if sent < len(data):
                self._leave_rest(data, sent)
                return
            self._bytes_out += sent
            self._sends = False
        self._hand_on_sending()

    def _hand_on_sending(self) -> None:
        with self._lock:
            self._next_sender()

    def _on_short_write(self, data: bytes, sent: int, error: int) -> None:
        """C has sent that much of *data*, if it is not negative; else *error* is the system's number."""
        if sent < 0:
            self._on_failed_write(data, OSError(error, os.strerror(error)))
        else:
            self._leave_rest(data, sent)

    def _on_failed_write(self, data: bytes, error: OSError) -> None:
        if isinstance(error, (BlockingIOError, InterruptedError, BrokenPipeError, ConnectionResetError)):
            self._leave_rest(data, 0)  # where nsqd has closed, what it said before is still to be read
        else:
            self._leave_sending(partial(self.close, lost(self.address, error)))

    def _leave_rest(self, data: bytes, sent: int) -> None:
        """Let the loop send what is left of *data*."""
        self._bytes_out += sent
        self._stream.leave_rest(data[sent:])  # type: ignore[union-attr]
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
            self._bytes_in += len(data)
        elif (left := self._io.decode(data, self._settle)) is not None:
            self._give_back(left, mine)
            return
        self.read_at, self._reads = self.clock.now(), False

    def _on_failed_read(self, error: int, mine: Publication) -> None:
        """C could not read; *error* is the system's number."""
        self._give_back(lost(self.address, OSError(error, os.strerror(error))), mine)

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
                self._watch_soon()
            if self._sender is mine:
                torn = torn or self._sends
                if torn:
                    self._sender = LOOP
                else:
                    self._next_sender()
            if self._ending and not (isinstance(self._sender, Publication) or isinstance(self._reader, Publication)):
                self._ending = False
                self._stream.release()  # type: ignore[union-attr]
        if torn:
            why = "a thread was interrupted in the middle of a write or of an answer"
            self.loop.call_soon(lambda: self.close(ConnectionLost(self.address, why)))


know(SharedConnection, Publication, Taken, Gathering, holding)
