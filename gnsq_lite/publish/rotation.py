"""Which of a Writer's nsqds take their turn (PUB-4).

One that leaves its oldest publish unanswered past its deadline, or for a second or two, is a suspect: it gets nothing
that another can take until it answers again.  That is noticed by deadlines and by the ticker; a publish pays nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from gnsq_lite.dialect import Endpoint
from gnsq_lite.errors import NSQConnectionError, NSQError
from gnsq_lite.policy.shunned import Shunned
from gnsq_lite.publish.destination import Destination
from gnsq_lite.publish.publication import Publication


class Rotation:
    """A Writer's nsqds, those in turn and the suspects, and what waits for any of them.  In the loop's thread.

    Args:
        shunned: The endpoints that are left out where another will do; kept here.
        goes_elsewhere: Says whether another nsqd, that answers as far as is known, may take a publish.
        on_silent: Told of an endpoint as long as it is silent.
        send_again: Sends, in order, what was taken from a suspect.
        misconfigured: Errors that waiting does not mend.
    """

    def __init__(
        self,
        shunned: Shunned[Endpoint],
        *,
        goes_elsewhere: Callable[[Publication, Endpoint], bool],
        on_silent: Callable[[Endpoint], None],
        send_again: Callable[[Iterable[Publication]], None],
        misconfigured: tuple[type[NSQError], ...],
    ) -> None:
        self._goes_elsewhere, self._on_silent, self._send_again = goes_elsewhere, on_silent, send_again
        self.shunned, self._misconfigured = shunned, misconfigured
        self.destinations: dict[Endpoint, Destination] = {}
        #: Destinations whose handshake is done and that answer, in a list for round robin.
        self.ready: list[Destination] = []
        self.suspects: list[Destination] = []
        #: Whether any handshake was ever done: these settings work.
        self.proven = False
        #: Publishes that any may take, in their order, until one can.
        self.waiting: deque[Publication] = deque()
        self._held: Publication | None = None
        self._turn = 0

    # -- publishes

    def send(self, publication: Publication) -> None:
        """Send it to the one whose turn it is; or let it wait."""
        ready = self.ready
        while ready:
            if len(ready) == 1:
                destination = ready[0]
            else:
                self._turn = turn = (self._turn + 1) % len(ready)
                destination = ready[turn]
            if destination.send(publication):
                return
        if not self._send_anyhow(publication):
            self.waiting.append(publication)

    def _send_anyhow(self, publication: Publication) -> bool:
        """Send it to a suspect, which is better than nothing where no other may come."""
        if len(self.suspects) < len(self.destinations):
            return False
        suspect = self._least_bad()
        return suspect is not None and suspect.send(publication)

    def _least_bad(self) -> Destination | None:
        """Return the suspect that owes the least; None where there is none."""
        return min(self.suspects, key=lambda destination: len(destination.pending), default=None)

    def take_waiting(self) -> deque[Publication]:
        """Take away what waits."""
        waiting, self.waiting = self.waiting, deque()
        return waiting

    # -- who comes and goes

    def connected(self) -> list[Destination]:
        """Return every destination whose handshake is done."""
        return self.ready + self.suspects

    def join(self, destination: Destination) -> None:
        """Its handshake is done."""
        self.proven, destination.suspected = True, False
        self.ready.append(destination)
        self.shunned.discard(destination.endpoint)

    def part(self, destination: Destination) -> bool:
        """Its connection is gone; return whether it had one."""
        for destinations in (self.ready, self.suspects):
            if destination in destinations:
                destinations.remove(destination)
                return True
        return False

    def failed(self, destination: Destination, error: NSQError) -> None:
        """It cannot be reached, for now."""
        self.shunned.add(destination.endpoint, whole_node=isinstance(error, NSQConnectionError))

    def hopeless(self) -> NSQError | None:
        """Return the error where nothing that waiting mends keeps every nsqd away.

        Settings that have worked once are right: what goes wrong later may pass, and deadlines say how long to wait.
        """
        errors = [destination.error for destination in self.destinations.values()]
        if self.proven or not all(isinstance(error, self._misconfigured) for error in errors):
            return None
        return errors[0] if errors else None

    # -- who is silent

    def look_again(self) -> None:
        """Suspect whoever owes the same publish as at the last look; called about once a second."""
        for destination in list(self.destinations.values()):
            owed = destination.oldest()
            if owed is not None and owed is destination.seen:
                self.suspect(destination)
            destination.seen = owed
        held = self.waiting[0] if self.waiting else None
        if held is not None and held is self._held and not self.ready:
            self._release()
        self._held = held

    def _release(self) -> None:
        """Nobody came for what waits: a suspect is better than nothing."""
        waiting = self.waiting
        while waiting and (suspect := self._least_bad()) is not None:
            if waiting[0].done() or suspect.send(waiting[0]):
                waiting.popleft()

    def overdue(self) -> None:
        """Suspect whoever has not answered its oldest publish by its deadline; called when deadlines have passed."""
        for destination in list(self.ready):
            owed = destination.oldest()
            if owed is not None and owed.done():
                self.suspect(destination)

    def suspect(self, destination: Destination) -> None:
        """Leave it out until it answers; what may go elsewhere does, where there is one to take it."""
        if destination in self.ready:
            self.ready.remove(destination)
            self.suspects.append(destination)
        self.shunned.add(destination.endpoint, whole_node=True)
        destination.suspected = True
        self._on_silent(destination.endpoint)
        self._relieve(destination)

    def answered(self, destination: Destination, in_time: bool) -> bool:
        """A suspect answers: it is back when that was not too late, or when it owes nothing more; return whether."""
        back = destination in self.suspects and (in_time or not destination.pending)
        if back:
            self.suspects.remove(destination)
            self.join(destination)
        return back

    def relieve(self) -> None:
        """Have one that came take over what waits for those that are shunned."""
        for destination in list(self.destinations.values()):
            if destination.waiting and self.shunned.has(destination.endpoint):
                self._relieve(destination)

    def _relieve(self, destination: Destination) -> None:
        self._send_again(destination.take_movable(lambda each: self._goes_elsewhere(each, destination.endpoint)))
