"""One publish on its way: settled exactly once, whatever happens (PUB-2)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, Protocol

from gnsq_lite.clock import Clock
from gnsq_lite.dialect import Endpoint, PublishRequest
from gnsq_lite.errors import NotSent, NSQError, OutcomeUnknown, PublishTimeout
from gnsq_lite.net.forks import look_for_fork
from gnsq_lite.net.loop import Loop, current_greenlet
from gnsq_lite.net.user_hooks import log_safely
from gnsq_lite.net.waiting import Completion
from gnsq_lite.wire import commands

if TYPE_CHECKING:
    from gnsq_lite.youzan.messages import PublishReceipt

log = logging.getLogger("gnsq_lite.writer")

#: Seconds beyond the deadline that the loop has to say what became of it: it knows more than who waits.
GRACE = 0.1


class Carrier(Protocol):
    """What carries out, in the loop, a publish that another thread waits for."""

    clock: Clock
    #: Held by who marks it as sent, or gives it up.
    lock: Any

    def give_up(self, publication: Publication) -> None:
        """Settle it, whose deadline has passed, unless it just was; in its own thread."""


class Publication(Completion):
    """The outcome of ``publish_nowait``.

    ``done()`` asks, ``wait(timeout)`` and ``result(timeout)`` wait without blocking other greenlets; the outcome comes
    within the publish timeout, so waiting without a timeout ends too.  :meth:`add_done_callback` is told of it.
    """

    __slots__ = (
        "_greenlet",
        "_loop",
        "again_at",
        "batch",
        "bodies",
        "carrier",
        "cost",
        "count",
        "data",
        "deadline",
        "decided",
        "in_doubt",
        "key",
        "last_error",
        "leader",
        "moves",
        "number",
        "partition",
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
        #: The outcomes it was given, in whatever threads: the first counts.  Empty while it has none.
        self.decided: list[tuple[Any, BaseException | None]] = []
        #: Of a publish that another thread may give up.
        self.carrier: Carrier | None = None
        self._value = self._error = None
        self._wakers = []
        self._loop: Any = loop
        self._greenlet: Any = None
        self.topic, self.bodies, self.batch = topic, bodies, batch
        #: How it was asked for, where that was more than a plain message or batch, or where a leader takes it.
        self.request: PublishRequest | None = None
        #: All that was asked beside the message where there is no request yet.
        self.key: bytes | None = None
        self.partition: int | None = None
        #: The command's bytes where they had to be made before it is written: to check it, or for the leader chosen.
        self.data = b""
        #: How many messages it is.
        self.count = len(bodies)
        self.timeout, self.deadline = timeout, deadline
        self.retries = retries
        #: Bytes counted against max_pending; 0 where somebody waits.
        self.cost = 0
        #: Order among routed publishes, how many pauses its leader was looked for, when the last one ends, and what it
        #: met last.
        self.number = 0
        self.moves = 0
        #: Whom its thread has chosen.
        self.leader: Endpoint | None = None
        self.again_at = 0.0
        self.last_error: NSQError | None = None
        #: Whether an nsqd may have it; and whether an earlier try, whose answer did not come, is why.
        self.sent = self.in_doubt = False

    def hand_to(self, loop: Loop, retries: int, *, in_doubt: bool = False) -> None:
        """Let *loop* carry out what the pool could not, or tried; *in_doubt*: an nsqd may have it."""
        self._loop, self.retries = loop, retries
        self.sent = self.in_doubt = in_doubt

    def asked(self) -> PublishRequest:
        """Return what a dialect is to read."""
        return self.request or PublishRequest(
            topic=self.topic, bodies=self.bodies, batch=self.batch, key=self.key, partition=self.partition
        )

    def ask(self) -> None:
        """Have its key or partition in a request: when it is looked at there may be no leaders to choose from."""
        if self.request is None and (self.key is not None or self.partition is not None):
            self.request = self.asked()

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

    def result(self, timeout: float | None = None) -> PublishReceipt | None:
        """Wait and return None, or the :class:`~gnsq_lite.PublishReceipt` of a traced publish (Youzan's NSQ).

        Raises:
            NsqdError: nsqd refused it.
            NotSent: nothing was sent; publishing again doubles nothing.
            OutcomeUnknown, PublishTimeout: it was sent and no answer came; publishing again may double it.
            TimeoutError: only with *timeout*: no outcome yet; it is still on its way.
        """
        if not self._done:
            self._wait_for_result(timeout)
        if self._error is not None:
            raise self._error
        value: PublishReceipt | None = self._value
        return value

    def _wait_for_result(self, timeout: float | None) -> None:
        loop = self._loop
        look_for_fork()
        if loop.gone and not self._done:
            raise of_the_parent()
        if timeout is None and loop.is_here() and (greenlet := current_greenlet()) is not loop.hub:
            self.wait_in(greenlet)
        else:
            super().result(timeout)

    def add_done_callback(self, callback: Callable[[Publication], object]) -> None:
        """Call *callback* with this publication when it has its outcome, or at once if it already has one.

        It is called once, in the I/O thread, or at once in the caller's.  It must not block or wait for anything, but
        may call ``publish_nowait``.  What it raises is logged.
        """
        left = [callback]

        def tell() -> None:
            try:
                told = left.pop()
            except IndexError:
                return  # another thread was first
            try:
                told(self)
            except Exception as error:
                log_safely(log, logging.ERROR, "a callback of a publish to %s failed", self.topic, exc_info=error)

        # A thread that reads the answers of all holds a lock, which another publish wants too.
        self._wakers.append((lambda: self._loop.call_among_many(tell)) if self._loop.is_shared else tell)
        if self._done:
            tell()

    def wait_in(self, greenlet: Any) -> Any:
        """Wait in *greenlet*, the caller's own and of the loop's thread, for the outcome; return it or raise.

        The short way: no timer; the deadline is the producer's to keep.
        """
        if not self._done:
            self._greenlet = greenlet
            try:
                while not self._done:  # another thread may settle it
                    self._loop.park(greenlet)
            finally:
                self._greenlet = None
        if self._error is not None:
            raise self._error
        return self._value

    def settle(self, value: Any = None, error: BaseException | None = None) -> bool:
        """Set the outcome; in any thread.  False when it was settled before."""
        outcome = (value, error)
        self.decided.append(outcome)  # one step, between which no other thread comes
        if self.decided[0] is not outcome:
            return False
        self._conclude()
        return True

    def conclude_again(self) -> None:
        """Resume and wake, in the loop, those that wait: an exception may have ended that."""
        self._value, self._error = self.decided[0]
        self._done = True
        if self._greenlet is not None:
            self._loop.resume_once(self._greenlet)
        self.wake()

    def is_ok(self) -> bool:
        """Whether nsqd has taken it."""
        return self._done and self._error is None

    def _conclude(self) -> None:
        self._value, self._error = self.decided[0]
        self._done = True
        greenlet = self._greenlet
        if greenlet is not None:
            if self._loop.is_shared:
                self._resume()
            else:
                self._loop.resume_soon((greenlet,))
        if self._wakers:
            self.wake()

    def _resume(self) -> None:
        """Resume the greenlet of the loop that waits for it, if it still does."""
        if not self._loop.is_here():
            self._loop.call_soon(self._resume)
        elif self._greenlet is not None:
            self._loop.resume_once(self._greenlet)

    def mark_sent(self) -> bool:
        """Note that it is about to be sent; False: it was given up, and is not to be sent."""
        if self.carrier is None:
            self.sent = True
            return True
        with self.carrier.lock:
            if not self._done:
                self.sent = True
            return not self._done

    def stand_in(self) -> Publication:
        """Return what is left where it was sent, to take the answer that may still come, when it is sent elsewhere."""
        other = Publication(self._loop, self.topic, (), self.timeout, self.deadline)
        other.request = self.request
        other.settle()
        return other

    def expired(self, reasons: Sequence[NSQError | str]) -> NSQError:
        """Return the error for a deadline that has passed; *reasons* say why no nsqd could be reached."""
        if self.last_error is not None and not self.sent:
            return self.last_error
        if self.sent:
            return PublishTimeout(f"no answer to the publish to {self.topic} within {self.timeout:g} s")
        return not_reached(self.topic, self.timeout, reasons)

    # -- of other threads, which keep the deadline themselves, whatever the loop does

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the outcome, at most *timeout* seconds; return whether it came."""
        if self._done or self.carrier is None or self._loop.gone:
            return super().wait(timeout)
        left = max(0.0, self.deadline - self.carrier.clock.now()) + GRACE
        if timeout is not None and timeout < left:
            return super().wait(timeout)
        if not super().wait(left):
            self.carrier.give_up(self)
        return super().wait()  # where the loop is settling it just now


def not_reached(topic: str, timeout: float, reasons: Sequence[NSQError | str]) -> NotSent:
    """Return the error for a publish that no nsqd could be reached for; *reasons* say why."""
    why = f": {'; '.join(map(str, reasons[:3]))}" if reasons else ""
    error = NotSent(f"no nsqd could be reached for the publish to {topic} within {timeout:g} s{why}")
    error.__cause__ = next((reason for reason in reasons if isinstance(reason, NSQError)), None)
    return error


def of_the_parent() -> OutcomeUnknown:
    """Return the error, in a forked child, of what was on its way."""
    return OutcomeUnknown("the parent process published it, and only the parent learns the outcome")


def wait_for_all(publications: list[Publication]) -> PublishReceipt | None:
    """Wait for all parts of a batch that was split; raise the error of the first that failed, with what nsqd took."""
    failed: NSQError | None = None
    taken = 0
    for publication in publications:
        try:
            publication.result()
        except NSQError as error:
            failed = failed or error
        else:
            taken += publication.count
    if failed is not None:
        told = copy(failed)  # which others may be raising too
        told.taken, told.total = taken, sum(publication.count for publication in publications)
        raise told from failed.__cause__
    return None
