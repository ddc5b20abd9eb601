"""One publish in the loop, settled exactly once, and the handle that ``publish_nowait`` returns for it (PUB-2)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from gnsq_lite.clock import Clock
from gnsq_lite.dialect import Endpoint, PublishRequest
from gnsq_lite.errors import NotSent, NSQError, OutcomeUnknown, PublishTimeout
from gnsq_lite.net.io_thread import look_for_fork
from gnsq_lite.net.loop import Loop, current_greenlet
from gnsq_lite.net.user_hooks import log_safely
from gnsq_lite.net.waiting import Completion
from gnsq_lite.wire import commands

if TYPE_CHECKING:
    from gnsq_lite.youzan.messages import PublishReceipt

log = logging.getLogger("gnsq_lite.writer")

#: Seconds after the deadline that a waiting thread leaves to the loop, which can give a better reason.
GRACE = 0.1


class Carrier(Protocol):
    """The core that carries out a publish for another thread."""

    clock: Clock
    #: Held while a publish is marked as sent, and while its thread gives it up.
    lock: Any

    def give_up(self, publish: Publish) -> None:
        """Settle *publish*, whose deadline has passed, in the thread that waits for it."""


class Publish(Completion):
    """One publish on its way: one message, or a batch, and its outcome."""

    __slots__ = (
        "batch",
        "bodies",
        "carrier",
        "cost",
        "count",
        "data",
        "deadline",
        "greenlet",
        "in_doubt",
        "key",
        "last_error",
        "leader",
        "loop",
        "number",
        "partition",
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
        #: Set where another thread waits: it may give the publish up.
        self.carrier: Carrier | None = None
        #: The greenlet of the loop's thread that waits for the outcome.
        self.greenlet: Any = None
        #: The publishes without an outcome that have nearly the same deadline, of :class:`Outcomes`.
        self.peers: set[Publish] | None = None
        #: What a dialect is asked for, where that is more than a plain message or batch.
        self.request: PublishRequest | None = None
        self.key: bytes | None = None
        self.partition: int | None = None
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
        return self.request or PublishRequest(
            topic=self.topic, bodies=self.bodies, batch=self.batch, key=self.key, partition=self.partition
        )

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
        """Set the outcome and wake those that wait; from any thread.  Return False if it was set before."""
        if self.carrier is None:
            is_first = self._set(value, error)
        else:
            with self.carrier.lock:
                is_first = self._set(value, error)
        if is_first:
            self.announce()
        return is_first

    def _set(self, value: Any, error: BaseException | None) -> bool:
        if self._done:
            return False
        self._value, self._error = value, error
        self._done = True  # last: an exception before it leaves the publish without an outcome, and a reset sets one
        return True

    def give_up(self, error: NSQError) -> bool:
        """Set the outcome under the carrier's lock, which the caller holds; return False if it was set before."""
        return self._set(None, error)

    def announce(self) -> None:
        """Wake those that wait for the outcome."""
        if self.greenlet is not None:
            if self.carrier is None:
                self.loop.resume_soon((self.greenlet,))
            else:
                self._resume()
        if self._wakers:
            self.wake()

    def announce_again(self) -> None:
        """Do the same in the loop: an exception may have ended :meth:`announce`."""
        if self.greenlet is not None:
            self.loop.resume_once(self.greenlet)
        self.wake()

    def _resume(self) -> None:
        if not self.loop.is_here():
            self.loop.call_soon(self._resume)
        elif self.greenlet is not None:
            self.loop.resume_once(self.greenlet)

    def mark_sent(self) -> bool:
        """Note that it is about to be sent; return False if its thread has given it up, so that it must not be."""
        if self.carrier is None:
            self.sent = True
            return True
        with self.carrier.lock:
            if not self._done:
                self.sent = True
            return not self._done

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
        if self._done or self.carrier is None or self.loop.gone:
            return super().wait(timeout)
        left = max(0.0, self.deadline - self.carrier.clock.now()) + GRACE
        if timeout is not None and timeout < left:
            return super().wait(timeout)
        if not super().wait(left):
            self.carrier.give_up(self)
        return True


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
        may call ``publish_nowait``.  What it raises is logged.
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


def wait_for_all(publishes: list[Publish]) -> PublishReceipt | None:
    """Wait for all parts of a batch that was split; return the receipt of the first, with those of the others.

    Raises the error of the first part that failed, with what nsqd took.
    """
    failed: NSQError | None = None
    taken, receipts = 0, []
    for publish in publishes:
        try:
            receipts.append(publish.result())
        except NSQError as error:
            failed = failed or error
        else:
            taken += publish.count
    if failed is not None:
        told = copy(failed)  # other publishes may be raising the same error
        told.taken, told.total = taken, sum(publish.count for publish in publishes)
        raise told from failed.__cause__
    first: PublishReceipt | None = receipts[0]
    return None if first is None else replace(first, rest=tuple(receipts[1:]))
