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
from gnsq_lite.publish.node import Node
from gnsq_lite.publish.publication import Publish
from gnsq_lite.publish.settings import hopeless


class Rotation:
    """A Writer's nsqds, and what waits for any of them.  In the loop's thread.

    Args:
        goes_elsewhere: Says whether another nsqd, that answers as far as is known, may take a publish.
        on_silent: Told of an endpoint as long as it is silent.
        send_again: Sends, in order, what was taken from a silent one.
    """

    def __init__(
        self,
        *,
        goes_elsewhere: Callable[[Publish, Endpoint], bool],
        on_silent: Callable[[Endpoint], None],
        send_again: Callable[[Iterable[Publish]], None],
    ) -> None:
        self._goes_elsewhere, self._on_silent, self._send_again = goes_elsewhere, on_silent, send_again
        #: The endpoints that are left out where another will do.
        self.shunned = Shunned()
        self.nodes: dict[Endpoint, Node] = {}
        #: Those whose handshake is done, in a list for round robin.
        self.connected: list[Node] = []
        #: Whether any handshake was ever done: these settings work.
        self.proven = False
        #: Publishes that any may take, in their order, until one can; always the same queue.
        self.waiting: deque[Publish] = deque()
        self._held: Publish | None = None
        self._turn = 0

    # -- publishes

    def at_turn(self, turn: int) -> Node | None:
        """Return the next one that is not silent, in turn."""
        connected = self.connected
        if not connected:
            return None
        node = connected[turn % len(connected)]
        if node.silent:
            answering = [each for each in connected if not each.silent]
            return answering[turn % len(answering)] if answering else None
        return node

    def send(self, publish: Publish) -> None:
        """Send it to the one whose turn it is; or let it wait."""
        if not self._send_now(publish):
            self.waiting.append(publish)

    def _send_now(self, publish: Publish) -> bool:
        while True:
            self._turn = turn = self._turn + 1
            node = self.at_turn(turn)
            if node is None:
                return self._send_anyhow(publish)
            if node.connection.send_publish(publish):
                return True
            if node.full and all(each.full or each.silent for each in self.connected):
                return False

    def _send_anyhow(self, publish: Publish) -> bool:
        """Send it to a silent one, which is better than nothing if no other may come."""
        if len([each for each in self.connected if each.silent]) < len(self.nodes):
            return False
        silent = self._least_bad()
        return silent is not None and silent.send(publish)

    def _least_bad(self) -> Node | None:
        """Return the silent one that owes the least, of those that take something; None where there is none."""
        silent = [each for each in self.connected if each.silent and not each.full]
        return min(silent, key=lambda node: len(node.unanswered), default=None)

    def send_waiting(self) -> None:
        """Send what waits."""
        waiting = self.waiting
        while waiting and (waiting[0].done() or self._send_now(waiting[0])):
            waiting.popleft()

    def forget_done(self) -> None:
        """Drop what has an outcome."""
        waiting = [publish for publish in self.waiting if not publish.done()]
        self.waiting.clear()
        self.waiting.extend(waiting)

    # -- who comes and goes

    def join(self, node: Node) -> None:
        """Its handshake is done."""
        self.proven, node.silent = True, False
        self.connected.append(node)
        self.shunned.discard(node.endpoint)

    def part(self, node: Node) -> bool:
        """Its connection is gone; return whether it had one."""
        if node not in self.connected:
            return False
        self.connected.remove(node)
        return True

    def failed(self, node: Node, error: NSQError) -> None:
        """It cannot be reached for now."""
        self.shunned.add(node.endpoint, whole_node=isinstance(error, NSQConnectionError))

    def hopeless(self) -> NSQError | None:
        """Return the error if no nsqd can be reached for reasons that waiting does not mend.

        Settings that worked once are right: later faults may pass, and the deadlines limit the wait.
        """
        errors = [node.error for node in self.nodes.values()]
        return None if self.proven else hopeless(errors)

    # -- who is silent

    def any_answers(self) -> bool:
        """Whether one is connected and not known to be silent."""
        return any(not node.silent for node in self.connected)

    def look_again(self) -> None:
        """Mark as silent each that has the same oldest unanswered publish as last time; called about once a second."""
        for node in list(self.nodes.values()):
            owed = node.oldest()
            if owed is not None and owed is node.seen:
                self._leave_out(node)
            node.seen = owed
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
        for node in list(self.connected):
            owed = node.oldest()
            if owed is not None and owed.done() and not node.silent:
                self._leave_out(node)

    def _leave_out(self, node: Node) -> None:
        """It is silent until it answers; what may go elsewhere does."""
        node.silent = True
        self.shunned.add(node.endpoint, whole_node=True)
        self._on_silent(node.endpoint)
        self._relieve(node)

    def answered(self, node: Node, in_time: bool) -> bool:
        """A silent one has answered; return whether it is back: it answered in time, or owes nothing more."""
        back = node in self.connected and (in_time or not node.unanswered)
        if back:
            node.silent = False
            self.shunned.discard(node.endpoint)
        return back

    def _relieve(self, node: Node) -> None:
        self._send_again(node.take_movable(lambda each: self._goes_elsewhere(each, node.endpoint)))
