"""A Reader's connection, which receives messages and accepts answers from any thread (MSG-1, MSG-5).

The connection collects FINs in a buffer and REQs in a list.  The loop writes both once per iteration, so most of the
cost is per read, not per message.  To wake the loop from a handler's thread costs more than to write.  Therefore this
thread writes the FINs itself, without the loop, in two cases (:meth:`SubscribedConnection._write_fins`):

- If RDY is 1, nsqd sends the next message only after the FIN.
- If RDY is the whole share, the thread writes the FINs of several messages together, when it finds no more queued
  messages.  A handler may block while FINs wait.  The next tick of the delivery, after at most 16 ms, writes them.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from gnsq_lite._core import Fins, all_answered
from gnsq_lite.clock import Clock
from gnsq_lite.consume.flow_control import FlowControl
from gnsq_lite.errors import ConnectionLost, NSQError, ProtocolError
from gnsq_lite.message import Message, is_open
from gnsq_lite.net.connection import Connection, Owner, Target
from gnsq_lite.net.loop import Loop
from gnsq_lite.net.os_threads import native_rlock
from gnsq_lite.net.stream import DONTWAIT, lost
from gnsq_lite.net.user_hooks import log_safely
from gnsq_lite.options import ConnectionOptions
from gnsq_lite.policy.delivery import SLOWEST_TICK, SPAN, Delivery
from gnsq_lite.wire import commands
from gnsq_lite.wire.identify import Negotiated

log = logging.getLogger("gnsq_lite.net")

#: If nsqd refused an answer, and then nothing is in flight or arrives for this many seconds, the Reader reconnects.
STALLED = 30.0
#: Seconds for which a message still counts as in flight after its deadline.  A TOUCH may be on its way to nsqd, and
#: nsqd checks deadlines only at intervals.
_GRACE = 0.5
#: If more messages are in flight than four times the highest share plus this number, the connection closes.  A correct
#: nsqd reaches at most twice RDY, for a moment: messages that timed out at nsqd still count here.
_MARGIN = 1000
#: Minimum number of kept messages at which the connection drops the answered messages among them.
_KEPT = 1000


class MessageOwner(Owner, Protocol):
    """Receives messages in the loop's thread.  Its methods must not block, except ``handle`` with inline handlers."""

    @property
    def flow(self) -> FlowControl:
        """The flow control that counts the messages."""

    @property
    def handle(self) -> Callable[[list[Message]], None]:
        """Function that queues messages for the handlers.  A closing Reader requeues the messages instead."""

    def on_closed(self, connection: Any) -> None:
        """Drop the queued messages of a closed *connection*.  nsqd sends them again."""

    def on_answers_lost(self, count: int) -> None:
        """Count *count* answers that the connection cannot send, because it is closed."""

    def requeue_delay(self, message: Message, asked: float | None) -> float:
        """Return the delay of a REQ, in seconds.  Thread-safe: the thread that requeues the message calls it."""


class SubscribedConnection(Connection):
    """A subscribed connection, with its messages in flight and its counters.

    Args:
        is_prompt: Whether RDY is little more than the messages in flight, so that nsqd does not buffer messages.
        reads_in_hub: Whether the hub may pass messages to the pool.  False for inline handlers, which may wait.
        writes_fins: Whether a handler's thread may write FINs itself.
    """

    #: Count the messages in a list of messages, and the ids in a list of ids.
    _count: Callable[[list[Message]], int] = staticmethod(len)
    _count_ids: Callable[[list[bytes]], int] = staticmethod(len)

    def __init__(
        self,
        loop: Loop,
        target: Target,
        options: ConnectionOptions,
        owner: MessageOwner,
        clock: Clock,
        *,
        is_prompt: bool = False,
        reads_in_hub: bool = False,
        writes_fins: bool = False,
    ) -> None:
        super().__init__(loop, target, options, owner, clock)
        self._reads_in_hub, self._writes_fins = reads_in_hub, writes_fins
        self._message_owner, self._flow, self._is_prompt = owner, owner.flow, is_prompt
        self.topic, self.channel = target.topic, target.channel
        #: Settings of nsqd; the handshake sets them.
        self.msg_timeout, self.max_msg_timeout, self.max_rdy_count = 60.0, 900.0, 0
        #: The messages of each read that may have unanswered messages.
        self._reads: deque[list[Message]] = deque()
        #: Number of messages in ``_reads``.
        self._kept = 0
        #: Number of received messages, minus the messages that the loop answered or removed.
        self._in_flight = 0
        #: Number of FINs that handlers' threads wrote.  Change it only under ``_write_lock``.
        self._finished_by_handlers = 0
        self._finished = self.received = self.requeued = self.expired = self.answers_lost = 0
        #: Monotonic time of the last read that had messages.
        self.received_at = float("-inf")
        self._fins = Fins(partial(loop.call_soon, self._flush), self._write_held)
        #: Buffer for the FINs of handlers that succeeded.  If it is None, the handler's thread calls :meth:`handled`.
        self.fins: Fins | None = self._fins
        self._reqs: list[bytes] = []
        #: Maximum messages in flight.  An nsqd that sends more ignores RDY, and could fill the memory.
        self._most_in_flight = _MARGIN
        #: The connection's share of max_in_flight, and the RDY that was last queued for nsqd.
        self._share = self.ready = 0
        #: Time at which nsqd last refused a FIN or REQ of this connection, or None.
        self._refused_at: float | None = None
        #: Chooses RDY within the share.  If it is None, RDY is the share.
        self._delivery: Delivery | None = None
        self._tick_timer: Any = None
        self._tick_at = 0.0  # time at which the timer fires
        #: Whether ``owner.handle()`` runs.  While it calls inline handlers, the connection reads nothing.
        self._is_handling = False
        #: Whether CLS was sent.
        self._is_closing = False
        #: Held during each write to the socket.  A write never blocks.
        self._write_lock = native_rlock()
        #: Whether the loop could not acquire the lock.  The thread that releases the lock then schedules a flush.
        self._has_missed_lock = False

    def _adopt(self, negotiated: Negotiated) -> None:
        if self.target.choose_message is not None:
            self._decoder.make_message = self.target.choose_message(negotiated)
        self.msg_timeout, self.max_msg_timeout = negotiated.msg_timeout, negotiated.max_msg_timeout
        self.max_rdy_count = negotiated.max_rdy_count
        # Handlers' threads must not write through OpenSSL or a compressor, which allow only one caller at a time.
        stream = self._stream
        self._writes_fins &= stream is not None and stream.tls is None and self._codec is None
        if self._is_prompt:
            self._delivery = Delivery(self.clock)

    # -- messages

    def run(self) -> None:
        """Read until the connection ends.  Blocks the greenlet.  Always raises the reason of the end."""
        stream = self._stream
        if stream is not None and self._codec is None and self._reads_in_hub:
            stream.offer(self._take_messages)
        super().run()

    def _take_messages(self, data: bytes) -> bool:
        """Handle *data* if it is only messages.  Return False for other data, or if RDY is the whole share above 1.

        The stream calls this in the hub, so that a handler begins without a switch to the reading greenlet.
        """
        if self._share > 1 and self._delivery is not None and self._delivery.is_full:
            return False
        self.read_at = self.clock.now()
        messages = self._decoder.feed_messages(data)
        if messages:
            self._on_messages(messages)
        return bool(messages)

    def _on_messages(self, messages: list[Message]) -> None:
        is_reported = self._count_in(messages)
        self._is_handling = True
        self._message_owner.handle(messages)
        self._is_handling = False
        if is_reported and self._delivery is not None and not (self._due or self._fins.due):
            self._apply_delivery(self._delivery)  # otherwise the scheduled flush sends the RDY

    def _count_in(self, messages: list[Message]) -> bool:
        """Count the messages of a read, before handlers get them.  Return whether ``_delivery`` counted them too."""
        received = self._count(messages)
        self.received_at = self.read_at
        self.received += received
        self._in_flight += received
        count = self.in_flight
        self._keep(messages, count)
        if count > self._most_in_flight:
            raise ProtocolError(f"nsqd ignores RDY {self._share}: {count} messages are in flight")
        delivery = self._delivery
        is_reported = delivery is not None and not delivery.is_full
        if delivery is not None and is_reported:
            delivery.received(received, count - self._count_ids(self._fins.ids), self._age(messages[-1]))
        if self._flow.watches or count > self._share:
            self._flow.received(self, received)  # may queue a RDY, which is sent before the answers
        return is_reported

    def _count_next(self, messages: list[Message]) -> None:
        """Count the only message of a read, while nothing else is in flight."""
        self.received_at = self.read_at
        self.received += 1
        self._in_flight += 1
        self._reads.clear()
        self._reads.append(messages)
        self._kept = 1

    def _age(self, message: Message | None) -> float:
        """Return the age of *message* at the last read, in seconds.  The clocks of nsqd and client must agree."""
        if message is None:
            return 0.0
        return self.clock.wall() - message.timestamp_ns * 1e-9 - (self.clock.now() - self.received_at)

    def set_ready(self, count: int) -> None:
        """Set the share of RDY."""
        if self._is_closing:
            return  # nsqd accepts no RDY after CLS
        # nsqd does not confirm a lower RDY, so this limit only grows.
        self._most_in_flight = max(self._most_in_flight, 4 * count + _MARGIN)
        self._share = count
        self._fins.is_alone = self._writes_fins and count == 1
        if self._delivery is None:
            self.ready = count
            self.send(commands.ready(count))
        else:
            self._delivery.set_limit(count, self.in_flight)
            self._apply_delivery(self._delivery)

    def _apply_delivery(self, delivery: Delivery) -> None:
        """Send the RDY that *delivery* chose if the RDY has changed, and start the timer of the next tick."""
        if delivery.ready != self.ready:
            self._flush_soon()
        self._schedule_tick(delivery)

    def _schedule_tick(self, delivery: Delivery) -> None:
        after = delivery.tick_after
        self._fins.is_held = self._writes_fins and delivery.is_full and after is not None and after <= SLOWEST_TICK
        if after is None:
            self._stop_ticks()
            return
        due = self.clock.now() + after
        if self._tick_timer is not None:
            if due > self._tick_at - SPAN / 2:
                return
            self._stop_ticks()
        self._tick_at = due
        self._tick_timer = self.loop.timer(after, self._tick)

    def _tick(self) -> None:
        self._stop_ticks()
        delivery = self._delivery
        if delivery is not None:
            if not self._is_handling:
                newest = self._reads[-1][-1] if self._reads else None
                delivery.tick(self.received, self.in_flight, self._age(newest))
            self._apply_delivery(delivery)
            if self._fins.ids:  # a handler blocks the thread that holds them
                self._flush_soon()

    def _end_delivery(self) -> None:
        self._stop_ticks()
        self._delivery = None
        self._fins.is_held = False
        if self._fins.ids:
            self._flush_soon()

    def _stop_ticks(self) -> None:
        timer, self._tick_timer = self._tick_timer, None
        if timer is not None:
            timer.stop()
            timer.close()

    # -- messages in flight (MSG-5)

    @property
    def in_flight(self) -> int:
        """Number of received messages that are neither answered nor removed."""
        return self._in_flight - self._finished_by_handlers

    @property
    def finished(self) -> int:
        """Number of FINs that were sent since the connection was opened."""
        return self._finished + self._finished_by_handlers

    @property
    def succeeded(self) -> int:
        """Number of FINs that were sent or queued since the connection was opened.  Thread-safe."""
        return self.finished + self._count_ids(self._fins.ids)

    def _keep(self, messages: list[Message], count: int) -> None:
        """Keep the messages of a read, and drop old reads if all their messages are answered.

        *count* messages are in flight now.  An expired message does not count as answered, so its read is kept until
        :meth:`expire_overdue` drops the message.
        """
        reads = self._reads
        if count == self._count(messages):  # nothing else is in flight
            reads.clear()
            self._kept = 0
        reads.append(messages)
        self._kept += self._count(messages)
        if len(reads) > 1:
            while len(reads) > 1 and all_answered(reads[0]):
                self._kept -= self._count(reads.popleft())
            if self._kept > _KEPT and self._kept > 2 * count + _KEPT:
                self._drop_answered()

    def _drop_answered(self) -> None:
        """Drop all answered messages.  Otherwise one slow handler would keep all later messages in memory."""
        opened = ([m for m in read if is_open(m)] for read in self._reads)
        self._reads = deque(read for read in opened if read)
        self._kept = sum(map(self._count, self._reads))

    def unanswered(self) -> list[Message]:
        """Return the messages that are neither answered nor removed."""
        return [message for read in self._reads.copy() for message in read if is_open(message)]

    def has_other_delivery(self, message: Message) -> bool:
        """Return whether an earlier or later delivery of *message* is unanswered.  Thread-safe.  Slow."""
        reads = self._reads.copy()  # atomic, also without the GIL; list() is not
        return any(message.id in m.id and m is not message and is_open(m) for read in reads for m in read)

    def expire_overdue(self, now: float) -> list[Message]:
        """Remove and return the messages that timed out at nsqd (MSG-5).  Called about once a second."""
        now -= _GRACE
        if not self.is_open() or not self._reads or self._reads[0][0].received_at > now - self.msg_timeout:
            return []  # no message can be late if the oldest message is in time
        late = [m for m in self.unanswered() if m.deadline <= now and m._expire()]
        count = self._count(late)
        self._in_flight -= count
        self._drop_answered()
        if count:
            self.expired += count
            if self._delivery is not None:
                self._delivery.expired(self.in_flight)
                self._apply_delivery(self._delivery)
            text = "%s: %d messages were not answered in time; nsqd may send them again"
            log_safely(log, logging.WARNING, text, self.address, count)
            self._report_answered(count)
        return late

    # -- answers

    def finish(self, message: Message) -> None:
        """Queue FIN.  The caller has claimed the message.  Thread-safe."""
        with self.loop.guard:
            self._fins.add(message.id)

    def finish_now(self, message: Message) -> None:
        """Write FIN in this thread, or queue it if only the loop can write it.  The caller has claimed the message."""
        stream = self._stream
        is_plain = stream is not None and stream.tls is None and self._codec is None and self.fins is not None
        if not (is_plain and not self._due and not self._is_closing and self._write_fins([message.id])):
            self.finish(message)

    def handled(self, message: Message) -> None:
        """Finish a message whose handler has returned.  The caller has claimed the message.  Thread-safe."""
        if not self._write_fin(message):
            self.finish(message)

    def _write_fin(self, message: Message) -> bool:
        """Write FIN in this thread if nothing else is in flight or queued.  Return False if FIN must be queued."""
        is_alone = self._writes_fins and self.in_flight == 1 and not self._due
        return is_alone and not self._is_closing and self._write_fins([message.id])

    def _write_held(self) -> None:
        """Write the queued FINs in this thread, or let the loop write them."""
        # If the delivery has just ceased to be full, the loop must report the answers to it.
        is_ours = (self._fins.is_held or self._fins.is_alone) and self.in_flight <= self._share
        if not (is_ours and not self._due and self._write_fins(self._fins.ids)):
            self._flush_soon()

    def _write_fins(self, ids: list[bytes]) -> bool:
        """Write FINs in this thread, and remove them from *ids*.  Return False if only the loop can write them.

        This does not wake the loop, which sees the new count when it next reads ``in_flight``.
        """
        stream = self._stream
        if stream is None or self._flow.watches or not self._write_lock.acquire(False):
            return False
        try:
            if stream.unsent or stream.closed is not None:
                return False
            taken = ids[:]
            count = len(taken)
            if count:
                data = b"FIN " + b"\nFIN ".join(taken) + b"\n"
                send, finished = stream.send, self._finished_by_handlers + self._count_ids(taken)
                # An asynchronous exception can follow a call.  Without one, the ids are counted, removed and sent.
                self._finished_by_handlers = finished  # before nsqd can send the next message
                del ids[:count]
                stream.sent_beside_loop(data, send(data, DONTWAIT))
        except (BlockingIOError, InterruptedError):
            stream.sent_beside_loop(data, 0)
        except OSError as error:
            self.loop.call_soon(partial(self.close, lost(self.address, error)))
        finally:
            self._write_lock.release()
            if self._has_missed_lock:
                self.loop.call_soon(self._flush)
        return True

    def requeue(self, message: Message, delay: float | None, backoff: bool) -> None:
        """Queue REQ.  If *delay* is None, the Reader chooses the delay.  Thread-safe."""
        command = commands.requeue(message.id, self._message_owner.requeue_delay(message, delay))
        with self.loop.guard:
            if backoff:
                self.slow_down(command)
            else:
                self._queue_requeue(command)

    def slow_down(self, command: bytes = b"") -> None:
        """Report a failed message to the flow control (BACK-1), then queue *command*, the REQ.  Thread-safe.

        If the flow control backs off, its RDY 0 must precede the REQ.  Otherwise nsqd could send it again at once.
        """
        successes = self._flow.successes(self)  # read it now: handlers may finish messages before _fail() runs
        self.loop.call_soon(lambda: self._fail(successes, command))

    def _fail(self, successes: int, command: bytes) -> None:
        self._flow.failed(self, successes)
        if command:
            self._queue_requeue(command)

    def _queue_requeue(self, command: bytes) -> None:
        self._reqs.append(command)
        self._flush_soon()

    def answer_late(self, message: Message, *, finished: bool) -> None:
        """Queue the answer to an expired message.  nsqd accepts it if nsqd has sent the message here again."""
        if self.is_open():
            self.send(commands.finish(message.id) if finished else commands.requeue(message.id, 0.0))
        else:
            self.loop.call_soon(partial(self._on_answers_lost, 1))

    def _on_answers_lost(self, count: int) -> None:
        self.answers_lost += count
        self._message_owner.on_answers_lost(count)

    def touch(self, message: Message) -> None:
        """Queue TOUCH.  Thread-safe."""
        self.send(commands.touch(message.id))

    # -- overridden by OrderedConnection

    def handler_returned_unanswered(self, message: Message) -> None:
        """Do nothing: the message stays open until :meth:`finish`, :meth:`requeue` or its deadline."""

    def skipped(self, message: Message) -> None:
        """Do nothing: *message* expired before a handler began it, and nsqd sends it again."""

    # -- writing

    def _flush_soon(self) -> None:
        if not self._due:
            self._due = self._fins.due = True
            self.loop.call_soon(self._flush)

    def flush(self) -> None:
        """Write the queued answers now, or when another thread has ended its write.  Call it in the loop's thread."""
        self._flush()

    def _flush(self) -> None:
        self._has_missed_lock = True  # set it first: the thread that holds the lock checks it after the release
        if self._write_lock.acquire(False):
            try:
                self._has_missed_lock = False
                self._write_all()
            finally:
                self._write_lock.release()

    def _write_all(self) -> None:
        # Clear both flags before reading the queues, so that a thread that adds an answer later schedules a flush.
        self._due = self._fins.due = False
        data = self._take(self._out) if self._out else b""
        requeued = len(self._reqs)
        if requeued:
            data += b"".join(self._reqs[:requeued])
            del self._reqs[:requeued]
        ids = self._fins.ids
        taken = ids[:]  # ids that other threads add meanwhile stay queued
        finished = self._count_ids(taken)
        if finished:
            data += b"FIN " + b"\nFIN ".join(taken) + b"\n"
            del ids[: len(taken)]
        stream, answered = self._stream, finished + requeued
        if stream is None or stream.closed is not None:
            self._on_answers_lost(answered)
            if stream is not None and stream.closed is not None:
                self.close(stream.closed)  # the reading greenlet may be running an inline handler
            return
        self._finished += finished
        self.requeued += requeued
        self._in_flight -= answered
        delivery = self._delivery
        if delivery is not None:
            if answered and not delivery.is_full:
                delivery.answered(self.in_flight)
            self._schedule_tick(delivery)
            if delivery.ready != self.ready:
                self.ready = delivery.ready
                data = commands.ready(self.ready) + data
        if answered:  # this may queue a RDY, which is sent after these answers
            self._report_answered(answered, success=finished > 0)
        if data:
            stream.write(data if self._codec is None else self._codec.compress(data))

    def _report_answered(self, count: int, *, success: bool = False) -> None:
        """Report *count* answered or expired messages to the flow control if they may change a RDY."""
        if self._flow.watches or self.in_flight + count > self._share:
            self._flow.answered(self, count, success=success)

    # -- watching

    def on_answer_refused(self) -> None:
        """Record that nsqd refused a FIN or REQ.  nsqd may now count more messages in flight than this client."""
        self._refused_at = self.clock.now()

    def _is_stalled(self, now: float) -> bool:
        """Return whether nsqd may have stopped delivering because it counts too many messages in flight.

        After a crash nsqd's disk queue can have two copies of a message.  nsqd refuses the FIN of the second copy, but
        still counts the copy as in flight.  Only a new connection resets the count.
        """
        if self._refused_at is None or self.in_flight or not self._share:
            return False
        return now - max(self._refused_at, self.received_at) > STALLED

    def close_if_dead(self, now: float) -> None:
        """Close the connection if nsqd is silent, accepts no bytes, or has stopped delivering."""
        super().close_if_dead(now)
        if self._is_stalled(now) and not self._is_closing:
            why = f"nsqd delivered nothing for {STALLED:g} s after it refused a FIN or REQ; reconnecting"
            self.close(ConnectionLost(self.address, why))

    # -- the end

    def close(self, reason: NSQError) -> None:
        """Close at once.  nsqd sends the unanswered messages again."""
        with self._write_lock:  # while a handler's thread writes, the socket's descriptor must stay open
            super().close(reason)
        self._end_delivery()
        if self._fins.ids:  # the flush counts these answers as lost
            self._flush_soon()
        unanswered = [message for message in self.unanswered() if message._expire()]
        self._reads.clear()
        self._kept, self._in_flight = 0, self._finished_by_handlers
        if unanswered:
            self._message_owner.on_closed(self)

    def send_close(self) -> None:
        """Send CLS (CLOSE-1).  nsqd then sends no more messages, accepts no RDY, and answers CLOSE_WAIT.

        A second call, as when Python exits while the Reader closes, does not send CLS: nsqd disconnects a client that
        sends CLS twice.
        """
        self._end_delivery()
        if not self._is_closing:
            self.send(commands.CLS)
        self._is_closing = True

    def abandon(self) -> None:
        """Drop the connection in a forked child."""
        self._write_lock = native_rlock()  # a thread of the parent may hold the old lock
        super().abandon()

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]} in_flight={self.in_flight}>"
