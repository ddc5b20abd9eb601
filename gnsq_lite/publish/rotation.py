"""Which of a Writer's nsqds take their turn (PUB-4).

One that leaves its oldest publish unanswered past its deadline, or for a second or two, is a suspect: it gets nothing
that another can take until it answers again.  That is noticed by deadlines and by the ticker; a publish pays nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gnsq_lite.dialect import Endpoint
from gnsq_lite.errors import NSQConnectionError, NSQError
from gnsq_lite.policy.shunned import Shunned
from gnsq_lite.publish.publication import Publication

if TYPE_CHECKING:
    from gnsq_lite.publish.peers import Peer
    from gnsq_lite.publish.producer import Producer


class Rotation:
    """Connected peers: those in turn and the suspects.  In the loop's thread."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        #: Peers whose handshake is done and who answer, in a list for round robin.
        self.ready: list[Peer] = []
        self.suspects: list[Peer] = []
        self.shunned: Shunned[Endpoint] = Shunned()
        #: Whether any handshake was ever done: these settings work.
        self.proven = False
        self._held: Publication | None = None

    def connected(self) -> list[Peer]:
        """Return every peer whose handshake is done."""
        return self.ready + self.suspects

    def join(self, peer: Peer) -> None:
        """Its handshake is done."""
        self.proven, peer.suspected = True, False
        self.ready.append(peer)
        self.shunned.discard(peer.endpoint)

    def part(self, peer: Peer) -> bool:
        """Its connection is gone; return whether it had one."""
        for peers in (self.ready, self.suspects):
            if peer in peers:
                peers.remove(peer)
                return True
        return False

    def failed(self, peer: Peer, error: NSQError) -> None:
        """It cannot be reached, for now."""
        self.shunned.add(peer.endpoint, whole_node=isinstance(error, NSQConnectionError))

    def look_again(self) -> None:
        """Suspect whoever owes the same publish as at the last look; called about once a second."""
        for peer in list(self._producer.peers.values()):
            owed = peer.oldest()
            if owed is not None and owed is peer.seen:
                self.suspect(peer)
            peer.seen = owed
        waiting = self._producer.waiting
        held = waiting[0] if waiting else None
        if held is not None and held is self._held and not self.ready:
            self._release()
        self._held = held

    def _release(self) -> None:
        """Nobody came for what waits: a suspect is better than nothing."""
        waiting = self._producer.waiting
        while waiting and (peer := self._least_bad()) is not None:
            if waiting[0].done() or peer.send(waiting[0]):
                waiting.popleft()

    def overdue(self) -> None:
        """Suspect whoever has not answered its oldest publish by its deadline; called when deadlines have passed."""
        for peer in list(self.ready):
            owed = peer.oldest()
            if owed is not None and owed.done():
                self.suspect(peer)

    def suspect(self, peer: Peer) -> None:
        """Leave it out until it answers; what may go elsewhere does, where there is one to take it."""
        if peer in self.ready:
            self.ready.remove(peer)
            self.suspects.append(peer)
        self.shunned.add(peer.endpoint, whole_node=True)
        peer.suspected = True
        self._producer.routes.refresh(peer.endpoint)
        self._producer.send_again(peer.take_movable())

    def answered(self, peer: Peer, in_time: bool) -> None:
        """A suspect answers: it is back when that was not too late, or when it owes nothing more."""
        if peer in self.suspects and (in_time or not peer.pending):
            self.suspects.remove(peer)
            self.join(peer)
            self._producer.flush(peer)

    def relieve(self) -> None:
        """Have a peer that came take over what waits for those that are shunned."""
        if self._producer.routed:
            for peer in list(self._producer.peers.values()):
                if peer.waiting and self.shunned.has(peer.endpoint):
                    self._producer.send_again(peer.take_movable())

    def goes_elsewhere(self, publication: Publication, peer: Peer) -> bool:
        """Whether another nsqd, that answers as far as is known, may take it in the place of *peer*."""
        producer = self._producer
        return producer.routes.goes_elsewhere(publication, peer.endpoint) if producer.routed else bool(self.ready)

    def send_anyhow(self, publication: Publication) -> bool:
        """Send it to a suspect, which is better than nothing where no other may come."""
        if len(self.suspects) < len(self._producer.peers):
            return False
        suspect = self._least_bad()
        return suspect is not None and suspect.send(publication)

    def _least_bad(self) -> Peer | None:
        """Return the suspect that owes the least; None where there is none."""
        return min(self.suspects, key=lambda peer: len(peer.pending), default=None)

    def hopeless(self) -> NSQError | None:
        """Return the error where nothing that waiting mends keeps every nsqd away.

        Settings that have worked once are right: what goes wrong later may pass, and deadlines say how long to wait.
        """
        errors = [peer.error for peer in self._producer.peers.values()]
        if self.proven or not all(isinstance(error, self._producer.settings.misconfigured) for error in errors):
            return None
        return errors[0] if errors else None
