"""Faults on command: a broker that is slow, cuts connections, lies or says nothing, for tests of clients.

``node.faults`` (``broker.faults`` is the first node's) is the interface; :class:`Script` is its other half: it decides,
in the broker's thread, and the sessions carry out what it says.  A fault stays until :meth:`Faults.clear`, or, where it
takes ``times``, until it has struck that often.  Faults also apply to connections that are open already.
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

    def strikes(self, verb: bytes) -> bool:
        """Whether it is for *verb*."""
        return self.verb in (verb, b"*") and (self.times is None or self.times > 0)


class Script:
    """The faults of one nsqd.  Belongs to the broker's thread."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """No faults."""
        self.active = False
        self.rules: list[Rule] = []
        self.heartbeats = True
        self.black_hole = False
        self.refuse_connections = False
        self.refused_features: frozenset[str] = frozenset()
        self.plain_identify = False
        self.latency = 0.0
        self.piece = 0
        self.cut_after: int | None = None
        self.cut_manner: Manner = "close"
        self.cuts_left: int | None = None

    def rule_for(self, verb: bytes) -> Rule | None:
        """Return what to do for a command instead of carrying it out, and count that."""
        rule = next((rule for rule in self.rules if rule.strikes(verb)), None)
        if rule is not None and rule.times is not None:
            rule.times -= 1
        return rule

    def cut_at(self, sent: int, size: int) -> int | None:
        """Return how many of *size* bytes are left before the connection is to be cut, and count that; None: all."""
        if self.cut_after is None or self.cuts_left == 0 or size < self.cut_after - sent:
            return None
        if self.cuts_left is not None:
            self.cuts_left -= 1
        return max(self.cut_after - sent, 0)

    def pieces(self, data: bytes) -> Iterator[tuple[float, bytes]]:
        """Yield (seconds from now, piece) for each piece of *data*."""
        step = self.piece or max(len(data), 1)
        for count, start in enumerate(range(0, len(data), step)):
            yield self.latency + count * _BETWEEN_PIECES, data[start : start + step]


class Faults:
    """Makes one nsqd misbehave.  Any thread may call; each method returns when the fault is in place."""

    def __init__(
        self, call: Callable[[Callable[[], Any]], Any], script: Script, send_to_all: Callable[[bytes], None]
    ) -> None:
        self._call, self._script, self._send_to_all = call, script, send_to_all

    def _set(self, **values: Any) -> None:
        def change() -> None:
            for name, value in values.items():
                setattr(self._script, name, value)
            self._script.active = True

        self._call(change)

    def _rule(self, verb: str, times: int | None, **values: Any) -> None:
        def add() -> None:
            self._script.rules.append(Rule(verb.encode("ascii"), times, **values))
            self._script.active = True

        self._call(add)

    # -- commands ---------------------------------------------------------------------------------------------------

    def answer(self, verb: str, reply: bytes, *, error: bool = True, close: bool = True, times: int | None = 1) -> None:
        """Answer *verb* ("PUB"; "*": any) with *reply*, do nothing else; *error*: in an error frame; then *close*."""
        self._rule(verb, times, reply=(1 if error else 0, reply), end="close" if error and close else None)

    def answer_frame(self, verb: str, kind: int, data: bytes, *, times: int | None = 1) -> None:
        """Answer *verb* with a frame of any type, known or not."""
        self._rule(verb, times, reply=(kind, data))

    def ignore(self, verb: str, *, times: int | None = 1) -> None:
        """Neither carry out *verb* nor answer it."""
        self._rule(verb, times)

    def lose_answer(self, verb: str, *, times: int | None = 1) -> None:
        """Carry out *verb* and say nothing."""
        self._rule(verb, times, carry_out=True, reply=None)

    def delay(self, seconds: float, verb: str = "*", *, times: int | None = None) -> None:
        """Carry out *verb*, and the commands after it, only *seconds* after it has come.  Heartbeats go on."""
        self._rule(verb, times, delay=seconds, carry_out=True)

    def disconnect_on(
        self, verb: str, *, carry_out: bool = False, manner: Manner = "reset", times: int | None = 1
    ) -> None:
        """End the connection when *verb* comes, after carrying it out or without; it gets no answer."""
        self._rule(verb, times, carry_out=carry_out, end=manner)

    # -- connections ------------------------------------------------------------------------------------------------

    def black_hole(self) -> None:
        """Accept connections, read everything, send nothing: no answers, no heartbeats, no end."""
        self._set(black_hole=True, heartbeats=False)

    def refuse_connections(self) -> None:
        """Reset every new connection at once."""
        self._set(refuse_connections=True)

    def swallow_heartbeats(self) -> None:
        """Send no heartbeats."""
        self._set(heartbeats=False)

    def refuse_features(self, *names: str) -> None:
        """Grant none of *names* ("tls_v1", "snappy", "deflate", "sample_rate") in answers to IDENTIFY."""
        self._set(refused_features=frozenset(names))

    def plain_identify(self) -> None:
        """Answer IDENTIFY with OK and negotiate nothing, as a very old nsqd does."""
        self._set(plain_identify=True)

    # -- output -----------------------------------------------------------------------------------------------------

    def latency(self, seconds: float) -> None:
        """Hold everything that is sent back for *seconds*."""
        self._set(latency=seconds)

    def dribble(self, size: int = 1) -> None:
        """Send in pieces of *size* bytes, each about a millisecond after the last."""
        self._set(piece=size)

    def cut_after(self, size: int, *, manner: Manner = "close", times: int | None = 1) -> None:
        """End a connection once it was sent *size* bytes (counted from its start, before compression and TLS)."""
        self._set(cut_after=size, cut_manner=manner, cuts_left=times)

    def send_raw(self, data: bytes) -> None:
        """Send *data* to every client now, whatever it is."""
        self._call(lambda: self._send_to_all(data))

    def send_frame(self, kind: int, data: bytes) -> None:
        """Send a frame of any type to every client now."""
        self.send_raw(_FRAME.pack(len(data) + 4, kind) + data)

    def clear(self) -> None:
        """Behave again."""
        self._call(self._script.clear)
