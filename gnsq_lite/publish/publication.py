"""Holds a publish and its outcome (PUB-2), checks the deadlines of publishes, and defines ``Publication``.

:func:`after_loss` alone decides what the loss of a connection does to a publish.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from gnsq_lite.clock import SYSTEM_CLOCK, Clock
from gnsq_lite.dialect import Endpoint, PublishRequest
from gnsq_lite.errors import BacklogFull, NotSent, NSQError, OutcomeUnknown, PublishTimeout
from gnsq_lite.net.io_thread import reset_after_fork
from gnsq_lite.net.loop import Loop, current_greenlet, sleep
from gnsq_lite.net.os_threads import native_rlock
from gnsq_lite.net.user_hooks import log_safely
from gnsq_lite.net.waiting import Completion
from gnsq_lite.wire import commands

if TYPE_CHECKING:
    from gnsq_lite.dialect import PublishReceipt

log = logging.getLogger("gnsq_lite.writer")

#: Seconds after the deadline of a publish that its thread waits for the loop's error, which names the reason.
GRACE = 0.1
#: Publishes with deadlines in the same interval of this many seconds form a group, so that one check settles several.
_SPAN = 0.02
#: Seconds between two checks whether every publish has an outcome.
_POLL = 0.001
_NEVER = float("inf")
#: Positions in the cells of :class:`Counts`.
PUBLISHED, FAILED, UNKNOWN, RECONNECTS = range(4)


class Publish(Completion):
    """One publish (of a message or a batch) and its outcome.  The outcome is set exactly once."""

    #: Defaults of what most publishes do not set; a class without slots makes a publish in half the time.
    _done = False
    _value: Any = None
    _error: BaseException | None = None
    batch = False
    #: The loop that does the publish, or None if a thread does it.
    loop: Any = None
    #: The greenlet of the loop's thread that waits for the outcome, or None.
    greenlet: Any = None
    #: Group of :class:`Outcomes` that contains this publish, or None.
    peers: set[Publish] | None = None
    #: Key that determines the partition, or the partition.
    key: bytes | None = None
    partition: int | None = None
    #: All other options for the dialect, or None if there are none.
    request: PublishRequest | None = None
    #: Bytes of the command.  If they are empty, :meth:`command` encodes the command.
    data = b""
    #: Bytes that count against max_pending.
    cost = 0
    #: The router's state: sequence number of the publish, and chosen endpoint of a publish to any partition.
    number = 0
    leader: Endpoint | None = None
    #: Error with which an nsqd refused the publish before it was sent to another nsqd.
    last_error: NSQError | None = None
    #: ``sent``: an nsqd may have the message.  ``in_doubt``: an earlier attempt was sent and got no answer.
    sent = in_doubt = False
    #: Of a publish that a thread does: whether the thread must send it again, the connection on which it is unanswered,
    #: the lock at which the thread waits, and the connections that other threads pass on to it.
    again = False
    connection: Any = None
    gate: Any = None
    offers: Any = None

    def __init__(
        self,
        topic: str,
        bodies: Sequence[bytes],
        timeout: float,
        deadline: float,
        retries: int = 0,
        batch: bool = False,
    ) -> None:
        # What every publish reads: an attribute of an object is read several times faster than one of its class.
        self._done = self.again = self.batch = False
        self._value = self._error = self.request = self.key = self.partition = None
        self._wakers = []
        self.topic, self.bodies = topic, bodies
        #: Number of messages.
        self.count = len(bodies)
        self.timeout, self.deadline = timeout, deadline
        #: How many more times the publish may be sent again after an unknown outcome.
        self.retries = retries
        if batch:
            self.batch = True

    def as_request(self) -> PublishRequest:
        """Return the topic, the bodies and the options as the dialect expects them."""
        return self.request or PublishRequest(topic=self.topic, bodies=self.bodies, batch=self.batch)

    def command(self) -> bytes:
        """Return the bytes of the command."""
        if self.data:
            return self.data
        if self.batch:
            return commands.multipublish_packed(commands.multipublish_head(self.topic), list(self.bodies))
        return self.command_behind(commands.PUBLISH_HEADS[self.topic])

    def command_behind(self, head: bytes) -> bytes:
        """Return the PUB of the message, with *head* as the command line."""
        body = self.bodies[0]
        return b"".join((head, len(body).to_bytes(4, "big"), body))

    # -- in a thread that shares connections

    def wake_thread(self) -> None:
        """Wake the thread of the publish, if it waits."""
        if self.gate is not None:
            try:
                self.gate.release()
            except RuntimeError:  # an earlier call has released the lock
                pass

    def finish(self, value: Any = None, error: NSQError | None = None) -> None:
        """Set the outcome, unless the thread of the publish has given up, and wake the thread."""
        if not self._done:
            self._value, self._error = value, self.true_error(error)
            self._done = True
        if self.gate is not None:
            self.wake_thread()

    def send_again(self, why: NSQError) -> None:
        """Let the thread of the publish send it again, because the nsqd of its connection has not stored it."""
        self.last_error, self.sent, self.connection = why, self.in_doubt, None
        self.again = True
        self.wake_thread()

    def give_up(self) -> None:
        """Set the outcome in the thread of the publish, after its deadline or an exception in this thread."""
        if not self._done:
            self._error = self.timed_out()
            self._done = True
            if not self.sent:
                reasons = [self.last_error or "all connections are busy (max_connections)"]
                self._error = not_reached(self.topic, self.timeout, reasons)

    def accepts(self, connection: Any) -> bool:
        """Pass *connection* on to the thread of the publish.  Return False if the thread does not wait any more."""
        self.offers.append(connection)
        self.wake_thread()
        if not (self._done or self.again):
            return True
        return self.take_offer() is None  # whoever takes it back owns it: the caller or the thread

    def take_offer(self) -> Any:
        """Return a connection that another thread has passed on, or None."""
        try:
            return self.offers.pop()
        except IndexError:
            return None

    # -- the outcome

    def true_error(self, error: NSQError | None) -> NSQError | None:
        """Return *error*, or OutcomeUnknown instead if an earlier attempt got no answer."""
        if not self.in_doubt or error is None or isinstance(error, OutcomeUnknown):
            return error
        return OutcomeUnknown(f"an earlier attempt got no answer, so the outcome is unknown: {error}")

    def is_accepted(self) -> bool:
        """Return whether an nsqd has accepted the publish."""
        return self._done and self._error is None

    def on_outcome(self, act: Callable[[], None]) -> None:
        """Call *act* in the loop's thread when the outcome is set."""
        self._wakers.append(act)

    def outcome_kind(self) -> int:
        """Return PUBLISHED, FAILED or UNKNOWN.  The publish must be settled."""
        error = self._error
        return PUBLISHED if error is None else UNKNOWN if isinstance(error, OutcomeUnknown) else FAILED

    def outcome(self) -> Any:
        """Return the value of a settled publish, or raise its error."""
        if self._error is not None:
            raise self._error
        return self._value

    def settle(self, value: Any = None, error: BaseException | None = None) -> bool:
        """Set the outcome and wake the waiters, in the loop's thread.  If it is already set, only return False."""
        if self._done:
            return False
        self._value, self._error = value, error
        self._done = True  # last: if an exception interrupts this method, a reset must settle the publish
        self.announce()
        return True

    def announce(self) -> None:
        """Wake the waiters.  Call this method in the loop's thread."""
        if self._wakers:
            self.wake()
        if self.greenlet is not None:  # after wake(), which a reset calls again if a user's callback raises
            self.loop.resume_soon((self.greenlet,))

    def mark_sent(self) -> bool:
        """Mark the publish as sent.  Return False if the publish is already settled, so the caller must not send it."""
        self.sent = True  # before the read of _done: _give_up() sets _done and then reads sent
        return not self._done

    def _give_up(self) -> None:
        """Settle the publish in the waiting thread, GRACE seconds after the deadline, because the loop is blocked."""
        if not self._done:
            self._error = self.timed_out()
            self._done = True
            if not self.sent:
                why = f"the I/O loop did not send the publish to {self.topic} within {self.timeout:g} s"
                self._error = NotSent(f"{why}: something blocks it")
            self.loop.call_soon(self.announce)

    def timed_out(self) -> PublishTimeout:
        """Return the error for a publish that was sent and got no answer before its deadline."""
        return PublishTimeout(f"no answer to the publish to {self.topic} within {self.timeout:g} s")

    # -- waiting

    def wait_in(self, greenlet: Any) -> Any:
        """Wait in *greenlet*, the current greenlet of the loop's thread; return the value or raise the error.

        The wait needs no timeout, because :class:`Outcomes` settles the publish at its deadline.
        """
        if not self._done:
            self.greenlet = greenlet
            try:
                while not self._done:
                    self.loop.park(greenlet)
            finally:
                self.greenlet = None
        if self._error is not None:
            raise self._error
        return self._value

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the outcome; return the value or raise the error.  Raises TimeoutError after *timeout* seconds."""
        if not self._done:
            reset_after_fork()
            if self.loop.gone and not self._done:
                raise of_the_parent()
            if timeout is None and self.loop.is_here() and (greenlet := current_greenlet()) is not self.loop.hub:
                return self.wait_in(greenlet)
        return super().result(timeout)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most *timeout* seconds for the outcome; return whether the outcome is set.

        Outside of the loop's thread this method checks the deadline itself, because the loop may be blocked.
        """
        left = self.deadline - SYSTEM_CLOCK.now() + GRACE
        if self._done or self.loop.gone or self.loop.is_here() or (timeout is not None and timeout < left):
            return super().wait(timeout)
        if not super().wait(max(0.0, left)):
            self._give_up()
        return True


class _Cells(dict[Any, list[int]]):
    """The cells of each owner.  While it makes a list, the garbage collector may publish and count: that list stays."""

    def __missing__(self, owner: Any) -> list[int]:
        return self.setdefault(owner, [0, 0, 0, 0])


class Counts:
    """Counts messages by outcome, and reconnects of threads.

    Only its owner, a thread or the loop, changes a cell; :meth:`totals` adds them.
    """

    def __init__(self) -> None:
        #: For each owner its cells, at the positions PUBLISHED, FAILED, UNKNOWN and RECONNECTS.
        self.cells = _Cells()

    def totals(self) -> list[int]:
        """Return the numbers of published, failed and unknown messages, and of reconnects."""
        return [sum(cells) for cells in zip((0, 0, 0, 0), *self.cells.copy().values(), strict=True)]


class Outcomes:
    """Holds the unsettled publishes of one Writer's loop, settles them, and counts their outcomes.

    Only :meth:`reserve` and :attr:`backlog` are thread-safe.  Call all other methods in the loop's thread.

    Args:
        max_pending: Maximum bytes of background publishes without an outcome.
        error: Returns the error for a publish whose deadline has passed.
        on_expired: Called after each check of the deadlines.
    """

    def __init__(
        self,
        loop: Loop,
        clock: Clock,
        max_pending: int,
        error: Callable[[Publish], NSQError],
        on_expired: Callable[[], None],
        counts: Counts,
    ) -> None:
        self._loop, self._clock, self._max_pending = loop, clock, max_pending
        self._error, self._on_expired = error, on_expired
        self._cells = counts.cells[self]
        self._groups: dict[int, set[Publish]] = {}
        #: Time of the next check of the deadlines.
        self._check_at = _NEVER
        self._timer: Any = None
        # An RLock, because the garbage collector may call publish_nowait() while the same thread holds it.
        self._lock = native_rlock()
        self._reserved = self._released = 0

    # -- the publishes without an outcome

    def begin(self, topic: str, body: bytes, timeout: float, retries: int) -> Publish:
        """Make and hold the publish of one message."""
        head = commands.PUBLISH_HEADS[topic]  # raises InvalidName
        publish = Publish(topic, (body,), timeout, self._clock.now() + timeout, retries)
        publish.loop = self._loop
        publish.data = b"".join((head, len(body).to_bytes(4, "big"), body))
        self.add(publish)
        return publish

    def add(self, publish: Publish) -> None:
        """Hold an unsettled publish, and settle it at its deadline at the latest."""
        deadline = publish.deadline
        number = int(deadline / _SPAN)
        group = self._groups.get(number)
        if group is None:
            group = self._groups[number] = set()
        group.add(publish)
        publish.peers = group
        if deadline < self._check_at:
            self._set_timer(deadline)

    def open(self) -> list[Publish]:
        """Return every publish without an outcome."""
        return [publish for publish in self._all() if not publish._done]

    def _all(self) -> list[Publish]:
        # Copies, because the garbage collector may run code that publishes, at any line.
        return [publish for group in list(self._groups.values()) for publish in list(group)]

    def succeeded(self, publish: Publish, value: Any = None) -> None:
        """Settle and count a publish that nsqd accepted."""
        if publish.settle(value):
            self._cells[PUBLISHED] += publish.count
        self.forget(publish)

    def failed_with(self, publish: Publish, error: NSQError) -> None:
        """Settle a publish with *error*, or with OutcomeUnknown if it is in doubt, and count the failure."""
        if publish.settle(error=publish.true_error(error)):
            self._cells[publish.outcome_kind()] += publish.count
        self.forget(publish)

    def count_failure(self, publish: Publish) -> None:
        """Count and drop a publish that its thread has settled."""
        self._cells[publish.outcome_kind()] += publish.count
        self.forget(publish)

    def forget(self, publish: Publish) -> None:
        """Drop a settled publish, and stop counting its bytes."""
        if publish.peers is not None:
            publish.peers.discard(publish)
        if publish.cost:
            self.release(publish)

    def reset(self, why: str) -> None:
        """Settle all publishes, because an exception has interrupted the library's code.  *why* is the error's text."""
        for publish in self._all():
            if publish._done:
                publish.announce()  # again, because the exception may have interrupted the first call
                self.forget(publish)
            else:
                unknown = OutcomeUnknown(f"{why}: its outcome is unknown") if publish.sent else NotSent(why)
                self.failed_with(publish, unknown)
        self._groups.clear()
        self._set_timer(_NEVER)

    def drain(self, timeout: float) -> bool:
        """Wait at most *timeout* seconds until every publish has an outcome; return whether every publish has one."""
        ends = self._clock.now() + timeout
        begun = Completion()
        self._loop.call_behind(begun.settle)  # runs after the loop has taken the earlier publishes of other threads
        while self.open() or not begun.done():
            left = ends - self._clock.now()
            if left <= 0:
                return False
            sleep(min(left, _POLL))
        return True

    # -- the limit

    @property
    def backlog(self) -> int:
        """Return the bytes of background publishes without an outcome.  Thread-safe."""
        return self._reserved - self._released

    def reserve(self, publish: Publish, size: int) -> None:
        """Count *size* bytes of a background publish.  Thread-safe.  Raises BacklogFull above *max_pending* bytes."""
        with self._lock:
            if self.backlog + size > self._max_pending:
                raise BacklogFull(f"over {self._max_pending} bytes would be unanswered (max_pending); nothing was sent")
            self._reserved += size
        publish.cost = size

    def release(self, publish: Publish) -> None:
        """Stop counting the bytes of a publish."""
        size, publish.cost = publish.cost, 0
        self._released += size

    # -- deadlines

    def expire(self) -> None:
        """Settle the overdue publishes, and set the timer for the next check."""
        now = self._clock.now()
        self._check_at = _NEVER
        last = int(now / _SPAN)
        for number in sorted(number for number in list(self._groups) if number <= last):
            for publish in [each for each in list(self._groups[number]) if each.deadline <= now or each._done]:
                if not publish._done:
                    self.failed_with(publish, self._error(publish))
                elif publish._error is None:
                    self.forget(publish)
                else:  # Publish._give_up() has settled the publish without counting the failure
                    self.count_failure(publish)
        for number in list(self._groups):
            if not self._groups[number]:
                del self._groups[number]
        if self._groups:
            soonest = min(publish.deadline for publish in list(self._groups[min(self._groups)]))
            self._set_timer(max(soonest, now + _SPAN / 2))
        self._on_expired()

    def _set_timer(self, at: float) -> None:
        self.stop()
        self._check_at = at
        if at < _NEVER:
            self._timer = self._loop.timer(at - self._clock.now(), self.expire)

    def stop(self) -> None:
        """Stop the timer."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.close()


class Publication:
    """Gives access to the outcome of a ``publish_nowait``.

    ``wait()`` and ``result()`` block no other greenlet.  Without a *timeout* they return when the publish has its
    outcome, which is at the latest shortly after the timeout of the publish.
    """

    __slots__ = ("_publish",)

    def __init__(self, publish: Publish) -> None:
        self._publish = publish

    def done(self) -> bool:
        """Return whether the outcome is set."""
        return self._publish._done

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most *timeout* seconds for the outcome; return whether the outcome is set."""
        return self._publish.wait(timeout)

    def result(self, timeout: float | None = None) -> PublishReceipt | None:
        """Wait for nsqd's OK and return None.  For a traced publish to Youzan's NSQ, return its receipt.

        Raises:
            NsqdError: nsqd refused the message.
            NotSent: Nothing was sent.  A second publish cannot duplicate the message.
            OutcomeUnknown, PublishTimeout: nsqd did not answer.  A second publish may duplicate the message.
            TimeoutError: The publish had no outcome after *timeout* seconds.
        """
        value: PublishReceipt | None = self._publish.result(timeout)
        return value

    def __await__(self) -> Generator[Any, None, PublishReceipt | None]:
        """Wait for the outcome in an asyncio event loop; return the receipt or raise the error."""
        import asyncio

        loop = asyncio.get_running_loop()
        outcome: Any = loop.create_future()

        def settle() -> None:
            if not outcome.done():
                outcome.set_result(None)

        def report(publication: Publication) -> None:
            with suppress(RuntimeError):  # the event loop has ended
                loop.call_soon_threadsafe(settle)

        self.add_done_callback(report)
        yield from outcome
        return self.result()

    def add_done_callback(self, callback: Callable[[Publication], object]) -> None:
        """Call *callback* once, with this publication, when the outcome is set.

        *callback* runs in the I/O thread, or at once in the caller's thread if the outcome is already set.  It must not
        block or wait, but may call ``publish_nowait``.  The library logs exceptions of *callback*.
        """
        publish, left = self._publish, [callback]

        def call() -> None:
            try:
                callback = left.pop()
            except IndexError:
                return  # another thread has already called *callback*
            try:
                callback(self)
            except Exception as error:
                log_safely(log, logging.ERROR, "a callback of a publish to %s failed", publish.topic, exc_info=error)

        publish._wakers.append(call)
        if publish._done:
            call()


def after_loss(publish: Publish, reason: NSQError, *, is_unread: bool) -> NSQError | None:
    """Decide what the loss of its connection does to an unanswered publish (PUB-2).

    Return its error, or None if it must be sent again.  *is_unread* is true if nsqd has not read the publish: an error
    frame has answered an earlier publish of the connection, or no byte of the publish was sent.
    """
    if is_unread:
        publish.sent = publish.in_doubt
        return None
    if publish.retries > 0:
        publish.retries -= 1
        publish.sent = publish.in_doubt = True
        return None
    why = f"the connection was lost before the answer came, so the outcome is unknown: {reason}"
    return OutcomeUnknown(why)


def not_reached(topic: str, timeout: float, reasons: Sequence[NSQError | str]) -> NotSent:
    """Return the error for a publish that was not sent before its deadline.  The text has up to three *reasons*."""
    why = f": {'; '.join(map(str, reasons[:3]))}" if reasons else ""
    error = NotSent(f"no nsqd could be reached for the publish to {topic} within {timeout:g} s{why}")
    error.__cause__ = next((reason for reason in reasons if isinstance(reason, NSQError)), None)
    return error


def of_the_parent() -> OutcomeUnknown:
    """Return the error that a forked child raises for a publish of its parent."""
    return OutcomeUnknown("the parent process published the message, and only the parent learns the outcome")
