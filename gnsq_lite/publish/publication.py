"""A publish of the loop, settled exactly once (PUB-2); the deadlines of all; the handle of ``publish_nowait``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from gnsq_lite.clock import SYSTEM_CLOCK, Clock
from gnsq_lite.dialect import Endpoint, PublishRequest
from gnsq_lite.errors import BacklogFull, NotSent, NSQError, OutcomeUnknown, PublishTimeout
from gnsq_lite.net.io_thread import look_for_fork
from gnsq_lite.net.loop import Loop, current_greenlet, sleep
from gnsq_lite.net.os_threads import native_lock
from gnsq_lite.net.user_hooks import log_safely
from gnsq_lite.net.waiting import Completion
from gnsq_lite.wire import commands

if TYPE_CHECKING:
    from gnsq_lite.youzan.messages import PublishReceipt

log = logging.getLogger("gnsq_lite.writer")

#: Seconds after the deadline that a waiting thread leaves to the loop, which can give a better reason.
GRACE = 0.1
#: Seconds that the deadlines of one group span, and at least pass between two looks for expired ones.
_SPAN = 0.02
#: Seconds between two looks whether every publish has its outcome.
_POLL = 0.001
_NEVER = float("inf")


class Publish(Completion):
    """One publish on its way: one message, or a batch, and its outcome."""

    __slots__ = (
        "batch",
        "bodies",
        "cost",
        "count",
        "data",
        "deadline",
        "greenlet",
        "in_doubt",
        "last_error",
        "leader",
        "loop",
        "number",
        "peers",
        "request",
        "retries",
        "sent",
        "timeout",
        "topic",
    )

    def __init__(
        self,
        loop: Loop | None,
        topic: str,
        bodies: Sequence[bytes],
        timeout: float,
        deadline: float,
        retries: int = 0,
        batch: bool = False,
    ) -> None:
        self._done = False
        self._value = self._error = None
        self._wakers = []
        self.loop: Any = loop
        self.topic, self.bodies, self.batch = topic, bodies, batch
        #: Number of messages.
        self.count = len(bodies)
        self.timeout, self.deadline = timeout, deadline
        #: How often it may still be sent again although its outcome is unknown.
        self.retries = retries
        #: The greenlet of the loop's thread that waits for the outcome.
        self.greenlet: Any = None
        #: The publishes without an outcome that have nearly the same deadline, of :class:`Outcomes`.
        self.peers: set[Publish] | None = None
        #: What a dialect is asked for, where that is more than a plain message or batch.
        self.request: PublishRequest | None = None
        #: The command's bytes, where they were made before it is written.
        self.data = b""
        #: Bytes that count against max_pending.
        self.cost = 0
        #: The router's: its place among all, the leader that a thread has chosen, and the last refusal.
        self.number = 0
        self.leader: Endpoint | None = None
        self.last_error: NSQError | None = None
        #: Whether an nsqd may have it; and whether an earlier attempt, which got no answer, is why.
        self.sent = self.in_doubt = False

    def hand_to(self, loop: Loop, retries: int, *, in_doubt: bool = False) -> None:
        """Let *loop* carry out what the pool could not send, or not get an answer to: *in_doubt*."""
        self.loop, self.retries = loop, retries
        self.sent = self.in_doubt = in_doubt

    def asked(self) -> PublishRequest:
        """Return the request for a dialect."""
        return self.request or PublishRequest(topic=self.topic, bodies=self.bodies, batch=self.batch)

    def command(self) -> bytes:
        """Return the bytes to write."""
        if self.data:
            return self.data
        if self.batch:
            return commands.multipublish_packed(commands.multipublish_head(self.topic), list(self.bodies))
        return self.command_behind(commands.PUBLISH_HEADS[self.topic])

    def command_behind(self, head: bytes) -> bytes:
        """Return the PUB of its one message, whose line is *head*."""
        body = self.bodies[0]
        return b"".join((head, len(body).to_bytes(4, "big"), body))

    # -- the outcome

    def settle(self, value: Any = None, error: BaseException | None = None) -> bool:
        """Set the outcome and wake those that wait; in the loop's thread.  Return False if it was set before."""
        if self._done:
            return False
        self._value, self._error = value, error
        self._done = True  # last: an exception before it leaves the publish without an outcome, and a reset sets one
        self.announce()
        return True

    def announce(self) -> None:
        """Wake those that wait for the outcome."""
        if self.greenlet is not None:
            self.loop.resume_soon((self.greenlet,))
        if self._wakers:
            self.wake()

    def announce_again(self) -> None:
        """Do the same in the loop: an exception may have ended :meth:`announce`."""
        if self.greenlet is not None:
            self.loop.resume_once(self.greenlet)
        self.wake()

    def mark_sent(self) -> bool:
        """Note that it is about to be sent; return False if its thread has given it up, so that it must not be."""
        self.sent = True  # before _done is read: _give_up() sets _done, and then reads this
        return not self._done

    def _give_up(self) -> None:
        """Settle it in the thread that waits, some time after the deadline: something blocks the loop."""
        if not self._done:
            self._error = self.timed_out()
            self._done = True
            if not self.sent:
                why = f"the I/O loop did not send the publish to {self.topic} within {self.timeout:g} s"
                self._error = NotSent(f"{why}: something blocks it")
            self.loop.call_soon(self.announce_again)

    def stand_in(self) -> Publish:
        """Return a settled publish that takes the answer to this one, which is sent elsewhere."""
        other = Publish(self.loop, self.topic, (), self.timeout, self.deadline)
        other.request = self.request
        other.settle()
        return other

    def timed_out(self) -> PublishTimeout:
        """Return the error for a deadline that has passed after the publish was sent."""
        return PublishTimeout(f"no answer to the publish to {self.topic} within {self.timeout:g} s")

    # -- waiting

    def wait_in(self, greenlet: Any) -> Any:
        """Wait in *greenlet*, the caller's own and of the loop's thread; return the value or raise the error.

        The core keeps the deadline.
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
        """Wait and return the value, or raise the error.  Raises TimeoutError when none came in *timeout* seconds."""
        if not self._done:
            look_for_fork()
            if self.loop.gone and not self._done:
                raise of_the_parent()
            if timeout is None and self.loop.is_here() and (greenlet := current_greenlet()) is not self.loop.hub:
                return self.wait_in(greenlet)
        return super().result(timeout)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the outcome, at most *timeout* seconds; return whether it came.

        A thread keeps the deadline itself, whatever the loop does.
        """
        left = self.deadline - SYSTEM_CLOCK.now() + GRACE
        if self._done or self.loop.gone or self.loop.is_here() or (timeout is not None and timeout < left):
            return super().wait(timeout)
        if not super().wait(max(0.0, left)):
            self._give_up()
        return True


class Outcomes:
    """Of one Writer; in the loop's thread, but for :meth:`reserve` and :attr:`backlog`.

    Args:
        max_pending: Maximum bytes of background publishes without an outcome.
        error: Returns the error of a publish whose deadline has passed.
        on_expired: Called after deadlines have passed.
    """

    def __init__(
        self,
        loop: Loop,
        clock: Clock,
        max_pending: int,
        error: Callable[[Publish], NSQError],
        on_expired: Callable[[], None],
    ) -> None:
        self._loop, self._clock, self._max_pending = loop, clock, max_pending
        self._error, self._on_expired = error, on_expired
        self._groups: dict[int, set[Publish]] = {}
        #: When the timer looks for expired deadlines.
        self._look_at = _NEVER
        self._timer: Any = None
        self._lock = native_lock()
        self._reserved = self._released = 0
        #: Messages that nsqd took, that failed, and of unknown outcome.
        self.published = self.failed = self.unknown = 0

    # -- the publishes without an outcome

    def add(self, publish: Publish) -> None:
        """Note a publish that the loop carries out from now on."""
        deadline = publish.deadline
        number = int(deadline / _SPAN)
        group = self._groups.get(number)
        if group is None:
            group = self._groups[number] = set()
        group.add(publish)
        publish.peers = group
        if deadline < self._look_at:
            self._set_timer(deadline)

    def open(self) -> list[Publish]:
        """Return every publish without an outcome."""
        return [publish for group in self._groups.values() for publish in group if not publish._done]

    def succeeded(self, publish: Publish, value: Any = None) -> None:
        """Settle a publish that nsqd took."""
        if publish.settle(value):
            self.published += publish.count
        self.forget(publish)

    def failed_with(self, publish: Publish, error: BaseException) -> None:
        """Settle a publish with *error*."""
        if publish.settle(error=error):
            self.count_failure(publish, error)
        else:
            self.forget(publish)

    def count_failure(self, publish: Publish, error: BaseException) -> None:
        """Count a publish that was settled with *error*."""
        self.forget(publish)
        if isinstance(error, OutcomeUnknown):
            self.unknown += publish.count
        else:
            self.failed += publish.count

    def forget(self, publish: Publish) -> None:
        """Drop a publish that has its outcome, and give back its room."""
        if publish.peers is not None:
            publish.peers.discard(publish)
        if publish.cost:
            self.release(publish)

    def reset(self, why: str) -> None:
        """Give each publish an outcome: an exception has interrupted what would have done that."""
        for publish in [each for group in self._groups.values() for each in group]:
            if publish._done:
                publish.announce_again()
                self.forget(publish)
            else:
                unknown = OutcomeUnknown(f"{why}: its outcome is unknown") if publish.sent else NotSent(why)
                self.failed_with(publish, unknown)
        self._groups.clear()
        self._set_timer(_NEVER)

    def drain(self, timeout: float, is_empty: Callable[[], bool]) -> bool:
        """Wait until every publish has its outcome and *is_empty* says so too; return whether they have."""
        ends = self._clock.now() + timeout
        while self.open() or not is_empty():
            left = ends - self._clock.now()
            if left <= 0:
                return False
            sleep(min(left, _POLL))
        return True

    # -- the limit

    @property
    def backlog(self) -> int:
        """Return the bytes of background publishes without an outcome; may be called from any thread."""
        return self._reserved - self._released

    def reserve(self, publish: Publish, size: int) -> None:
        """Count *size* bytes for a publish; from any thread.  Raises BacklogFull."""
        with self._lock:
            if self.backlog + size > self._max_pending:
                raise BacklogFull(f"{self._max_pending} bytes are unanswered already (max_pending); nothing was sent")
            self._reserved += size
        publish.cost = size

    def release(self, publish: Publish) -> None:
        """Give back the room of a publish."""
        size, publish.cost = publish.cost, 0
        self._released += size

    # -- deadlines

    def expire(self) -> None:
        """Settle what is overdue.  Must not wait."""
        now = self._clock.now()
        self._look_at = _NEVER
        last = int(now / _SPAN)
        for number in sorted(number for number in self._groups if number <= last):
            for publish in [each for each in self._groups[number] if each.deadline <= now or each._done]:
                if not publish._done:
                    self.failed_with(publish, self._error(publish))
                elif publish._error is None:
                    self.forget(publish)
                else:  # its thread has given it up
                    self.count_failure(publish, publish._error)
        for number in [number for number, group in self._groups.items() if not group]:
            del self._groups[number]
        if self._groups:
            soonest = min(publish.deadline for publish in self._groups[min(self._groups)])
            self._set_timer(max(soonest, now + _SPAN / 2))
        self._on_expired()

    def _set_timer(self, at: float) -> None:
        self.stop()
        self._look_at = at
        if at < _NEVER:
            self._timer = self._loop.timer(at - self._clock.now(), self.expire)

    def stop(self) -> None:
        """Look for no more deadlines."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.close()


class Publication:
    """The outcome of ``publish_nowait``.

    ``done()`` asks, ``wait(timeout)`` and ``result(timeout)`` wait without blocking other greenlets; the outcome comes
    within the publish timeout, so waiting without a timeout ends too.  :meth:`add_done_callback` reports it.
    """

    __slots__ = ("_publish",)

    def __init__(self, publish: Publish) -> None:
        self._publish = publish

    def done(self) -> bool:
        """Return whether the outcome is there."""
        return self._publish._done

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the outcome, at most *timeout* seconds; return whether it came."""
        return self._publish.wait(timeout)

    def result(self, timeout: float | None = None) -> PublishReceipt | None:
        """Wait and return None, or the :class:`~gnsq_lite.PublishReceipt` of a traced publish (Youzan's NSQ).

        Raises:
            NsqdError: nsqd refused it.
            NotSent: nothing was sent; publishing again doubles nothing.
            OutcomeUnknown, PublishTimeout: it was sent and no answer came; publishing again may double it.
            TimeoutError: only with *timeout*: no outcome yet; it is still on its way.
        """
        value: PublishReceipt | None = self._publish.result(timeout)
        return value

    def add_done_callback(self, callback: Callable[[Publication], object]) -> None:
        """Call *callback* with this publication when it has its outcome, or at once if it already has one.

        It is called once, in the I/O thread, or at once in the caller's.  It must not block or wait for anything, but
        may call ``publish_nowait``.  Its errors are logged.
        """
        publish, left = self._publish, [callback]

        def call() -> None:
            try:
                taken = left.pop()
            except IndexError:
                return  # another thread was first
            try:
                taken(self)
            except Exception as error:
                log_safely(log, logging.ERROR, "a callback of a publish to %s failed", publish.topic, exc_info=error)

        loop = publish.loop
        publish._wakers.append((lambda: loop.call_among_many(call)) if loop.is_shared else call)
        if publish._done:
            call()


def not_reached(topic: str, timeout: float, reasons: Sequence[NSQError | str]) -> NotSent:
    """Return the error for a publish that no nsqd could be reached for; *reasons* say why."""
    why = f": {'; '.join(map(str, reasons[:3]))}" if reasons else ""
    error = NotSent(f"no nsqd could be reached for the publish to {topic} within {timeout:g} s{why}")
    error.__cause__ = next((reason for reason in reasons if isinstance(reason, NSQError)), None)
    return error


def of_the_parent() -> OutcomeUnknown:
    """Return the error, in a forked child, of a publish of the parent."""
    return OutcomeUnknown("the parent process published it, and only the parent learns the outcome")
