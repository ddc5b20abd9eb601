"""Publishes that callers' threads carry out themselves, in a process that is not monkey-patched.

A thread that finds a connection sends on it and waits there for its answer; the loop carries out all other publishes.
A publish never overtakes one that was handed to the loop before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sized
from typing import Any, Protocol

from gevent._hub_local import get_hub_if_exists

from gnsq_lite.clock import Clock
from gnsq_lite.errors import NotSent, NSQError
from gnsq_lite.net.loop import Loop, after_io
from gnsq_lite.net.nested import WHY, Holding, holding, holds, is_nested, must_not_wait
from gnsq_lite.net.os_threads import native_ident
from gnsq_lite.publish.answer_queue import Taken
from gnsq_lite.publish.carrying import make_lock
from gnsq_lite.publish.publication import Publication
from gnsq_lite.wire.commands import PUBLISH_HEADS

#: Publishes that are carried out in one turn of the loop, of those handed over to it.
_AT_ONCE = 1000


class Turns(Protocol):
    """The nsqds of a Writer, which the loop changes as they come and go."""

    @property
    def connected(self) -> Sized:
        """Those whose handshake is done."""

    @property
    def waiting(self) -> Sized:
        """What waits for any of them."""

    def at_turn(self, turn: int) -> Any:
        """Return the one whose turn that is; from any thread."""


class InThreads:
    """What the loop and callers' threads share.

    Args:
        turns: The nsqds to publish to.
        lead: Makes the command of a publish that goes to a leader, and returns the connection there; from any thread.
            None: the loop is to see to it.
        gathered: What the loop gathers and has not sent.
        retries: Of each publish.
        carry: Carries a publish out, from any thread; submit, in the loop.
        taken: Counts, under the lock, the messages that nsqd took.
        given_up: Told in the loop of a publish that its thread has given up.
        cover: Has a deadline kept; from any thread.
        reasons: Returns why no nsqd can be reached.
    """

    def __init__(
        self,
        loop: Loop,
        clock: Clock,
        *,
        turns: Turns,
        lead: Callable[[Publication], Any],
        gathered: Sized,
        retries: int,
        carry: Callable[[Publication], None],
        submit: Callable[[Publication], None],
        taken: Taken,
        given_up: Callable[[Publication, NSQError], None],
        cover: Callable[[float], None],
        reasons: Callable[[], Iterable[NSQError | str]],
    ) -> None:
        self._loop, self.clock, self._turns, self._gathered = loop, clock, turns, gathered
        self._lead, self._retries, self._carry = lead, retries, carry
        self._submit, self.taken, self._given_up = submit, taken, given_up
        self._cover, self._reasons = cover, reasons
        #: Guards who sends and reads on each connection, their queues, and whether a publish was sent or given up.
        self.lock = make_lock()
        #: What was handed to the loop, until it is in its queues.
        self._entering: deque[Publication] = deque()
        #: Whether the rest of that waits until the loop has done its I/O.
        self._rests = False
        #: Of its own: what a thread leaves to the loop would take two, and then always meet the same nsqd.
        self._turn = 0
        #: Whether each publish goes to a leader; the Writer's to say.
        self.routed = False

    def publish(self, topic: str, body: bytes, timeout: float) -> Any:
        """Publish one message, whose body was checked, to any nsqd, and wait; in the caller's thread.

        Raises InvalidName before anything is sent, and the publish's own error.
        """
        publication = Publication(self._loop, topic, (body,), timeout, self.clock.now() + timeout, self._retries)
        return self._publish_and_wait(publication, publication.command())

    def publish_led(self, topic: str, body: bytes, timeout: float, key: bytes | None, partition: int | None) -> Any:
        """Do the same to the leader of the key's, the named, or the next partition."""
        if holding and is_nested():
            raise NotSent(WHY)
        publication = Publication(self._loop, topic, (body,), timeout, self.clock.now() + timeout, self._retries)
        publication.key, publication.partition = key, partition
        if self._is_first() and get_hub_if_exists() is None:
            connection = self._lead(publication)
            if connection is not None and connection.publish(publication, publication.data):
                return publication.outcome()
        PUBLISH_HEADS[topic]  # a bad name is refused here
        publication.data = b""
        return self.leave_and_wait(publication)

    def publish_any(self, publication: Publication) -> Any:
        """Do the same with what may be more than one plain message, or goes to a leader."""
        known = not self.routed and publication.request is None
        return self._publish_and_wait(publication, publication.command() if known else b"")

    def _publish_and_wait(self, publication: Publication, command: bytes) -> Any:
        if holding and is_nested():
            raise NotSent(WHY)
        # A thread with a hub of its own has greenlets, which a wait for the socket would hold up.
        if self._is_first() and get_hub_if_exists() is None:
            for _ in range(1 if self.routed else len(self._turns.connected)):
                connection = self._connection_for(publication)
                if connection is None:
                    break
                if connection.publish(publication, publication.data or command):
                    return publication.outcome()
        return self.leave_and_wait(publication)

    def leave_and_wait(self, publication: Publication) -> Any:
        """Leave it to the loop and wait.  Raises NotSent, and leaves nothing, where the caller must not wait."""
        if must_not_wait():
            raise NotSent(WHY)
        self._carry(publication)
        return publication.result()

    @holds
    def queue(self, publication: Publication) -> bool:
        """Queue it on a connection, for the loop to send; False: the loop is to carry it out."""
        if holding and is_nested():
            return False
        me = native_ident()
        try:
            holding.add(me)
            connection = self._connection_for(publication) if self._is_first() else None
            publication.carrier = self
            if connection is None or not connection.put_in_thread(publication):
                return False
        finally:
            holding.discard(me)
        self._cover(publication.deadline)
        return True

    def _is_first(self) -> bool:
        """Whether it would overtake nothing."""
        return not (self._entering or self._turns.waiting or self._gathered or self._loop.stopped)

    def _connection_for(self, publication: Publication) -> Any:
        """Return the connection to the nsqd that leads or whose turn it is; None: the loop is to see to it."""
        if self.routed:
            return self._lead(publication)
        if publication.request is not None and not publication.data:
            return None  # the dialect may be undecided
        self._turn = turn = self._turn + 1
        destination = self._turns.at_turn(turn)
        return None if destination is None else destination.connection

    def hand_over(self, publication: Publication) -> None:
        """Leave it to the loop, behind what was handed over before.  Raises ClosedError at the interpreter's exit."""
        self._loop.check()
        publication.ask()
        self._entering.append(publication)
        publication.carrier = self
        self._loop.call_soon(self.enter_some)

    def entering(self) -> tuple[Publication, ...]:
        """Return what was handed over and is not in the loop's queues."""
        return tuple(self._entering)

    def enter_some(self) -> None:
        """Carry out some of what was handed over, and more once the loop has done its I/O: threads may be quicker.

        In the loop; the ticker calls this too, because a thread may be interrupted before it has told the loop.
        """
        if not self._rests:
            self.forget_done()
            self.enter(_AT_ONCE)
            if self._entering:
                self._rests = True
                after_io(self._loop.hub, self._go_on)

    def _go_on(self) -> None:
        self._rests = False
        self.enter_some()

    def enter(self, most: int | None = None) -> None:
        """Carry out what was handed over until now, or up to so many; in the loop."""
        for _ in range(len(self._entering))[:most]:
            publication = self._entering[0]
            try:
                if not publication.done():
                    self._submit(publication)
            finally:
                if self._entering and self._entering[0] is publication:  # it may have been forgotten meanwhile
                    self._entering.popleft()

    def forget_done(self) -> None:
        """Drop what was given up before its turn came; in the loop."""
        while self._entering and self._entering[0].done():
            self._entering.popleft()

    # -- what becomes of them

    @holds
    def give_up(self, publication: Publication) -> None:
        """Settle it, whose deadline has passed, unless it just was; in its own thread."""
        with Holding(), self.lock:
            error = publication.expired(() if publication.sent else list(self._reasons()))
            first = publication.settle(error=error)
        if first:
            self._loop.call_soon(lambda: self._given_up(publication, error))

    def left_alone(self, publication: Publication) -> None:
        """Have its deadline kept: its thread was interrupted, and nobody waits for it."""
        if not publication.done():
            self._cover(publication.deadline)
