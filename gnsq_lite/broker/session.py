"""The session of one client, with input, output, heartbeats and closing.

The nsqd reads bytes from a :class:`~gnsq_lite.broker.tcp.Connection` and passes them to the session.
:mod:`gnsq_lite.broker.protocol` implements the commands.  Source: nsqd/protocol_v2.go, nsqd/client_v2.go @v1.3.0.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any, ClassVar, Protocol

from gevent.ssl import SSLContext

from gnsq_lite.broker.auth import Authorizer, Grant
from gnsq_lite.broker.channels import Channel
from gnsq_lite.broker.commands import Command, CommandError, CommandReader, LineTooLong
from gnsq_lite.broker.faults import FaultState, Manner, Rule
from gnsq_lite.broker.identify import Profile
from gnsq_lite.broker.messages import StoredMessage, Subscriber
from gnsq_lite.broker.options import BrokerOptions
from gnsq_lite.broker.tcp import Connection
from gnsq_lite.broker.topics import Topics

RESPONSE, ERROR, MESSAGE = 0, 1, 2
INIT, SUBSCRIBED, CLOSING = 0, 3, 4  # nsqd/client_v2.go:21 @v1.3.0; /stats shows these numbers

_FRAME = Struct(">ii")
_MESSAGE_HEAD = Struct(">iiqH16s")

#: If more bytes than this are unsent, the client receives no further messages, and its commands wait.
HIGH_WATER = 1 << 20


class Timer(Protocol):
    """A running timer."""

    def stop(self) -> None:
        """Stop the timer.  A second call has no effect."""


class Server(Protocol):
    """Interface through which sessions use their nsqd."""

    options: BrokerOptions
    topics: Topics
    authorizer: Authorizer | None
    faults: FaultState
    tls_context: SSLContext | None

    def flush_soon(self, session: Session) -> None:
        """Flush the session at the end of this loop iteration."""

    def after(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call *callback* once, *seconds* from now."""

    def every(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call *callback* every *seconds* seconds."""

    def sleep(self, seconds: float) -> None:
        """Block the calling session's greenlet for *seconds*."""

    def remove_session(self, session: Session) -> None:
        """Remove a closed session."""


class Session(Subscriber):
    """One connected client.  A subclass implements the commands."""

    verbs: ClassVar[dict[bytes, Callable[[Any, Command], bytes | None]]] = {}

    def _begin(self, words: list[bytes]) -> None:
        """Check a command before reading its body.  Raises CommandError to refuse the command."""

    def __init__(self, server: Server, link: Connection, client_id: int, connected_at: float) -> None:
        options = server.options
        super().__init__(client_id, options.msg_timeout)
        self.server, self.link, self.connected_at = server, link, connected_at
        self.state = INIT
        self.channel: Channel | None = None
        self.closed = False
        self.remote_host = link.remote_address.rpartition(":")[0].strip("[]")
        self.profile = Profile(options, self.remote_host)
        self._is_identified = False
        self.tls = False
        self.compression = ""
        self.secret = ""
        self.grant: Grant | None = None
        self.pub_counts: dict[str, int] = {}
        self._reader = CommandReader(options.max_msg_size, options.max_body_size, self._begin)
        self._out: list[bytes] = []
        self._out_size = 0
        self._flush_scheduled = False
        self._flush_timer: Timer | None = None
        self._ticker_started_at = self._last_command_at = server.topics.now()
        self._heartbeat: Timer | None = None
        self._deadline: Timer | None = None
        self._sent = 0
        self._busy = False  # whether receive() is running
        self._wait_for_client()

    # -- input ------------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Execute the commands in the received *data*.  The call may block the greenlet."""
        self._reader.feed(data)
        self._busy = True
        try:
            self._execute_all()
        finally:
            self._busy = False

    def _execute_all(self) -> None:
        while not self.closed:
            if self._out_size > HIGH_WATER:
                self.flush()
                if self.link.unsent() > HIGH_WATER:
                    self.link.wait_until_drained()  # until the client reads its replies
            try:
                command = self._reader.next()
                if command is None:
                    return
                self._last_command_at = self.server.topics.now()
                answer = self._execute(command)
            except CommandError as error:
                self._answer_error(error)
                continue
            except LineTooLong:
                self.close()
                return
            if answer is not None:
                self.respond(RESPONSE, answer)

    def _answer_error(self, error: CommandError) -> None:
        self.respond(ERROR, error.frame_body)
        if error.fatal:
            self.close()

    def receive_end(self) -> None:
        """Close the session after the client closed its side of the connection."""
        if self.closed:
            return
        try:
            self._reader.at_end()
        except CommandError as error:
            self._answer_error(error)
        self.close()

    def _execute(self, command: Command) -> bytes | None:
        faults = self.server.faults
        rule = faults.rule_for(command.words[0]) if faults.active else None
        if rule is None:
            return self.carry_out(command)
        if rule.delay:
            self.server.sleep(rule.delay)
        if not self.closed:
            self._apply_fault(command, rule)
        return None

    def _apply_fault(self, command: Command, rule: Rule) -> None:
        answer = self.carry_out(command) if rule.carry_out else None
        if rule.reply is not None:
            self.respond(*rule.reply)
        elif answer is not None and rule.delay and rule.end is None:
            self.respond(RESPONSE, answer)
        if rule.end == "close" and rule.reply is not None:
            self.close()
        elif rule.end is not None:
            self._cut(rule.end)

    def carry_out(self, command: Command) -> bytes | None:
        """Execute *command* and return its reply.  Raises CommandError."""
        verb = command.words[0]
        handler = self.verbs.get(verb)
        if verb != b"IDENTIFY":
            self._enforce_tls(verb)
        if handler is None:
            raise CommandError("E_INVALID", b"invalid command " + verb)
        return handler(self, command)

    def _enforce_tls(self, verb: bytes) -> None:
        if self.server.options.tls_required and not self.tls:
            raise CommandError("E_INVALID", b"cannot " + verb + b" in current state (TLS required)")

    # -- output -----------------------------------------------------------------------------------------------------

    def respond(self, kind: int, data: bytes) -> None:
        """Buffer a response or an error frame, and flush the buffer in this loop iteration, as nsqd does."""
        self._out.append(_FRAME.pack(len(data) + 4, kind) + data)
        self._out_size += len(data) + 8
        self._flush_soon()

    def deliver(self, messages: list[StoredMessage]) -> None:
        """Buffer messages.  As in nsqd, flush at a full buffer, at as many messages in flight as RDY, or by a timer."""
        faults = self.server.faults
        sent = self.message_count - len(messages)
        left = faults.messages_until_cut(sent, len(messages)) if faults.active else None
        if left is not None:
            messages = messages[:left]
        out, pack, size = self._out, _MESSAGE_HEAD.pack, 0
        for message in messages:
            body = message.body
            length = len(body)
            out.append(pack(length + 30, MESSAGE, message.timestamp_ns, message.attempts, message.id) + body)
            size += length + 34
        self._out_size += size
        if left is not None:
            self.flush()
            self._cut(faults.cut_manner)
        elif self._out_size >= self.profile.output_buffer_size or self.in_flight_count >= self.ready_count:
            self._flush_soon()
        elif self._flush_timer is None and self.profile.output_buffer_timeout > 0:
            # nsqd's ticker starts at IDENTIFY and ticks whether or not there are messages
            timeout = self.profile.output_buffer_timeout
            passed = (self.server.topics.now() - self._ticker_started_at) % timeout
            self._flush_timer = self.server.after(timeout - passed, self._flush_now)

    def _flush_soon(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self.server.flush_soon(self)

    def _flush_now(self) -> None:
        self._flush_timer = None
        self.flush()

    def flush(self) -> None:
        """Send the buffered bytes."""
        self._flush_scheduled = False
        if self._flush_timer is not None:
            self._flush_timer.stop()
            self._flush_timer = None
        if self._out:
            data = b"".join(self._out)
            self._out.clear()
            self._out_size = 0
            self._send(data)
            if self.channel is not None and not self.closed:
                self.channel.wake()

    def _send(self, data: bytes) -> None:
        """Send *data*.  Active faults may delay, split, cut or drop *data*."""
        faults = self.server.faults
        before = self._sent
        self._sent += len(data)
        if not faults.active:
            self.link.send(data)
        elif not faults.silent:
            left = faults.bytes_until_cut(before, len(data))
            for delay, piece in faults.pieces(data[:left]):
                self.link.send(piece, delay)
            if left is not None:
                self._cut(faults.cut_manner)

    def sent(self) -> None:
        """Resume delivery after the connection has sent all its bytes."""
        if self.channel is not None and not self.closed:
            self.channel.wake()

    def room(self) -> int:
        """Return how many messages the client may receive now."""
        if self.state != SUBSCRIBED or self._out_size > HIGH_WATER or self.link.unsent() > HIGH_WATER:
            return 0
        return self.ready_count - self.in_flight_count

    # -- time -------------------------------------------------------------------------------------------------------

    def _wait_for_client(self) -> None:
        """Start the heartbeats, and a timer that closes the session after two heartbeat intervals without a command."""
        for timer in (self._heartbeat, self._deadline):
            if timer is not None:
                timer.stop()
        self._heartbeat = self._deadline = None
        interval = self.profile.heartbeat_interval
        if interval > 0:
            self._heartbeat = self.server.every(interval, self._send_heartbeat)
            self._deadline = self.server.after(2 * interval, self._check_deadline)

    def _send_heartbeat(self) -> None:
        if self.server.faults.heartbeats:
            self.respond(RESPONSE, b"_heartbeat_")

    def _check_deadline(self) -> None:
        now = self.server.topics.now()
        if self._busy:
            self._last_command_at = now  # a client that waits for its reply is not silent
        left = self._last_command_at + 2 * self.profile.heartbeat_interval - now
        if left > 0.001:
            self._deadline = self.server.after(left, self._check_deadline)
        else:
            self.close()

    # -- the end ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Send the buffered bytes, leave the channel, and close the connection."""
        if self.closed:
            return
        self.flush()
        self.lost()
        self.link.close()

    def disconnect(self) -> None:
        """Close the session, because the channel is being deleted or the nsqd stops."""
        self.close()

    def _cut(self, manner: Manner) -> None:
        """Drop buffered bytes and disconnect, because of a fault."""
        self._out.clear()
        self._out_size = 0
        self.lost()
        self.link.close(reset=manner == "reset")

    def lost(self) -> None:
        """Stop the timers and leave the channel, because the connection is lost or closed."""
        if self.closed:
            return
        self.closed = True
        for timer in (self._heartbeat, self._deadline, self._flush_timer):
            if timer is not None:
                timer.stop()
        if self.channel is not None:
            self.server.topics.leave(self.channel, self)
        self.server.remove_session(self)
