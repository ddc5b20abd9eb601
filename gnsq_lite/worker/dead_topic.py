"""Reads the dead letters that were published to a topic before the read begins, and detects their end."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from gnsq_lite.clock import SYSTEM_CLOCK, Clock
from gnsq_lite.errors import ConnectError, NSQError
from gnsq_lite.message import Message, finish_now, is_open, send_back, unless_answered
from gnsq_lite.option_fields import check_number
from gnsq_lite.reader import Reader
from gnsq_lite.recording.backlog import Backlog, BacklogCutoff
from gnsq_lite.recording.options import RecorderOptions
from gnsq_lite.recording.receiver import Receiver

#: Channel in which letters are read.
CHANNEL = "dead_letters"
#: msg_timeout in seconds: nsqd sends the letters of a killed process again after this time.
_MSG_TIMEOUT = 50.0
#: Default of connect_timeout in seconds, and maximum number of connections to each nsqd.
_CONNECT_TIMEOUT, _MOST_CONNECTIONS = 5.0, 100
#: Seconds between two checks whether letters arrived, and between two renewals of the letters in flight.
_CHECK_EVERY, _RENEW_EVERY = 0.05, 1.0
#: Seconds within which a new Reader raises RDY from 1 to its share.
_RAMP = 0.3
#: Seconds without a message after which the topic is read, and after which no message is in transit: nsqd's output
#: buffer waits 0.25 s.  Time limit in seconds for the answers of close().
_QUIET, _IN_TRANSIT, _CLOSE_TIMEOUT = 1.0, 0.3, 10.0


class TopicLetters:
    """Yields each message of the channel once, and keeps all messages in flight until :meth:`close`.

    A message in flight is not sent again, so each message is seen once although nothing is removed.  nsqd sends at most
    max_rdy_count (2,500) unanswered messages on a connection; this class opens another connection when one is full.
    Before msg_timeout it requeues (REQ) a message, and nsqd sends the message again: here, or to another reader, which
    then owns it.  A message is therefore only yielded while a third of its msg_timeout is left.

    Args:
        client: Keywords of the Reader.
    """

    def __init__(self, topic: str, client: Mapping[str, Any], clock: Clock = SYSTEM_CLOCK) -> None:
        given = {"msg_timeout": _MSG_TIMEOUT, "connect_timeout": _CONNECT_TIMEOUT, "delivery": "bulk", **client}
        self._options = RecorderOptions(
            topic=topic,
            channel=CHANNEL,
            client=given,
            max_in_flight=10_000,
            connect_timeout=check_number("connect_timeout", given["connect_timeout"], 0.01, 600.0),
            idle_timeout=_QUIET,
            on_missing_nsqd="last",
        )
        self._margin = given["msg_timeout"] / 3
        self._clock, self._receiver, self._connections = clock, Receiver(self._options, reader_class=Reader), 1
        self._arrived: deque[Message] = deque()
        self._news = threading.Event()
        self._cutoff = BacklogCutoff(int(clock.wall() * 1e9))
        #: Messages in flight by key: not yielded yet, in order of receipt; and yielded, or newer than the start.
        self._waiting: dict[str, Message] = {}
        self._held: dict[str, Message] = {}
        #: Keys of requeued messages that were not yielded, and the time until which nsqd may keep the message.
        self._awaited: dict[str, float] = {}
        self._removed: set[str] = set()
        now = clock.now()
        self._renew_at, self._add_at, self.backlog_seen = now + _RENEW_EVERY, now + _RAMP, now

    def __iter__(self) -> Iterator[tuple[str, Message]]:
        """Yield (key, message) until every nsqd was connected, and sent no letter, for a second.

        Raises ConnectError if an nsqd was unreachable for connect_timeout, after the letters of the other nsqds.
        """
        self._receiver.start(self._take)
        backlog = Backlog(self, self._options, self._clock)
        while True:
            self._news.clear()
            if self._sort():
                backlog.watch()
            found = self._next()
            if found is not None:
                key, message = found
                self._held[key] = message
                yield found
                message.body = b""  # up to 100,000 messages stay in flight
            elif not self._add_connection():
                if backlog.is_read():
                    return
                self._news.wait(_CHECK_EVERY)

    def _take(self, message: Message) -> None:
        """Queue a received message.  Runs in the I/O thread."""
        self._arrived.append(message)
        self._news.set()

    def _sort(self) -> bool:
        """Put received messages into ``_waiting`` or ``_held``.  Each second, renew held messages and return true."""
        now = self._clock.now()
        while self._arrived:
            message = self._arrived.popleft()
            key = f"{message.nsqd_address}.{message.id.decode('latin-1')}"
            is_awaited = self._awaited.pop(key, None) is not None
            if key in self._removed:  # nsqd did not get the FIN in time
                message.finish()
            elif key in self._held:
                message.body = b""
                self._held[key] = message
            elif is_awaited or self._cutoff.takes(
                message.nsqd_address, message.timestamp_ns, int(self._clock.wall() * 1e9)
            ):
                self._waiting.pop(key, None)
                self._waiting[key] = message
                self.backlog_seen = now
            else:
                self._held[key] = message
        if now < self._renew_at:
            return False
        self._renew_at = now + _RENEW_EVERY
        for message in self._held.values():
            self._renew(message)
        return True

    def _renew(self, message: Message) -> bool:
        """Requeue *message* if less than a third of its msg_timeout is left.  Return whether it is requeued or late."""
        if not is_open(message):
            return True
        if message.deadline - self._clock.now() >= self._margin:
            return False
        unless_answered(message.requeue, 0.0, False)
        return True

    def _next(self) -> tuple[str, Message] | None:
        """Remove and return the first waiting message that is not to be renewed."""
        while self._waiting:
            key = next(iter(self._waiting))
            message = self._waiting.pop(key)
            was_open = is_open(message)
            if not self._renew(message):
                return key, message
            self._awaited[key] = self._clock.now() if was_open else message.deadline
        return None

    def _add_connection(self) -> bool:
        """Open one more connection to each nsqd if the last one is full.  Return whether one was opened."""
        now = self._clock.now()
        if now < self._add_at or not self._receiver.is_starved():
            return False
        if self._connections == _MOST_CONNECTIONS:
            raise NSQError(f"{self._options.topic} has more letters than {_MOST_CONNECTIONS} connections can hold")
        self._connections += 1
        self._receiver.add(self._take)
        self.backlog_seen, self._add_at = now, now + _RAMP
        return True

    def remove(self, key: str) -> None:
        """Finish a message that was yielded."""
        message = self._held.pop(key)
        self._removed.add(key)
        if not is_open(message):  # perhaps nsqd has not got the FIN when it sends the message again
            self._awaited[key] = message.deadline + self._margin
        unless_answered(finish_now, message)  # write FIN before the caller publishes the next letter

    def close(self) -> None:
        """Requeue the messages that were not removed, and close the connections.

        All connections first stop receiving (RDY 0).  Otherwise nsqd would send a requeued message to another of them.
        """
        self._receiver.pause()
        self._news.clear()
        while (self._held or self._waiting) and self._news.wait(_IN_TRANSIT):
            self._news.clear()
        send_back([*self._held.values(), *self._waiting.values(), *self._arrived])
        self._receiver.stop(_CLOSE_TIMEOUT)

    # -- used by Backlog

    def check(self) -> None:
        """Raise the error that ended a Reader, if any."""
        self._receiver.check()

    def is_connected(self) -> bool:
        """Return whether at least one nsqd is connected."""
        return self._receiver.is_connected()

    def missing(self) -> list[str]:
        """Return the known nsqds that are not connected."""
        return self._receiver.missing()

    def holds_backlog(self) -> bool:
        """Return whether nsqd may still have requeued messages that were not yielded."""
        return any(self._clock.now() < until for until in self._awaited.values())

    def not_connected(self, seconds: float) -> ConnectError:
        """Return an error about the nsqds that were unreachable for *seconds*."""
        known = self._receiver.trouble()
        where = ", ".join(self.missing() or self._options.addresses)
        text = f"no connection within {seconds:g} s, so its letters of {self._options.topic} were not read"
        return ConnectError(where, f"{text} ({known})" if known else text)
