"""Publishes from plain threads, over blocking connections that the threads share.

A plain thread is a native thread without a gevent hub in a process that is not monkey-patched.  A thread that finds an
idle connection *leads* it: the thread sends its command together with the commands of threads that wait, reads the
answers in order, and wakes the other threads.  When its own publish is answered, the thread passes the connection on:
to a thread whose publish is unanswered, or else to the thread that has waited longest.  A thread that finds no idle
connection waits in a queue; if nsqd is far away, the loop does the publish instead, and sends it at once.

A thread whose deadline passes, or in which an exception is raised, passes its connection on in the same way, so other
publishes do not fail with it.  Everything that two threads or the garbage collector could do at the same time is one
call of C (``append``, ``pop``, ``remove``), so no lock is held while Python code of a user may run.  A publish that the
garbage collector or a signal handler makes inside another publish goes to the loop.

The threads neither wait for an nsqd that cannot be reached nor try it again.  The loop does that
(:mod:`gnsq_lite.publish.publisher`).
"""

from __future__ import annotations

import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from gnsq_lite.clock import SYSTEM_CLOCK, Clock
from gnsq_lite.dialect import Endpoint
from gnsq_lite.errors import (
    ClosedError,
    ConnectionLost,
    NSQConnectionError,
    NsqdError,
    NSQError,
    ProtocolError,
)
from gnsq_lite.net.at_exit import close_threads_at_exit
from gnsq_lite.net.blocking_connection import BlockingConnection, DeadlinePassed
from gnsq_lite.net.connection import connection_stats
from gnsq_lite.net.dialing import is_local
from gnsq_lite.net.os_threads import native_held_lock, native_ident, start_native_thread
from gnsq_lite.net.settings import mapped
from gnsq_lite.net.waiting import Completion
from gnsq_lite.options import Address
from gnsq_lite.publish.nsqds import SILENT_AFTER, Connections, Nsqd, Nsqds
from gnsq_lite.publish.publication import PUBLISHED, RECONNECTS, UNKNOWN, Counts, Publish, after_loss, not_reached
from gnsq_lite.publish.settings import REROUTED, ProducerSettings
from gnsq_lite.stats import ConnectionStats
from gnsq_lite.wire.constants import FRAME_ERROR, HEARTBEAT, OK
from gnsq_lite.wire.frames import OK_BYTES, Frame, count_oks

#: Most commands, and most bytes, that are sent together.  A larger command never shares a connection.
_MOST_COMMANDS, _MOST_BYTES = 64, 64 * 1024
#: Seconds after its last answer within which a connection is used without a look whether it has ended.
_FRESH = 0.02
#: Seconds after which an idle connection is closed, when a thread makes another one idle.
IDLE = 60.0
#: Seconds after which a waiting thread looks again for an idle connection, and for an nsqd that answers: in general,
#: and if it waits although a connection is idle.
_LOOK_AGAIN, _COMBINE = 1.0, 0.02
#: Seconds between two checks whether all publishes have an outcome.
_POLL = 0.005
_ONE_OK = [OK_BYTES]
#: Most times that a thread sends a publish again after lost connections.  Then the loop does, after its pauses.
_ATTEMPTS = 3


class SharedConnection(BlockingConnection):
    """A connection that threads share.  Only the thread that leads it calls its methods."""

    def __init__(self, group: Connections, settings: ProducerSettings, clock: Clock) -> None:
        super().__init__(group.nsqd.endpoint, settings.connection, clock, settings.dialect.check_server)
        self.group, self._dialect = group, settings.dialect
        #: The publishes whose commands are sent, or are sent next, and that are unanswered, the oldest first.
        self.unanswered: deque[Publish] = deque()
        #: Time since which the oldest publish is unanswered, or 0.0.
        self.owes_since = 0.0
        #: Whether an exception now would leave the order of answers, TLS or the compression undefined.
        self.is_fragile = False
        self._is_coded = False
        #: Frees the place of the connection.  A second call does nothing; the garbage collector calls it too.
        self.free: Callable[[], object] = group.enter(self)

    def open(self, address: Address, seconds: float, identify_extra: Mapping[str, Any]) -> None:
        """Connect and do the handshake (see :class:`BlockingConnection`)."""
        super().open(address, seconds, identify_extra)
        self._is_coded = self._codec is not None or self._stream.tls is not None

    def close(self, *, close_notify: bool = False) -> None:
        """Close the connection, and free its place."""
        super().close(close_notify=close_notify)
        self.free()

    def begin(self, publishes: Sequence[Publish], data: bytes, now: float) -> None:
        """Send *data*, the commands of *publishes*.  Raises NSQConnectionError, DeadlinePassed."""
        first, stream = publishes[0], self._stream
        self.owes_since = 0.0 if len(data) > _MOST_BYTES else now
        self.unanswered.extend(publishes)  # from here on, each thread that leads the connection sends what is unsent
        if self._is_coded:
            is_sent = self._send(data, publishes[-1])
        else:
            is_sent = stream.exchange(data, publishes[-1], first.deadline - now)
            if stream.received == _ONE_OK and len(publishes) == 1:
                self.is_fragile = True  # the most common case
                stream.received.clear()
                stream.bytes_in += len(OK_BYTES)
                first._done = True
                self.unanswered.clear()
                self.read_at, self.owes_since = self.clock.now(), 0.0
                self.is_fragile = False
                return
        if not is_sent:
            stream.send_rest(first.deadline)
            self.owes_since = self.clock.now()

    def _send(self, data: bytes, last: Publish) -> bool:
        """Send bytes of *data*, whose last command is the one of *last*, and return whether all are sent."""
        stream = self._stream
        if self._is_coded:
            self.is_fragile = True
            data = data if self._codec is None else self._codec.compress(data)
            data = data if stream.tls is None else stream.tls.encrypt(data)
        is_sent: bool = stream.send(data, last)
        self.is_fragile = False
        return is_sent

    def send_unsent(self, deadline: float) -> None:
        """Send what an interrupted thread left unsent.  Raises NSQConnectionError, DeadlinePassed."""
        self._stream.send_rest(deadline)
        rest = self._not_begun()
        if rest:
            self._send(b"".join([each.data for each in rest]), rest[-1])
            self._stream.send_rest(deadline)

    def _not_begun(self) -> list[Publish]:
        """Return the unanswered publishes that no send contains."""
        publishes = list(self.unanswered)
        last = self._stream.sending[2]
        at = next((index for index, each in enumerate(publishes) if each is last), -1)
        return publishes[at + 1 :]

    def not_sent(self) -> set[Publish]:
        """Return the unanswered publishes of which the socket has accepted no byte."""
        stream, not_begun = self._stream, self._not_begun()
        if self._is_coded:  # one TLS record may hold several publishes
            return set(not_begun if sum(stream.sending[1]) else self.unanswered)
        unsent, found = stream.unsent(), set(not_begun)
        for each in reversed(list(self.unanswered)[: len(self.unanswered) - len(not_begun)]):
            if unsent < len(each.data):
                break
            unsent -= len(each.data)
            found.add(each)
        return found

    def seems_open(self) -> bool:
        """Return whether there is no byte and no EOF to read, without reading."""
        return self._is_coded or self._stream.is_quiet()

    def read(self, publish: Publish) -> None:
        """Read answers until *publish* has its outcome or must be sent again.

        Raises NSQConnectionError, ProtocolError and DeadlinePassed, and an NsqdError if nsqd closes the connection.
        """
        stream, unanswered = self._stream, self.unanswered
        received = stream.received
        while unanswered or not (publish._done or publish.again):
            if not received:
                stream.wait(publish.deadline)
            self.is_fragile = True
            count = 0 if self._is_coded or self._decoder.pending_bytes or len(received) > 1 else count_oks(received[0])
            if 0 < count <= len(unanswered):  # the most common case
                stream.bytes_in += len(received.pop())
                for _ in range(count):
                    oldest = unanswered[0]
                    oldest._done = True
                    if oldest.gate is not None:
                        try:
                            oldest.gate.release()  # wake_thread(), without the call
                        except RuntimeError:
                            pass
                    unanswered.popleft()
            else:
                self._take(received)
            self.read_at = now = self.clock.now()
            self.owes_since = now if unanswered else 0.0
            self.is_fragile = False

    def _take(self, received: list[bytes]) -> None:
        """Handle the frames of *received*.  Raises the errors of :meth:`read`."""
        try:
            while received:
                data = self._decompress(self._stream.decrypt(received.pop(0)))
                for frame in self._decoder.feed(data)[1]:
                    if frame.body != HEARTBEAT or frame.kind == FRAME_ERROR:
                        self._answered(self._oldest(frame), frame)
                if self._decoder.error is not None:
                    raise self._decoder.error
            if self._stream.tls is not None and self._stream.tls.ended is not None:
                raise self._stream.tls.ended
        except ProtocolError as error:
            error.address = self.address
            raise
        if not self.unanswered and self._decoder.pending_bytes:
            self.is_usable = False

    def _oldest(self, frame: Frame) -> Publish:
        if not self.unanswered:
            if frame.kind == FRAME_ERROR:
                raise self._nsqd_error(frame.body)
            raise ProtocolError(f"an answer without a publish: {frame.body[:50]!r}")
        return self.unanswered[0]

    def _answered(self, publish: Publish, frame: Frame) -> None:
        """Settle *publish*, the oldest one, and wake its thread.  Raises an NsqdError if nsqd closes the connection."""
        if frame.kind != FRAME_ERROR:
            body = frame.body
            publish.finish(None if body == OK else self._dialect.receipt(self._without_secret(body)))
            self.unanswered.popleft()
            return
        error = self._nsqd_error(frame.body)
        if error.is_nsqds_fault:
            self.group.nsqd.fail(self.clock.now())
        if error.is_exiting or (self._dialect.is_routed and self._dialect.should_reroute(error)):
            publish.send_again(error)
        else:
            publish.finish(error=error)
        self.unanswered.popleft()
        if error.closes_connection and not (self.unanswered and isinstance(error, REROUTED)):
            raise error


class SharedConnections:
    """Publishes from the threads of one Writer.  All methods are thread-safe."""

    def __init__(self, settings: ProducerSettings, nsqds: Nsqds, counts: Counts, clock: Clock = SYSTEM_CLOCK) -> None:
        self._settings, self._nsqds, self._counts = settings, nsqds, counts
        self._clock, self._now = clock, clock.now
        #: Number of publishing threads for each nsqd above which they share one connection to an nsqd that is near.
        self._most_leaders = settings.max_connections
        #: The idents of the threads that publish now.
        self._publishing: set[int] = set()
        #: Whether any thread has ever tried to open a connection.
        self.is_used = False
        #: ``closing``: no new publish is accepted.  ``_closed``: each connection is closed after its last answer.
        self.closing = self._closed = False
        close_threads_at_exit(self)

    # -- publishing

    def publish(self, publish: Publish, leader: Endpoint | None = None) -> bool:
        """Do a publish: settle and count it.  Return False if the loop must do it.

        Args:
            leader: The only nsqd that can accept the publish, or None if any nsqd can.
        Raises:
            ClosedError: The Writer was closed.
        """
        if self.closing:
            raise ClosedError("the Writer was closed")
        ident = native_ident()
        if ident in self._publishing:  # the garbage collector or a signal handler has interrupted a publish
            return False
        try:
            self._publishing.add(ident)
            attempts = 0
            while not publish._done:
                if self._closed:
                    publish.finish(error=ClosedError("the Writer was closed"))
                    break
                if not self._try(publish, leader):
                    return False
                if publish.again:
                    publish.again = False
                    attempts += not isinstance(publish.last_error, NsqdError)  # nsqd refused an earlier publish
                    if leader is not None or attempts == _ATTEMPTS:
                        return False
        except BaseException:
            self._counts.cells[ident][UNKNOWN] += publish.count
            raise
        finally:
            self._publishing.discard(ident)
        kind = PUBLISHED if publish._error is None else publish.outcome_kind()
        self._counts.cells[ident][kind] += publish.count
        return True

    def _try(self, publish: Publish, leader: Endpoint | None) -> bool:
        """Send a publish, and wait until it has its outcome or must be sent again.

        Return False if no nsqd can be used now.
        """
        now = self._now()
        is_large = len(publish.data) > _MOST_BYTES
        if leader is not None:
            nsqd: Nsqd | None = self._nsqds.get(leader)
            is_alone = True
        else:
            nsqds = self._nsqds.in_turn
            is_alone = len(nsqds) == 1
            nsqd = nsqds[0] if is_alone else self._nsqds.first(now)
        groups: Sequence[Connections] = ()
        if nsqd is not None:
            group = nsqd.large if is_large else nsqd.shared
            if self._try_one(group, publish, now, is_alone):
                return True  # the most common case
            groups = (group,)
        if nsqd is None or not is_alone:
            groups = [each.large if is_large else each.shared for each in self._nsqds.usable(now)]
            if any(self._try_one(group, publish, now, len(groups) == 1) for group in groups):
                return True
        if len(groups) > 1 or (groups and now < groups[0].nsqd.failed_until):
            groups = [each for each in groups if now >= each.nsqd.failed_until]
        for group in groups:
            if group.idle or group.is_led():
                if group.nsqd.is_far and not is_large:
                    return False  # the loop sends at once
                self._wait(publish, groups)
                return True
        # No thread could pass a connection on: the last one was lost just now, or none could be opened.
        publish.again, publish.last_error = True, None
        return bool(groups)

    def _try_one(self, group: Connections, publish: Publish, now: float, is_alone: bool) -> bool:
        """Send a publish on an idle or new connection, and wait for its outcome.  Return False if there is none."""
        nsqd = group.nsqd
        if now < nsqd.failed_until:
            return False
        if nsqd.is_near and len(self._publishing) > self._most_leaders * len(self._nsqds.known) and group.is_led():
            return False  # the thread that leads sends this publish too, in fewer packets and with fewer switches
        connection = self._idle(group, now)
        if connection is None and group.free:
            connection, now = self._open(group, publish, now, is_alone), self._now()
        if connection is None:
            return publish._done
        self._lead(connection, publish, now)
        return True

    def _idle(self, group: Connections, now: float) -> SharedConnection | None:
        """Return an idle connection that has not ended, or None."""
        while group.idle:
            try:
                connection: SharedConnection = group.idle.pop()
            except IndexError:  # another thread has taken the last connection
                break
            if now - connection.read_at < _FRESH or connection.is_quiet():
                return connection
            self._count_reconnect()
            connection.close()
            self._close_ended(group)
        return None

    def _open(self, group: Connections, publish: Publish, now: float, is_alone: bool) -> SharedConnection | None:
        """Open a connection.  Return None if there are enough of them or if that fails."""
        nsqd = group.nsqd
        try:
            connection = SharedConnection(group, self._settings, self._clock)
        except IndexError:  # another thread opens the last one
            return None
        _warn_in_asyncio()  # only here, because most publishes open no connection
        if nsqd.failed_until:  # after a failure only one thread tries the nsqd
            nsqd.fail(now)
            self._count_reconnect()
        self.is_used = True
        limit = publish.deadline - now if is_alone else min((publish.deadline - now) / 2, SILENT_AFTER)
        try:
            address = mapped(self._settings.address_map, nsqd.endpoint) or nsqd.endpoint.address
            connection.open(address, limit, self._settings.dialect.identify_extra("", nsqd.endpoint))
        except NSQError as error:
            if not is_local(error):  # without a free descriptor, the other connections can still be used
                nsqd.fail(self._now())
            connection.close()
            self._close_ended(group)
            self._wake_all(group.queue)
            if self._now() >= publish.deadline:
                publish.finish(error=not_reached(publish.topic, publish.timeout, [error]))
            return None
        except BaseException:
            connection.close()
            raise
        nsqd.failed_until, self._nsqds.proven = 0.0, True
        return connection

    # -- leading a connection

    def _lead(self, connection: SharedConnection, publish: Publish, now: float) -> None:
        """Send a publish and others that wait, read until it is answered, and pass the connection on."""
        try:
            publish.sent = True
            group = connection.group
            try:
                if group.queue and len(publish.data) <= _MOST_BYTES:
                    connection.begin(*_taken_together(group.queue, connection, publish), now)
                else:
                    connection.begin((publish,), publish.data, now)
            except ConnectionLost:  # but not TLSError: nothing was sent, and no answer will come
                pass  # read() raises the reason, which nsqd may have sent before it closed the connection
            if not publish._done:
                connection.read(publish)
            took, nsqd = connection.read_at - now, group.nsqd
            if took < nsqd.shortest or connection.read_at >= nsqd.decide_at:
                nsqd.measured(took, connection.read_at)
        except BaseException as error:
            self._failed(connection, publish, error)
        else:
            self._pass_on(connection)

    def _read_on(self, connection: SharedConnection, publish: Publish, now: float) -> None:
        """Lead a connection on which *publish* is unanswered."""
        try:
            with suppress(ConnectionLost):  # as in _lead()
                connection.send_unsent(publish.deadline)
            connection.read(publish)
        except BaseException as error:
            self._failed(connection, publish, error)
        else:
            self._pass_on(connection)

    def _failed(self, connection: SharedConnection, publish: Publish, error: BaseException) -> None:
        """Pass a connection on or close it, after *error* in the thread that leads it.  Raise an unexpected *error*."""
        if isinstance(error, (NSQConnectionError, ProtocolError, NsqdError)):
            self._lost(connection, error)
            return
        first = connection.unanswered[0] if connection.unanswered else None
        if isinstance(error, DeadlinePassed) and first is publish and publish in connection.not_sent():
            said = f"{connection.endpoint}: connected, and accepts no more bytes"
            publish.finish(error=not_reached(publish.topic, publish.timeout, [said]))
            self._lost(connection, ConnectionLost(connection.address, said))
            return
        publish.give_up()  # before a thread could pass the connection on to this one
        if connection.is_fragile:
            self._lost(connection, ConnectionLost(connection.address, "an exception interrupted its reading thread"))
        else:
            self._pass_on(connection)
        if not isinstance(error, DeadlinePassed):
            raise error

    def _pass_on(self, connection: SharedConnection) -> None:
        """Pass a connection on to a thread whose publish is unanswered or waits, or make the connection idle."""
        group = connection.group
        nsqd = group.nsqd
        if connection.unanswered:
            if any(each.accepts(connection) for each in list(connection.unanswered) if not each._done):
                return
            if self._now() - connection.owes_since > SILENT_AFTER:
                nsqd.fail(self._now())
            self._lost(connection, ConnectionLost(connection.address, "no thread waits for its answers any more"))
            return
        if not connection.is_usable or self._closed or nsqd.is_removed or nsqd.failed_until:
            connection.close(close_notify=True)
            group.close_idle()
            self._wake_all(group.queue)
            return
        group.idle.append(connection)
        if group.queue:
            self._serve(group)
        if len(group.idle) > 1:
            self._close_old(group, connection.read_at)

    def _serve(self, group: Connections) -> None:
        """Pass the connection that has just become idle on to the thread that has waited longest, if any waits."""
        while group.queue:
            try:
                connection: SharedConnection = group.idle.pop()
            except IndexError:  # another thread has taken it, and takes queued publishes too
                return
            if any(publish.accepts(connection) for publish in _taken(group.queue)):
                return
            group.idle.append(connection)

    def _lost(self, connection: SharedConnection, reason: NSQError) -> None:
        """Close a lost connection.  Settle its unanswered publishes, or let their threads send them again."""
        connection.shut_down()
        is_refusal = isinstance(reason, NsqdError)
        not_sent = connection.not_sent()
        connection.close()
        if self._closed:
            reason = ClosedError("the Writer was closed")
        while connection.unanswered:
            each = connection.unanswered.popleft()
            if not each._done:
                error = after_loss(each, reason, is_unread=is_refusal or each in not_sent)
                each.send_again(reason) if error is None else each.finish(error=error)
        self._close_ended(connection.group)
        self._wake_all(connection.group.queue)

    # -- waiting

    def _wait(self, publish: Publish, groups: Sequence[Connections]) -> None:
        """Wait until other threads have sent a publish and read its answer, or have passed a connection on."""
        offers: list[Any] = []
        publish.gate = gate = native_held_lock()
        publish.offers = offers
        queue = groups[0].queue  # nsqds that get publishes in turn have the same queue
        try:
            queue.append(publish)
            for group in groups:
                # If nsqd is near, the thread that leads sends this publish too (_try_one).
                if group.idle and not publish.sent and not (group.nsqd.is_near and group.is_led()):
                    self._look_for_idle(publish, group)
            while not (publish._done or publish.again):
                now = self._now()
                left = publish.deadline - now
                if left <= 0:
                    break
                longest = _COMBINE if groups[0].nsqd.is_near else _LOOK_AGAIN
                gate.acquire(True, left if left < longest else longest)
                connection = publish.take_offer() if offers else None
                if connection is not None:
                    lead = self._read_on if publish.connection is connection else self._lead
                    lead(connection, publish, self._now())
                elif not publish.sent and not publish._done:
                    self._look_for_another(publish, groups)
        finally:
            if not (publish._done or publish.again):
                publish.give_up()
                with suppress(ValueError):
                    queue.remove(publish)
            while offers and (late := publish.take_offer()) is not None:
                self._pass_on(late)

    def _look_for_idle(self, publish: Publish, group: Connections) -> None:
        """Lead an idle connection, unless another thread takes *publish* from the queue."""
        connection = self._idle(group, self._now())
        if connection is not None:
            try:
                group.queue.remove(publish)
            except ValueError:  # another thread has taken the publish
                self._pass_on(connection)
            else:
                self._lead(connection, publish, self._now())

    def _look_for_another(self, publish: Publish, groups: Sequence[Connections]) -> None:
        """Take a queued publish back: to lead an idle connection, or to try again if an nsqd can be used or none."""
        now = self._now()
        usable = [each for each in groups if not each.nsqd.is_avoided(now)]
        if usable and not any(each.idle or each.free for each in usable):
            return
        with suppress(ValueError):
            groups[0].queue.remove(publish)
            idle = next((each for each in usable if each.idle), None)
            connection = self._idle(idle, now) if idle is not None else None
            if connection is None:
                publish.again = True
            else:
                self._lead(connection, publish, now)

    def _wake_all(self, queue: deque[Publish]) -> None:
        """Let the queued publishes try again, because a connection was closed."""
        for publish in _taken(queue):
            publish.again = True
            publish.wake_thread()

    # -- closing connections

    def _close_old(self, group: Connections, now: float) -> None:
        """Close an idle connection that was not used for IDLE seconds."""
        try:
            if group.idle[0].read_at < now - IDLE:
                group.idle.popleft().close(close_notify=True)
        except IndexError:  # another thread has taken the last connection
            pass

    def _close_ended(self, group: Connections) -> None:
        """Close the idle connections that have ended or have unread bytes."""
        for connection in group.take_idle():
            if connection.is_quiet():
                group.idle.append(connection)
                self._serve(group)  # a thread may have begun to wait meanwhile
            else:
                connection.close()

    # -- statistics, and the end

    def _groups(self) -> list[Connections]:
        return [group for nsqd in self._nsqds.all() for group in (nsqd.shared, nsqd.large)]

    def stats(self) -> list[ConnectionStats]:
        """Return the statistics of the connections, without idle ones that nsqd has closed.  Changes nothing."""
        now = self._now()
        connections = [(each, group.idle) for group in self._groups() for each in group.all() if each.opened_at]
        return [connection_stats(each, now) for each, idle in connections if each not in idle or each.seems_open()]

    def _count_reconnect(self) -> None:
        self._counts.cells[native_ident()][RECONNECTS] += 1

    def pending(self) -> int:
        """Return the number of threads that publish now, the calling thread left out."""
        return len(self._publishing - {native_ident()})

    def drain(self, seconds: float) -> bool:
        """Wait at most *seconds* until no other thread publishes; return whether this is so."""
        ends = self._now() + seconds
        while self.pending():
            if self._now() >= ends:
                return False
            Completion().wait(_POLL)
        return True

    def close(self, seconds: float, *, wait: bool = True) -> None:
        """Refuse new publishes, wait at most *seconds* for running publishes, and close all connections.

        With ``wait=False`` a new thread waits and closes.
        """
        self.closing = True
        if not wait:
            if self.is_used:
                start_native_thread("gnsq_lite-close", lambda: self.close(seconds))
            return
        self.drain(seconds)
        self._closed = True
        for group in self._groups():
            group.close_idle()
            for connection in group.all():  # the thread that leads it then closes it
                connection.shut_down()
            self._wake_all(group.queue)

    def abandon(self) -> None:
        """Close the connections in a forked child without sending anything, because the parent still uses them."""
        for group in self._groups():
            for connection in group.all():
                connection.close()


def _taken(queue: deque[Publish]) -> Iterator[Publish]:
    """Take the queued publishes one after the other.  Other threads may take some at the same time."""
    while queue:
        try:
            yield queue.popleft()
        except IndexError:
            return


def _taken_together(
    queue: deque[Publish], connection: SharedConnection, *first: Publish
) -> tuple[list[Publish], bytes]:
    """Take publishes from *queue* that fit into one send with *first*; return all of them and their commands."""
    publishes, parts = list(first), [each.data for each in first]
    room = _MOST_BYTES - sum(map(len, parts))
    while queue and room > 0 and len(publishes) < _MOST_COMMANDS:
        try:
            each = queue.popleft()
        except IndexError:  # another thread has taken the last publish
            break
        each.sent = True  # before the read of _done, as in mark_sent()
        if not each._done:
            each.connection = connection
            publishes.append(each)
            parts.append(each.data)
            room -= len(each.data)
    return publishes, b"".join(parts)


def _warn_in_asyncio() -> None:
    """Warn if the calling thread runs an asyncio event loop, because a publish blocks all tasks of that loop."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None and asyncio._get_running_loop() is not None:
        said = (
            "a publish blocks the asyncio event loop of this thread: use await asyncio.to_thread(writer.publish, ...)"
        )
        warnings.warn(said, RuntimeWarning, stacklevel=2)
