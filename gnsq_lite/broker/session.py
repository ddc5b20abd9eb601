"""One client of nsqd's TCP protocol: its state, its commands, what it is sent.  No sockets and no clock of its own.

The connection gives it bytes (:meth:`Session.receive`) and takes what it wants to send through a :class:`Link`; the node
it belongs to is a :class:`Server`.  Behaviour and texts: nsqd/protocol_v2.go and nsqd/client_v2.go @v1.3.0.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from gnsq_lite.broker import gojson, identify
from gnsq_lite.broker.channels import AnswerRefused, Channel, Consumer, TooManyConsumers
from gnsq_lite.broker.commands import (
    Command,
    CommandError,
    CommandReader,
    LineTooLong,
    as_int64,
    base10,
    quoted,
)
from gnsq_lite.broker.messages import Message
from gnsq_lite.broker.topics import PutRefused, Topic, Topics, is_valid_name

if TYPE_CHECKING:
    from gnsq_lite.broker.auth import Authorizer, Grant
    from gnsq_lite.broker.options import BrokerOptions

RESPONSE, ERROR, MESSAGE = 0, 1, 2
INIT, SUBSCRIBED, CLOSING = 0, 3, 4  # nsqd/client_v2.go:21 @v1.3.0; /stats shows them

_FRAME = Struct(">ii")
_MESSAGE_HEAD = Struct(">iiqH16s")

#: Above this many unsent bytes a client gets no further messages, and its commands wait.
HIGH_WATER = 1 << 20


class Timer(Protocol):
    """Something that was started and can be stopped."""

    def stop(self) -> None:
        """Stop it; doing so again is harmless."""


class Link(Protocol):
    """The connection under a session."""

    remote_address: str
    tls_info: dict[str, Any]

    def send(self, data: bytes) -> None:
        """Send, or keep until the peer takes it."""

    def unsent(self) -> int:
        """Return how many bytes the peer has not taken yet."""

    def start_tls(self, rest: bytes, done: Callable[[str | None], None]) -> None:
        """Start TLS as a server, *rest* being what has come of it; call *done* with None, or with what went wrong."""

    def start_compression(self, kind: str, level: int) -> None:
        """From here on "snappy" or "deflate", both ways."""

    def decode(self, data: bytes) -> None:
        """Decompress *data* and hand it on as if it had just come."""

    def hold(self, held: bool) -> None:
        """Read nothing from the peer while held."""

    def close(self) -> None:
        """Close once everything is sent."""


class Server(Protocol):
    """What a session needs of its nsqd."""

    options: BrokerOptions
    topics: Topics
    authorizer: Authorizer | None

    def flush_soon(self, session: Session) -> None:
        """Call the session's flush at the end of this turn of the loop."""

    def after(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call *callback* once."""

    def every(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call *callback* again and again."""

    def spawn(self, work: Callable[[], None]) -> None:
        """Run *work*, which may wait."""

    def has_tls(self) -> bool:
        """Whether clients can ask for TLS."""

    def ended(self, session: Session) -> None:
        """The session has closed."""


class Session(Consumer):
    """One connected client."""

    verbs: ClassVar[dict[bytes, Callable[[Any, Command], bytes | None]]] = {}

    def __init__(self, server: Server, link: Link, client_id: int, connected_at: float) -> None:
        options = server.options
        super().__init__(client_id, options.msg_timeout)
        self.server, self.link, self.connected_at = server, link, connected_at
        self.state = INIT
        self.channel: Channel | None = None
        self.closed = False
        host = link.remote_address.rpartition(":")[0].strip("[]")
        self.profile = identify.Profile(options, host)
        self.tls = False
        self.compression = ""
        self.secret = ""
        self.grant: Grant | None = None
        self.pub_counts: dict[str, int] = {}
        self._reader = CommandReader(options.max_msg_size, options.max_body_size, self._begin)
        self._out: list[bytes] = []
        self._out_size = 0
        self._must_flush = False
        self._flush_scheduled = False
        self._flush_timer: Timer | None = None
        self._ticks_from = self._heard_at = server.topics.now()
        self._heartbeat: Timer | None = None
        self._deadline: Timer | None = None
        self._halted = False
        self._working = False
        self._wait_for_client()

    # -- bytes in ---------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Take bytes from the client and carry out the commands in them."""
        self._reader.feed(data)
        self._go_on()

    def _go_on(self) -> None:
        if self.server.authorizer is None:
            self.proceed()
        elif not self._working and not self._halted:
            self._working = True  # the auth server may have to be asked: in a greenlet of its own
            self.link.hold(True)
            self.server.spawn(self._work)

    def _work(self) -> None:
        try:
            self.proceed()
        finally:
            self._working = False
            if not self.closed and self.link.unsent() <= HIGH_WATER:
                self.link.hold(False)

    def proceed(self) -> None:
        """Carry out the commands that have come in whole."""
        while not self.closed and not self._halted:
            if self._out_size > HIGH_WATER:
                self.flush()
                if self.link.unsent() > HIGH_WATER:
                    self.link.hold(True)  # until it reads its answers: see sent()
                    return
            try:
                command = self._reader.next()
                if command is None:
                    return
                self._heard_at = self.server.topics.now()
                answer = self._execute(command)
            except CommandError as error:
                self.respond(ERROR, error.frame_body)
                if error.fatal:
                    self.close()
                continue
            except LineTooLong:
                self.close()
                return
            if answer is not None:
                self.respond(RESPONSE, answer)

    def receive_end(self) -> None:
        """The client has closed its side."""
        if self.closed:
            return
        try:
            self._reader.at_end()
        except CommandError as error:
            self.respond(ERROR, error.frame_body)
        self.close()

    def _execute(self, command: Command) -> bytes | None:
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

    # -- bytes out --------------------------------------------------------------------------------------------------

    def respond(self, kind: int, data: bytes) -> None:
        """Queue a frame; like nsqd, anything but a message also flushes what is buffered."""
        self._out.append(_FRAME.pack(len(data) + 4, kind) + data)
        self._out_size += len(data) + 8
        self._flush_this_turn()

    def deliver(self, messages: list[Message]) -> None:
        """Buffer message frames, and flush when nsqd would: buffer full, RDY used up, or by the timer."""
        out, pack, size = self._out, _MESSAGE_HEAD.pack, 0
        for message in messages:
            body = message.body
            length = len(body)
            out.append(pack(length + 30, MESSAGE, message.timestamp_ns, message.attempts, message.id) + body)
            size += length + 34
        self._out_size += size
        if self._out_size >= self.profile.output_buffer_size or self.in_flight_count >= self.ready_count:
            self._flush_this_turn()
        elif self._flush_timer is None and self.profile.output_buffer_timeout > 0:
            # nsqd's ticker runs freely from IDENTIFY on
            timeout = self.profile.output_buffer_timeout
            passed = (self.server.topics.now() - self._ticks_from) % timeout
            self._flush_timer = self.server.after(timeout - passed, self._flush_now)

    def _flush_this_turn(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self.server.flush_soon(self)

    def _flush_now(self) -> None:
        self._flush_timer = None
        self.flush()

    def flush(self) -> None:
        """Send what is buffered."""
        self._flush_scheduled = False
        if self._flush_timer is not None:
            self._flush_timer.stop()
            self._flush_timer = None
        if self._out:
            data = b"".join(self._out)
            self._out.clear()
            self._out_size = 0
            self.link.send(data)
            if self.channel is not None and not self.closed:
                self.channel.wake()

    def sent(self) -> None:
        """The peer has taken everything: messages and commands go on."""
        if not self._working:
            self.link.hold(False)
            self._go_on()
        if self.channel is not None and not self.closed:
            self.channel.wake()

    def room(self) -> int:
        """Return how many messages it may be sent now."""
        if self.state != SUBSCRIBED or self._out_size > HIGH_WATER or self.link.unsent() > HIGH_WATER:
            return 0
        return self.ready_count - self.in_flight_count

    # -- time -------------------------------------------------------------------------------------------------------

    def _wait_for_client(self) -> None:
        """Start heartbeats, and the deadline of two intervals for the client's next command."""
        for timer in (self._heartbeat, self._deadline):
            if timer is not None:
                timer.stop()
        self._heartbeat = self._deadline = None
        interval = self.profile.heartbeat_interval
        if interval > 0:
            self._heartbeat = self.server.every(interval, self._send_heartbeat)
            self._deadline = self.server.after(2 * interval, self._check_deadline)

    def _send_heartbeat(self) -> None:
        self.respond(RESPONSE, b"_heartbeat_")

    def _check_deadline(self) -> None:
        left = self._heard_at + 2 * self.profile.heartbeat_interval - self.server.topics.now()
        if left > 0.001:
            self._deadline = self.server.after(left, self._check_deadline)
        else:
            self.close()

    # -- the end ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Leave the channel, send what is buffered, close the connection."""
        if self.closed:
            return
        self.flush()
        self.lost()
        self.link.close()

    def disconnect(self) -> None:
        """Close: the channel is being deleted, or the node stops."""
        self.close()

    def lost(self) -> None:
        """The connection is gone."""
        if self.closed:
            return
        self.closed = True
        for timer in (self._heartbeat, self._deadline, self._flush_timer):
            if timer is not None:
                timer.stop()
        if self.channel is not None:
            self.server.topics.leave(self.channel, self)
        self.server.ended(self)

    # -- before a body is read --------------------------------------------------------------------------------------

    def _begin(self, words: list[bytes]) -> None:
        """Refuse what nsqd refuses without reading the body."""
        verb = words[0]
        if verb == b"IDENTIFY":
            if self.state != INIT:
                raise CommandError("E_INVALID", "cannot IDENTIFY in current state")
            return
        self._enforce_tls(verb)
        if verb == b"AUTH":
            if self.state != INIT:
                raise CommandError("E_INVALID", "cannot AUTH in current state")
            if len(words) != 1:
                raise CommandError("E_INVALID", "AUTH invalid number of parameters")
            return
        if len(words) < (3 if verb == b"DPUB" else 2):
            raise CommandError("E_INVALID", verb + b" insufficient number of parameters")
        if verb == b"MPUB":
            topic = self._topic_name(words, prefix="E_BAD_TOPIC ")
            self._check_auth("MPUB", topic, "")
            self.server.topics.get(topic)
        else:
            self._topic_name(words)
        if verb == b"DPUB":
            self._defer(words)

    def _topic_name(self, words: list[bytes], prefix: str = "") -> str:
        name = words[1].decode("utf-8", "surrogateescape")
        if not is_valid_name(name):
            verb = words[0].decode("ascii")
            raise CommandError("E_BAD_TOPIC", f"{prefix}{verb} topic name {quoted(words[1])} is not valid")
        return name

    def _defer(self, words: list[bytes]) -> float:
        number = base10(words[2])
        if number is None:
            raise CommandError("E_INVALID", b"DPUB could not parse timeout " + words[2])
        seconds = as_int64(as_int64(number) * 1_000_000) / 1e9
        longest = self.server.options.max_req_timeout
        if not 0 <= seconds <= longest:
            raise CommandError("E_INVALID", f"DPUB timeout {number} out of range 0-{int(longest * 1000)}")
        return seconds

    def _check_auth(self, verb: str, topic: str, channel: str) -> None:
        authorizer = self.server.authorizer
        if authorizer is not None:
            self.grant = authorizer.check(self, verb, topic, channel)

    # -- commands ---------------------------------------------------------------------------------------------------

    def _identify(self, command: Command) -> bytes | None:
        try:
            data = gojson.decode(command.body, identify.FIELDS)
        except gojson.NotDecodable:
            raise CommandError("E_BAD_BODY", "IDENTIFY failed to decode JSON body") from None
        self.profile.apply(data)
        self.msg_timeout, self.sample_rate = self.profile.msg_timeout, self.profile.sample_rate
        self._ticks_from = self._heard_at = self.server.topics.now()
        self._wait_for_client()
        if not data["feature_negotiation"]:
            return b"OK"
        answer = self.profile.negotiate(
            data, has_tls=self.server.has_tls(), auth_required=self.server.authorizer is not None
        )
        self.respond(RESPONSE, gojson.encode(answer))
        self._upgrade(answer)
        return None

    def _upgrade(self, answer: dict[str, Any]) -> None:
        def compress() -> None:
            for kind in ("snappy", "deflate"):
                if answer[kind]:
                    self.flush()
                    self.compression = kind
                    rest = self._reader.take_rest()
                    self.link.start_compression(kind, answer["deflate_level"])
                    self.respond(RESPONSE, b"OK")
                    self.flush()
                    self.link.decode(rest)
            self._halted = False

        def secured(problem: str | None) -> None:
            if self.closed:
                return
            if problem is not None:
                self.respond(ERROR, f"E_IDENTIFY_FAILED IDENTIFY failed {problem}".encode())
                self.close()
                return
            self.tls = True
            self.respond(RESPONSE, b"OK")
            compress()

        if answer["tls_v1"]:
            self.flush()
            self._halted = True
            self.link.start_tls(self._reader.take_rest(), secured)
        else:
            compress()

    def _auth(self, command: Command) -> bytes:
        if self.grant is not None and self.grant.permission_count:
            raise CommandError("E_INVALID", "AUTH already set")
        authorizer = self.server.authorizer
        if authorizer is None:
            raise CommandError("E_AUTH_DISABLED", "AUTH disabled")
        self.secret = command.body.decode("utf-8", "surrogateescape")
        self.grant = grant = authorizer.ask(self)
        if not grant.permission_count:
            raise CommandError("E_UNAUTHORIZED", "AUTH no authorizations found")
        return gojson.encode(
            {
                "identity": grant.identity,
                "identity_url": grant.identity_url,
                "permission_count": grant.permission_count,
            }
        )

    def _sub(self, command: Command) -> bytes:
        words = command.words
        if self.state != INIT:
            raise CommandError("E_INVALID", "cannot SUB in current state")
        if self.profile.heartbeat_interval <= 0:
            raise CommandError("E_INVALID", "cannot SUB with heartbeats disabled")
        if len(words) < 3:
            raise CommandError("E_INVALID", "SUB insufficient number of parameters")
        topic_name = self._topic_name(words)
        channel_name = words[2].decode("utf-8", "surrogateescape")
        if not is_valid_name(channel_name):
            raise CommandError("E_BAD_CHANNEL", f"SUB channel name {quoted(words[2])} is not valid")
        self._check_auth("SUB", topic_name, channel_name)
        topics = self.server.topics
        channel = topics.get_channel(topics.get(topic_name), channel_name)
        try:
            channel.add_client(self)
        except TooManyConsumers as error:
            raise CommandError("E_SUB_FAILED", f"SUB failed {error}") from None
        self.state = SUBSCRIBED
        self.channel = channel
        return b"OK"

    def _rdy(self, command: Command) -> None:
        if self.state == CLOSING:
            return
        if self.state != SUBSCRIBED or self.channel is None:
            raise CommandError("E_INVALID", "cannot RDY in current state")
        count = 1
        if len(command.words) > 1:
            number = base10(command.words[1])
            if number is None:
                raise CommandError("E_INVALID", b"RDY could not parse count " + command.words[1])
            count = as_int64(number)
        limit = self.server.options.max_rdy_count
        if not 0 <= count <= limit:
            raise CommandError("E_INVALID", f"RDY count {count} out of range 0-{limit}")
        self._set_ready(count)

    def _set_ready(self, count: int) -> None:
        self.ready_count = count
        if count > self.in_flight_count and self.channel is not None:
            self.channel.wake()
        elif self._out:
            self._flush_this_turn()

    def _held(self, command: Command, count: int) -> tuple[Channel, bytes]:
        words = command.words
        verb = words[0].decode("ascii")
        if self.channel is None or self.state not in (SUBSCRIBED, CLOSING):
            raise CommandError("E_INVALID", f"cannot {verb} in current state")
        if len(words) < count:
            raise CommandError("E_INVALID", f"{verb} insufficient number of params")
        if len(words[1]) != 16:
            raise CommandError("E_INVALID", "invalid message ID")
        return self.channel, words[1]

    def _refused(self, verb: str, message_id: bytes, why: AnswerRefused) -> CommandError:
        text = verb.encode() + b" " + message_id + b" failed " + str(why).encode()
        return CommandError(f"E_{verb}_FAILED", text, fatal=False)

    def _fin(self, command: Command) -> None:
        channel, message_id = self._held(command, 2)
        try:
            channel.finish(self, message_id)
        except AnswerRefused as error:
            raise self._refused("FIN", message_id, error) from None

    def _req(self, command: Command) -> None:
        channel, message_id = self._held(command, 3)
        number = base10(command.words[2])
        if number is None:
            raise CommandError("E_INVALID", b"REQ could not parse timeout " + command.words[2])
        seconds = as_int64(as_int64(number) * 1_000_000) / 1e9
        seconds = min(max(seconds, 0.0), self.server.options.max_req_timeout)
        try:
            channel.requeue(self, message_id, seconds, self.server.topics.now())
        except AnswerRefused as error:
            raise self._refused("REQ", message_id, error) from None

    def _touch(self, command: Command) -> None:
        channel, message_id = self._held(command, 2)
        try:
            channel.touch(self, message_id, self.server.topics.now())
        except AnswerRefused as error:
            raise self._refused("TOUCH", message_id, error) from None

    def _cls(self, command: Command) -> bytes:
        if self.state != SUBSCRIBED:
            raise CommandError("E_INVALID", "cannot CLS in current state")
        self._set_ready(0)
        self.state = CLOSING
        return b"CLOSE_WAIT"

    def _nop(self, command: Command) -> None:
        """Only shows that the client is alive."""

    def _pub(self, command: Command) -> bytes:
        name = self._topic_name(command.words)
        self._check_auth("PUB", name, "")
        return self._publish("PUB", self.server.topics.get(name), [command.body])

    def _dpub(self, command: Command) -> bytes:
        name = self._topic_name(command.words)
        self._check_auth("DPUB", name, "")
        return self._publish("DPUB", self.server.topics.get(name), [command.body], self._defer(command.words))

    def _mpub(self, command: Command) -> bytes:
        topic = self.server.topics.get(command.words[1].decode("ascii"))
        return self._publish("MPUB", topic, command.bodies or [])

    def _publish(self, verb: str, topic: Topic, bodies: list[bytes], defer: float = 0.0) -> bytes:
        try:
            count = self.server.topics.publish(topic, bodies, defer)
        except PutRefused as error:
            raise CommandError(f"E_{verb}_FAILED", f"{verb} failed {error}") from None
        self.pub_counts[topic.name] = self.pub_counts.get(topic.name, 0) + count
        return b"OK"


Session.verbs.update(
    {
        b"IDENTIFY": Session._identify,
        b"AUTH": Session._auth,
        b"SUB": Session._sub,
        b"RDY": Session._rdy,
        b"FIN": Session._fin,
        b"REQ": Session._req,
        b"TOUCH": Session._touch,
        b"CLS": Session._cls,
        b"NOP": Session._nop,
        b"PUB": Session._pub,
        b"MPUB": Session._mpub,
        b"DPUB": Session._dpub,
    }
)
