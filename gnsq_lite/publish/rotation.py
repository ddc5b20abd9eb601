"""Sends each publish to the next nsqd in turn that is not silent (PUB-4).

A node that leaves its oldest publish unanswered past its deadline, or for a second or two, is *silent*: until it
answers again, it gets no publish that another node can take.  Deadlines and the ticker notice that, so that a publish
need not look.
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
    """The nodes of a Writer, and the publishes that wait for any of them.  In the loop's thread.

    Args:
        goes_elsewhere: Returns whether another node, that answers as far as is known, may take a publish.
        on_silent: Called with an endpoint about once a second while it is silent.
        send_again: Sends, in order, publishes that were taken from a silent node.
    """

    def __init__(
        self,
        *,
        goes_elsewhere: Callable[[Publish, Endpoint], bool],
        on_silent: Callable[[Endpoint], None],
        send_again: Callable[[Iterable[Publish]], None],
    ) -> None:
        self._goes_elsewhere, self._on_silent, self._send_again = goes_elsewhere, on_silent, send_again
        #: The endpoints that get nothing that another one can take.
        self.shunned = Shunned()
        self.nodes: dict[Endpoint, Node] = {}
        #: The nodes whose handshake is done, for round robin.
        self.connected: list[Node] = []
        #: Whether any handshake was ever done: the settings are right.
        self.proven = False
        #: Publishes that any node may take, in order, while none does.
        self.waiting: deque[Publish] = deque()
        self._held: Publish | None = None
        self._turn = 0

    # -- publishes

    def at_turn(self, turn: int) -> Node | None:
        """Return the next node in turn that is not silent; None without one."""
        connected = self.connected
        if not connected:
            return None
        node = connected[turn % len(connected)]
        if node.silent:
            answering = [each for each in connected if not each.silent]
            return answering[turn % len(answering)] if answering else None
        return node

    def send(self, publish: Publish) -> None:
        """Send a publish to the node whose turn it is, or keep it until a node takes it."""
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
        """Send a publish to a silent node, if all nodes are silent."""
        if len([each for each in self.connected if each.silent]) < len(self.nodes):
            return False
        silent = self._least_bad()
        return silent is not None and silent.send(publish)

    def _least_bad(self) -> Node | None:
        """Return the silent node with the fewest unanswered publishes that takes bytes; None without one."""
        silent = [each for each in self.connected if each.silent and not each.full]
        return min(silent, key=lambda node: len(node.unanswered), default=None)

    def send_waiting(self) -> None:
        """Send the publishes that wait, in order, as long as a node takes them."""
        waiting = self.waiting
        while waiting and (waiting[0].done() or self._send_now(waiting[0])):
            waiting.popleft()

    def forget_done(self) -> None:
        """Drop waiting publishes that have their outcome."""
        waiting = [publish for publish in self.waiting if not publish.done()]
        self.waiting.clear()
        self.waiting.extend(waiting)

    # -- connections

    def join(self, node: Node) -> None:
        """Give turns to a node whose handshake is done."""
        self.proven, node.silent = True, False
        self.connected.append(node)
        self.shunned.discard(node.endpoint)

    def part(self, node: Node) -> bool:
        """Give no turns to a node whose connection is gone; return whether it had turns."""
        if node not in self.connected:
            return False
        self.connected.remove(node)
        return True

    def failed(self, node: Node, error: NSQError) -> None:
        """Avoid a node that was lost or cannot be reached."""
        self.shunned.add(node.endpoint, whole_node=isinstance(error, NSQConnectionError))

    def hopeless(self) -> NSQError | None:
        """Return the error if no node can be reached, for reasons that waiting does not change.

        Settings that worked once are right: later faults may pass, and the deadlines limit the wait.
        """
        errors = [node.error for node in self.nodes.values()]
        return None if self.proven else hopeless(errors)

    # -- silent nodes

    def any_answers(self) -> bool:
        """Return whether a node is connected and not silent."""
        return any(not node.silent for node in self.connected)

    def look_again(self) -> None:
        """Mark as silent each node with the same oldest publish as at the last call; called about once a second."""
        for node in list(self.nodes.values()):
            owed = node.oldest()
            if owed is not None and owed is node.seen:
                self._mark_silent(node)
            node.seen = owed
        held = self.waiting[0] if self.waiting else None
        if held is not None and held is self._held and not self.any_answers():
            self._release()
        self._held = held

    def _release(self) -> None:
        """Send the publishes that wait to silent nodes: for a second no other node took them."""
        waiting = self.waiting
        while waiting and (silent := self._least_bad()) is not None:
            if waiting[0].done() or silent.send(waiting[0]):
                waiting.popleft()

    def overdue(self) -> None:
        """Mark as silent each node whose oldest publish has expired; called when deadlines have passed."""
        for node in list(self.connected):
            owed = node.oldest()
            if owed is not None and owed.done() and not node.silent:
                self._mark_silent(node)

    def _mark_silent(self, node: Node) -> None:
        """Mark a node as silent until it answers, and send elsewhere what may be sent again."""
        node.silent = True
        self.shunned.add(node.endpoint, whole_node=True)
        self._on_silent(node.endpoint)
        self._send_again(node.take_movable(lambda each: self._goes_elsewhere(each, node.endpoint)))

    def answered(self, node: Node, in_time: bool) -> bool:
        """Return whether a silent node that has answered is not silent any more: in time, or to its last publish."""
        back = node in self.connected and (in_time or not node.unanswered)
        if back:
            node.silent = False
            self.shunned.discard(node.endpoint)
        return back
