"""Which of a Writer's nsqds take their turn (PUB-4).

An nsqd that leaves its oldest publish unanswered past its deadline, or for a second or two, is *silent*: until it
answers again, it gets nothing that another can take.  Deadlines and the ticker notice that, so it costs a publish
nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from gnsq_lite.dialect import Endpoint
from gnsq_lite.errors import NSQConnectionError, NSQError
from gnsq_lite.policy.shunned import Shunned
from gnsq_lite.publish.destination import Destination
from gnsq_lite.publish.publication import Publication
from gnsq_lite.publish.settings import hopeless


class Rotation:
    """A Writer's nsqds, and what waits for any of them.  In the loop's thread.

    Args:
        shunned: The endpoints that are left out where another will do; kept here.
        goes_elsewhere: Says whether another nsqd, that answers as far as is known, may take a publish.
        on_silent: Told of an endpoint as long as it is silent.
        send_again: Sends, in order, what was taken from a silent one.
    """

    def __init__(
        self,
        shunned: Shunned[Endpoint],
        *,
        goes_elsewhere: Callable[[Publication, Endpoint], bool],
        on_silent: Callable[[Endpoint], None],
        send_again: Callable[[Iterable[Publication]], None],
    ) -> None:
        self._goes_elsewhere, self._on_silent, self._send_again = goes_elsewhere, on_silent, send_again
        self.shunned = shunned
        self.destinations: dict[Endpoint, Destination] = {}
        #: Those whose handshake is done, in a list for round robin.
        self.connected: list[Destination] = []
        #: Whether any handshake was ever done: these settings work.
        self.proven = False
        #: Publishes that any may take, in their order, until one can; always the same queue.
        self.waiting: deque[Publication] = deque()
        self._held: Publication | None = None
        self._turn = 0

    # -- publishes

    def at_turn(self, turn: int) -> Destination | None:
        """Return the next one that is not silent, in turn."""
        connected = self.connected
        if not connected:
            return None
        destination = connected[turn % len(connected)]
        if destination.silent:
            answering = [each for each in connected if not each.silent]
            return answering[turn % len(answering)] if answering else None
        return destination

    def send(self, publication: Publication) -> None:
        """Send it to the one whose turn it is; or let it wait."""
        if not self._send_now(publication):
            self.waiting.append(publication)

    def _send_now(self, publication: Publication) -> bool:
        while True:
            self._turn = turn = self._turn + 1
            destination = self.at_turn(turn)
            if destination is None:
                return self._send_anyhow(publication)
            if destination.connection.send_publish(publication):
                return True
            if destination.full and all(each.full or each.silent for each in self.connected):
                return False

    def _send_anyhow(self, publication: Publication) -> bool:
        """Send it to a silent one, which is better than nothing if no other may come."""
        if len([each for each in self.connected if each.silent]) < len(self.destinations):
            return False
        silent = self._least_bad()
        return silent is not None and silent.send(publication)

    def _least_bad(self) -> Destination | None:
        """Return the silent one that owes the least, of those that take something; None where there is none."""
        silent = [each for each in self.connected if each.silent and not each.full]
        return min(silent, key=lambda destination: len(destination.pending), default=None)

    def send_waiting(self) -> None:
        """Send what waits."""
        waiting = self.waiting
        while waiting and (waiting[0].done() or self._send_now(waiting[0])):
            waiting.popleft()

    def forget_done(self) -> None:
        """Drop what has an outcome."""
        waiting = [publication for publication in self.waiting if not publication.done()]
        self.waiting.clear()
        self.waiting.extend(waiting)
        for destination in self.destinations.values():
            destination.forget_done()

    # -- who comes and goes

    def join(self, destination: Destination) -> None:
        """Its handshake is done."""
        self.proven, destination.silent = True, False
        self.connected.append(destination)
        self.shunned.discard(destination.endpoint)

    def part(self, destination: Destination) -> bool:
        """Its connection is gone; return whether it had one."""
        if destination not in self.connected:
            return False
        self.connected.remove(destination)
        return True

    def failed(self, destination: Destination, error: NSQError) -> None:
        """It cannot be reached for now."""
        self.shunned.add(destination.endpoint, whole_node=isinstance(error, NSQConnectionError))

    def hopeless(self) -> NSQError | None:
        """Return the error if no nsqd can be reached for reasons that waiting does not mend.

        Settings that worked once are right: later faults may pass, and the deadlines limit the wait.
        """
        errors = [destination.error for destination in self.destinations.values()]
        return None if self.proven else hopeless(errors)

    # -- who is silent

    def any_answers(self) -> bool:
        """Whether one is connected and not known to be silent."""
        return any(not destination.silent for destination in self.connected)

    def look_again(self) -> None:
        """Mark as silent each that has the same oldest unanswered publish as last time; called about once a second."""
        for destination in list(self.destinations.values()):
            owed = destination.oldest()
            if owed is not None and owed is destination.seen:
                self._leave_out(destination)
            destination.seen = owed
        held = self.waiting[0] if self.waiting else None
        if held is not None and held is self._held and not self.any_answers():
            self._release()
        self._held = held

    def _release(self) -> None:
        """Nothing took what waits: a silent one is better than nothing."""
        waiting = self.waiting
        while waiting and (silent := self._least_bad()) is not None:
            if waiting[0].done() or silent.send(waiting[0]):
                waiting.popleft()

    def overdue(self) -> None:
        """Mark as silent each that missed its oldest publish's deadline; called when deadlines have passed."""
        for destination in list(self.connected):
            owed = destination.oldest()
            if owed is not None and owed.done() and not destination.silent:
                self._leave_out(destination)

    def _leave_out(self, destination: Destination) -> None:
        """It is silent until it answers; what may go elsewhere does."""
        destination.silent = True
        self.shunned.add(destination.endpoint, whole_node=True)
        self._on_silent(destination.endpoint)
        self._relieve(destination)

    def answered(self, destination: Destination, in_time: bool) -> bool:
        """A silent one has answered; return whether it is back: it answered in time, or owes nothing more."""
        back = destination in self.connected and (in_time or not destination.pending)
        if back:
            destination.silent = False
            self.shunned.discard(destination.endpoint)
        return back

    def relieve(self) -> None:
        """Move what waits for shunned ones to one that has connected."""
        for destination in list(self.destinations.values()):
            if destination.waiting and self.shunned.has(destination.endpoint):
                self._relieve(destination)

    def _relieve(self, destination: Destination) -> None:
        self._send_again(destination.take_movable(lambda each: self._goes_elsewhere(each, destination.endpoint)))
