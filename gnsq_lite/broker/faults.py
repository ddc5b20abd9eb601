"""Faults on command: a broker that is slow, cuts connections, lies or says nothing, for tests of clients.

``node.faults`` (``broker.faults`` is the first node's) is the interface; :class:`Script` is its other half, which the
sessions consult in the broker's thread.  A fault stays until :meth:`Faults.clear`, or, where it takes ``times``, until
it has struck that often.  Faults also apply to connections that are open already.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from gnsq_lite.broker.commands import Command
    from gnsq_lite.broker.nsqd import Nsqd
    from gnsq_lite.broker.session import Session

_FRAME = Struct(">ii")

Manner = Literal["close", "reset"]


@dataclass
class _Rule:
    """What to do when a command comes."""

    verb: bytes
    times: int | None = 1
    delay: float = 0.0
    carry_out: bool = False
    reply: tuple[int, bytes] | None = None
    end: Manner | None = None

    def strikes(self, verb: bytes) -> bool:
        return self.verb in (verb, b"*") and (self.times is None or self.times > 0)


class Script:
    """The faults of one nsqd, as its sessions see them.  Belongs to the broker's thread."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """No faults."""
        self.active = False
        self.rules: list[_Rule] = []
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

    # -- commands ---------------------------------------------------------------------------------------------------

    def intercept(self, session: Session, command: Command) -> bool:
        """Act on *command* instead of its session, if a fault says so."""
        verb = command.words[0]
        rule = next((rule for rule in self.rules if rule.strikes(verb)), None)
        if rule is None:
            return False
        if rule.times is not None:
            rule.times -= 1
        if rule.delay:
            session.pause_commands(rule.delay, lambda: self._apply(session, command, rule))
        else:
            self._apply(session, command, rule)
        return True

    @staticmethod
    def _apply(session: Session, command: Command, rule: _Rule) -> None:
        answer = session.carry_out(command) if rule.carry_out else None
        if rule.reply is not None:
            session.respond(*rule.reply)
        elif answer is not None and rule.delay and rule.end is None:
            session.respond(0, answer)
        if rule.end == "close" and rule.reply is not None:
            session.close()
        elif rule.end is not None:
            session.cut(rule.end)

    # -- output -----------------------------------------------------------------------------------------------------

    def send(self, session: Session, data: bytes) -> None:
        """Send *data*, or what the faults leave of it."""
        if self.black_hole:
            return
        if self.cut_after is not None and self.cuts_left != 0:
            left = self.cut_after - session.bytes_sent
            if len(data) >= left:
                session.link.send(data[: max(left, 0)])
                if self.cuts_left is not None:
                    self.cuts_left -= 1
                session.bytes_sent += len(data)
                session.cut(self.cut_manner)
                return
        session.bytes_sent += len(data)
        if self.latency or self.piece or session.outbox:
            self._send_later(session, data)
        else:
            session.link.send(data)

    def _send_later(self, session: Session, data: bytes) -> None:
        step = self.piece or len(data)
        now = session.server.topics.now()
        at = now + self.latency
        idle = not session.outbox
        for start in range(0, len(data), step):
            session.outbox.append((at, data[start : start + step]))
            if self.piece:
                at += 0.001
        if idle:
            self._next_piece(session)

    def _next_piece(self, session: Session) -> None:
        outbox: deque[tuple[float, bytes]] = session.outbox
        now = session.server.topics.now()
        while outbox and outbox[0][0] <= now:
            session.link.send(outbox.popleft()[1])
            if self.piece:
                break
        if outbox:
            session.server.after(max(outbox[0][0] - now, 0.0), lambda: self._next_piece(session))
        elif session.closed:
            session.link.close()


class Faults:
    """Makes one nsqd misbehave.  Any thread may call; each method returns when the fault is in place."""

    def __init__(self, call: Callable[[Callable[[], Any]], Any], nsqd: Nsqd) -> None:
        self._call, self._nsqd = call, nsqd

    def _set(self, **values: Any) -> None:
        def change() -> None:
            script = self._nsqd.script
            for name, value in values.items():
                setattr(script, name, value)
            script.active = True

        self._call(change)

    def _rule(self, verb: str, times: int | None, **values: Any) -> None:
        def add() -> None:
            self._nsqd.script.rules.append(_Rule(verb.encode("ascii"), times, **values))
            self._nsqd.script.active = True

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

        def send() -> None:
            for session in self._nsqd.sessions():
                session.flush()
                session.link.send(data)

        self._call(send)

    def send_frame(self, kind: int, data: bytes) -> None:
        """Send a frame of any type to every client now."""
        self.send_raw(_FRAME.pack(len(data) + 4, kind) + data)

    def clear(self) -> None:
        """Behave again."""
        self._call(self._nsqd.script.clear)
