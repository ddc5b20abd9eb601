"""Faults for tests of clients.  An nsqd refuses commands, cuts connections, replies late, or sends no replies.

Tests use ``node.faults``.  ``broker.faults`` is ``node.faults`` of the first node.  Sessions look up the active faults
in :class:`FaultState` and apply them.  A fault ends after ``times`` uses (if given), or with :meth:`Faults.clear`.
Faults apply to open and to new connections.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Any, Literal

_FRAME = Struct(">ii")
_BETWEEN_PIECES = 0.001

Manner = Literal["close", "reset"]


@dataclass
class Rule:
    """Fault that applies to the command ``verb``, or to every command if ``verb`` is "*"."""

    verb: bytes
    times: int | None = 1
    delay: float = 0.0
    carry_out: bool = False
    reply: tuple[int, bytes] | None = None
    end: Manner | None = None

    def applies_to(self, verb: bytes) -> bool:
        """Whether the rule applies to *verb*."""
        return self.verb in (verb, b"*") and (self.times is None or self.times > 0)


class FaultState:
    """Active faults of one nsqd.  Call all methods in the broker's thread."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Remove all faults."""
        self.active = False
        self.rules: list[Rule] = []
        self.heartbeats = True
        self.silent = False
        self.refuse_connections = False
        self.refused_features: frozenset[str] = frozenset()
        self.skip_negotiation = False
        self.output_delay = 0.0
        self.piece = 0
        self.cut_after_bytes: int | None = None
        self.cut_after_messages: int | None = None
        self.cut_manner: Manner = "close"
        self.cuts_left: int | None = None

    def rule_for(self, verb: bytes) -> Rule | None:
        """Return the rule for the command *verb* and count its use, or return None if no rule applies."""
        rule = next((rule for rule in self.rules if rule.applies_to(verb)), None)
        if rule is not None and rule.times is not None:
            rule.times -= 1
        return rule

    def bytes_until_cut(self, sent: int, size: int) -> int | None:
        """Return how many of *size* bytes to send before the cut, or None if no cut is due.  Count the cut."""
        return self._until_cut(self.cut_after_bytes, sent, size)

    def messages_until_cut(self, sent: int, count: int) -> int | None:
        """Return how many of *count* messages to send before the cut, or None if no cut is due.  Count the cut."""
        return self._until_cut(self.cut_after_messages, sent, count)

    def _until_cut(self, limit: int | None, sent: int, more: int) -> int | None:
        if limit is None or self.cuts_left == 0 or sent + more < limit:
            return None
        if self.cuts_left is not None:
            self.cuts_left -= 1
        return max(limit - sent, 0)

    def pieces(self, data: bytes) -> Iterator[tuple[float, bytes]]:
        """Split *data*.  For each piece, yield the delay in seconds from now, and the piece."""
        step = self.piece or max(len(data), 1)
        for count, start in enumerate(range(0, len(data), step)):
            yield self.output_delay + count * _BETWEEN_PIECES, data[start : start + step]


class Faults:
    """Makes one nsqd misbehave.  Thread-safe.  Each method returns when the fault is active.

    *verb* is the name of a command, such as "PUB", or "*" for any command.  The fault applies *times* times, or until
    :meth:`clear` if *times* is None.  With *manner* "close" the nsqd closes the connection, with "reset" it sends RST.
    """

    def __init__(
        self, call: Callable[[Callable[[], Any]], Any], state: FaultState, send_to_all: Callable[[bytes], None]
    ) -> None:
        self._call, self._state, self._send_to_all = call, state, send_to_all

    def _set(self, **values: Any) -> None:
        def change() -> None:
            for name, value in values.items():
                setattr(self._state, name, value)
            self._state.active = True

        self._call(change)

    def _rule(self, verb: str, times: int | None, **values: Any) -> None:
        def add() -> None:
            self._state.rules.append(Rule(verb.encode("ascii"), times, **values))
            self._state.active = True

        self._call(add)

    # -- commands ---------------------------------------------------------------------------------------------------

    def refuse(self, verb: str, text: str = "refused by a fault", *, times: int | None = 1) -> None:
        """Do not execute *verb*, and reply with an error in nsqd's format, such as ``E_PUB_FAILED PUB failed <text>``.

        As in nsqd, the connection stays open after FIN, REQ and TOUCH, and is closed after any other command.
        """
        reply = f"E_{verb}_FAILED {verb} failed {text}".encode()
        self.answer(verb, reply, close=verb not in ("FIN", "REQ", "TOUCH"), times=times)

    def answer(self, verb: str, reply: bytes, *, error: bool = True, close: bool = True, times: int | None = 1) -> None:
        """Do not execute *verb*, and reply with *reply*.

        If *error* is true, the reply is an error frame.  If *close* is true too, the connection is then closed.
        """
        self._rule(verb, times, reply=(1 if error else 0, reply), end="close" if error and close else None)

    def answer_frame(self, verb: str, kind: int, data: bytes, *, times: int | None = 1) -> None:
        """Do not execute *verb*, and reply with a frame of type *kind*.  The client need not know the type."""
        self._rule(verb, times, reply=(kind, data))

    def ignore(self, verb: str, *, times: int | None = 1) -> None:
        """Do not execute *verb*, and send no reply."""
        self._rule(verb, times)

    def drop_answer(self, verb: str, *, times: int | None = 1) -> None:
        """Execute *verb* without a reply."""
        self._rule(verb, times, carry_out=True, reply=None)

    def delay(self, seconds: float, verb: str = "*", *, times: int | None = None) -> None:
        """Execute *verb* *seconds* late.  The client's next commands wait meanwhile, and heartbeats continue."""
        self._rule(verb, times, delay=seconds, carry_out=True)

    def disconnect_on(
        self, verb: str, *, carry_out: bool = False, manner: Manner = "reset", times: int | None = 1
    ) -> None:
        """Disconnect without a reply when *verb* arrives.  If *carry_out* is true, execute *verb* first."""
        self._rule(verb, times, carry_out=carry_out, end=manner)

    # -- connections ------------------------------------------------------------------------------------------------

    def refuse_connections(self) -> None:
        """Reset every new connection at once."""
        self._set(refuse_connections=True)

    def cut_after_messages(self, count: int, *, manner: Manner = "close", times: int | None = 1) -> None:
        """Disconnect a client after the nsqd sent *count* messages to it."""
        self._set(cut_after_messages=count, cut_manner=manner, cuts_left=times)

    def cut_after_bytes(self, size: int, *, manner: Manner = "close", times: int | None = 1) -> None:
        """Disconnect a client after the nsqd sent *size* bytes to it, counted before compression and TLS."""
        self._set(cut_after_bytes=size, cut_manner=manner, cuts_left=times)

    def go_silent(self) -> None:
        """Accept connections and execute commands, but send no replies, messages or heartbeats."""
        self._set(silent=True, heartbeats=False)

    def stop_heartbeats(self) -> None:
        """Send no heartbeats."""
        self._set(heartbeats=False)

    def refuse_features(self, *names: str) -> None:
        """Do not grant the features *names*.  Features are "tls_v1", "snappy", "deflate" and "sample_rate"."""
        self._set(refused_features=frozenset(names))

    def skip_negotiation(self) -> None:
        """Reply OK to IDENTIFY without negotiation, as a very old nsqd does."""
        self._set(skip_negotiation=True)

    # -- output -----------------------------------------------------------------------------------------------------

    def delay_output(self, seconds: float) -> None:
        """Delay all sent bytes by *seconds*, as a slow network does."""
        self._set(output_delay=seconds)

    def send_in_pieces(self, size: int = 1) -> None:
        """Send bytes in pieces of *size* bytes, about a millisecond apart."""
        self._set(piece=size)

    def send_raw(self, data: bytes) -> None:
        """Send *data* unchanged to every client now."""
        self._call(lambda: self._send_to_all(data))

    def send_frame(self, kind: int, data: bytes) -> None:
        """Send a frame of any type to every client now."""
        self.send_raw(_FRAME.pack(len(data) + 4, kind) + data)

    def clear(self) -> None:
        """Remove all faults."""
        self._call(self._state.clear)
