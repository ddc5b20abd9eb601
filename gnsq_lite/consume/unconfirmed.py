"""Remembers the message of an ordered partition that was finished last, over reconnects (MSG-1, YZ-6).

nsqd does not confirm a FIN.  While the leader of a partition cannot write, nsqd refuses each FIN and closes the
connection.  The next connection then delivers the message again that a handler has finished.
"""

from __future__ import annotations

from gnsq_lite.clock import Clock
from gnsq_lite.errors import NotWritableError, NSQError
from gnsq_lite.message import Message

#: Seconds after which a FIN counts as executed, and a reconnection as complete, if the connection is still open.
_CONFIRMED_AFTER = 10.0
#: The same for the FIN of a connection that ends with NOT_WRITABLE: nsqd may wait 12 s for a replica before it refuses.
_REFUSED_AFTER = 30.0
#: Seconds for which the message is remembered after the end of its connection.
_REMEMBERED = 300.0


class Unconfirmed:
    """The message of one partition that was finished shortly before its connection ended, or no message.

    nsqd delivers an unfinished message first after a reconnection.  If another message comes first, or if a connection
    has been open for a while, the message comes again only because somebody has moved the channel back, and a handler
    must get it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._finished: tuple[Message, float] | None = None
        #: Id (with the trace id), timestamp and body of the message, and the time at which it is forgotten.
        self._lost: tuple[tuple[bytes, int, bytes], float] | None = None

    def finished(self, message: Message) -> None:
        """Note the FIN of *message*."""
        self._finished = message, self._clock.now()

    def ended(self, reason: NSQError) -> None:
        """Note that the connection has ended with *reason*."""
        last, self._finished, now = self._finished, None, self._clock.now()
        longest = _REFUSED_AFTER if isinstance(reason, NotWritableError) else _CONFIRMED_AFTER
        if last is not None and now - last[1] <= longest:
            self._lost = _facts(last[0]), now + _REMEMBERED

    def is_again(self, message: Message, opened_at: float) -> bool:
        """Return whether *message*, the next one of a connection opened at *opened_at*, was finished before."""
        lost = self._lost
        if lost is None:
            return False
        now = self._clock.now()
        if now - opened_at > _CONFIRMED_AFTER or now > lost[1] or lost[0] != _facts(message):
            self._lost = None
        return self._lost is not None


def _facts(message: Message) -> tuple[bytes, int, bytes]:
    return message.id, message.timestamp_ns, message.raw_body
