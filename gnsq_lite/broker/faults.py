"""Faults of one nsqd: it refuses commands, cuts connections, answers late or not at all, for tests of clients.

``node.faults`` (``broker.faults`` is the first node's) is the interface.  :class:`FaultState` decides in the broker's
thread, and the sessions act on it.  A fault stays until :meth:`Faults.clear` or, where it takes ``times``, until it
was applied that often.  Faults also apply to connections that are open already.
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
    """What to do when a command comes."""

    verb: bytes
    times: int | None = 1
    delay: float = 0.0
    carry_out: bool = False
    reply: tuple[int, bytes] | None = None
    end: Manner | None = None

    def applies_to(self, verb: bytes) -> bool:
        """Whether it is for *verb*."""
        return self.verb in (verb, b"*") and (self.times is None or self.times > 0)


class FaultState:
    """The faults of one nsqd.  Belongs to the broker's thread."""

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
        """Return what to do for a command instead of carrying it out, and count that."""
        rule = next((rule for rule in self.rules if rule.applies_to(verb)), None)
        if rule is not None and rule.times is not None:
            rule.times -= 1
        return rule

    def bytes_until_cut(self, sent: int, size: int) -> int | None:
        """Return how many of *size* bytes to send before the connection is cut, and count that; None: all, no cut."""
        return self._until_cut(self.cut_after_bytes, sent, size)

    def messages_until_cut(self, sent: int, count: int) -> int | None:
        """Return the same for *count* messages."""
        return self._until_cut(self.cut_after_messages, sent, count)

    def _until_cut(self, limit: int | None, sent: int, more: int) -> int | None:
        if limit is None or self.cuts_left == 0 or sent + more < limit:
            return None
        if self.cuts_left is not None:
            self.cuts_left -= 1
        return max(limit - sent, 0)

    def pieces(self, data: bytes) -> Iterator[tuple[float, bytes]]:
        """Yield (seconds from now, piece) for each piece of *data*."""
        step = self.piece or max(len(data), 1)
        for count, start in enumerate(range(0, len(data), step)):
            yield self.output_delay + count * _BETWEEN_PIECES, data[start : start + step]


class Faults:
    """Makes one nsqd misbehave.  Any thread may call; each method returns when the fault is in place.

    *verb* is the name of a command, such as "PUB", or "*" for any.  *times* is how often the fault applies; None: until
    :meth:`clear`.  *manner* is how a connection ends: "close", or "reset" (RST) as from a killed process.
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
        """Answer *verb* with nsqd's error, ``E_PUB_FAILED PUB failed`` and *text* for PUB, and do nothing else.

        The connection stays open after a refused FIN, REQ or TOUCH, and closes after another one, as nsqd's does.
        """
        reply = f"E_{verb}_FAILED {verb} failed {text}".encode()
        self.answer(verb, reply, close=verb not in ("FIN", "REQ", "TOUCH"), times=times)

    def answer(self, verb: str, reply: bytes, *, error: bool = True, close: bool = True, times: int | None = 1) -> None:
        """Answer *verb* with *reply* and do nothing else; *error*: in an error frame, after which *close* closes."""
        self._rule(verb, times, reply=(1 if error else 0, reply), end="close" if error and close else None)

    def answer_frame(self, verb: str, kind: int, data: bytes, *, times: int | None = 1) -> None:
        """Answer *verb* with a frame of any type, known or not."""
        self._rule(verb, times, reply=(kind, data))

    def ignore(self, verb: str, *, times: int | None = 1) -> None:
        """Neither carry out *verb* nor answer it."""
        self._rule(verb, times)

    def drop_answer(self, verb: str, *, times: int | None = 1) -> None:
        """Carry out *verb* without answering it."""
        self._rule(verb, times, carry_out=True, reply=None)

    def delay(self, seconds: float, verb: str = "*", *, times: int | None = None) -> None:
        """Carry out and answer *verb*, and the commands after it, *seconds* late.  Heartbeats continue."""
        self._rule(verb, times, delay=seconds, carry_out=True)

    def disconnect_on(
        self, verb: str, *, carry_out: bool = False, manner: Manner = "reset", times: int | None = 1
    ) -> None:
        """End the connection when *verb* comes, without an answer; *carry_out*: after carrying it out."""
        self._rule(verb, times, carry_out=carry_out, end=manner)

    # -- connections ------------------------------------------------------------------------------------------------

    def refuse_connections(self) -> None:
        """Reset every new connection at once."""
        self._set(refuse_connections=True)

    def cut_after_messages(self, count: int, *, manner: Manner = "close", times: int | None = 1) -> None:
        """End a connection when it was sent *count* messages."""
        self._set(cut_after_messages=count, cut_manner=manner, cuts_left=times)

    def cut_after_bytes(self, size: int, *, manner: Manner = "close", times: int | None = 1) -> None:
        """End a connection when it was sent *size* bytes, counted before compression and TLS."""
        self._set(cut_after_bytes=size, cut_manner=manner, cuts_left=times)

    def go_silent(self) -> None:
        """Accept connections and carry out commands but send nothing: no answers, messages or heartbeats."""
        self._set(silent=True, heartbeats=False)

    def stop_heartbeats(self) -> None:
        """Send no heartbeats."""
        self._set(heartbeats=False)

    def refuse_features(self, *names: str) -> None:
        """Grant none of *names* ("tls_v1", "snappy", "deflate", "sample_rate") in answers to IDENTIFY."""
        self._set(refused_features=frozenset(names))

    def skip_negotiation(self) -> None:
        """Answer IDENTIFY with OK and negotiate nothing, as a very old nsqd does."""
        self._set(skip_negotiation=True)

    # -- output -----------------------------------------------------------------------------------------------------

    def delay_output(self, seconds: float) -> None:
        """Send everything *seconds* late, as a slow network does."""
        self._set(output_delay=seconds)

    def send_in_pieces(self, size: int = 1) -> None:
        """Send in pieces of *size* bytes, each about a millisecond after the last."""
        self._set(piece=size)

    def send_raw(self, data: bytes) -> None:
        """Send *data* to every client now, whatever it is."""
        self._call(lambda: self._send_to_all(data))

    def send_frame(self, kind: int, data: bytes) -> None:
        """Send a frame of any type to every client now."""
        self.send_raw(_FRAME.pack(len(data) + 4, kind) + data)

    def clear(self) -> None:
        """Remove all faults."""
        self._call(self._state.clear)
