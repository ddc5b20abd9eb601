"""The commands of Youzan's nsqd beside nsqd 1.3.0's, and its texts.

Source: nsqdserver/protocol_v2.go @0.3.7-HA.1.13.0, and what two of its servers answered (tests/golden/youzan).
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, ClassVar, cast

from gnsq_lite.broker import gojson, identify
from gnsq_lite.broker.channels import AnswerRefused
from gnsq_lite.broker.commands import BodyRule, Command, CommandError, CommandReader, base10, body_rules, quoted
from gnsq_lite.broker.messages import StoredMessage
from gnsq_lite.broker.protocol import ProtocolV2
from gnsq_lite.broker.session import CLOSING, INIT, SUBSCRIBED, Server
from gnsq_lite.broker.tcp import Connection
from gnsq_lite.broker.topics import PutRefused, is_valid_name
from tests.youzan_broker.cluster import Cluster, ClusterTopic, Seat
from tests.youzan_broker.headers import cut_header, passes, trace_of
from tests.youzan_broker.log import PartitionChannel, PartitionMessage

YOUZAN_VERSION = "0.3.7-HA.1.13.0"

_SINGLE = (b"PUB", b"PUB_TRACE", b"PUB_EXT")
_MULTI = (b"MPUB", b"MPUB_TRACE", b"MPUB_EXT")
_ANSWERS = {b"FIN ": 4, b"REQ ": 4, b"TOUC": 6}
_FIELDS = {**identify.FIELDS, "desired_tag": "str", "extend_support": "bool"}
_OFFSETS = ("timestamp", "special", "virtual_queue", "msgcount")


class YouzanReader(CommandReader):
    """Cuts bytes into commands.  Ids are any 16 bytes, newlines too; sizes have other words than in nsqd 1.3.0."""

    def __init__(self, max_msg_size: int, max_body_size: int, begin: Any) -> None:
        super().__init__(max_msg_size, max_body_size, begin)
        pub = BodyRule(
            limit=max_msg_size,
            code="E_BAD_MESSAGE",
            size_unread="failed to read body size",
            too_small="invalid body size %d",
            too_big="message too big %d > %d",
            unread="failed to read message body",
        )
        mpub = replace(pub, limit=max_body_size, code="E_BAD_BODY", too_big="body too big %d > %d", multi=True)
        rules = body_rules(max_msg_size, max_body_size)
        self._rules = {
            b"IDENTIFY": rules[b"IDENTIFY"],
            b"AUTH": rules[b"AUTH"],
            **dict.fromkeys(_SINGLE, pub),
            **dict.fromkeys(_MULTI, mpub),
        }

    def next(self) -> Command | None:
        """Return the next command, or None when more bytes are needed.  Raises CommandError, LineTooLong."""
        if self._rule is None and self._gather():
            at = self._at
            skip = _ANSWERS.get(self._buffer[at : at + 4])
            if skip is not None:
                return self._answer(at, at + skip + 16)
        return super().next()

    def _answer(self, start: int, after_id: int) -> Command | None:
        end = self._buffer.find(b"\n", after_id)
        if end < 0:
            self._need = len(self._buffer) - start + 1
            return None
        verb = self._buffer[start : after_id - 17]
        self._at, self._need = end + 1, 1
        rest = self._buffer[after_id:end].split(b" ")
        return Command([verb, self._buffer[after_id - 16 : after_id], *rest[1:]])

    def _with_body(self, rule: BodyRule) -> Command | None:
        if self._size < 0 and rule.too_small.startswith("invalid") and self._has(4):
            size = int.from_bytes(self._buffer[self._at : self._at + 4], "big", signed=True)
            if size <= 0:
                raise CommandError("E_BAD_BODY", rule.too_small % size)
        return super()._with_body(rule)


class YouzanSession(ProtocolV2):
    """A client of *node*, one of the nodes of *cluster*."""

    verbs: ClassVar[dict[bytes, Any]] = {}

    def __init__(
        self, server: Server, link: Connection, client_id: int, connected_at: float, cluster: Cluster, node: int
    ) -> None:
        super().__init__(server, link, client_id, connected_at)
        self.cluster, self.node = cluster, node
        self._reader = YouzanReader(server.options.max_msg_size, server.options.max_body_size, self._begin)
        self.profile.output_buffer_size = 100
        self.desired_tag = ""
        self.extend_support = False
        self.ext_filter: dict[str, Any] = {}
        self.with_ext = self.with_place = False

    # -- handshake --------------------------------------------------------------------------------------------------

    def _begin(self, words: list[bytes]) -> None:
        if words[0] in (b"IDENTIFY", b"AUTH"):
            super()._begin(words)
        elif len(words) < 2:
            raise CommandError("E_INVALID", "insufficient number of parameters")
        elif len(words) == 3:
            self._partition(words[2])

    def carry_out(self, command: Command) -> bytes | None:
        """Carry out *command* and return the response.  Raises CommandError."""
        if command.words[0] not in self.verbs:
            lists = " ".join("[" + " ".join(map(str, word)) + "]" for word in command.words)
            raise CommandError("E_INVALID", f"invalid command [{lists}]")
        return super().carry_out(command)

    def _identify(self, command: Command) -> bytes | None:
        try:
            data = gojson.decode(command.body, _FIELDS)
        except gojson.NotDecodable:
            raise CommandError("E_BAD_BODY", "IDENTIFY failed to decode JSON body") from None
        self.desired_tag, self.extend_support = data["desired_tag"], data["extend_support"]
        loaded = json.loads(command.body.decode("utf-8", "replace"))
        given = loaded.get("ext_filter") if isinstance(loaded, dict) else None
        self.ext_filter = given if isinstance(given, dict) else {}
        return super()._identify(command)

    def _adjust(self, answer: dict[str, Any], data: dict[str, Any]) -> None:
        answer["version"] = YOUZAN_VERSION
        answer["deflate_level"] = min(data["deflate_level"], answer["max_deflate_level"]) if answer["deflate"] else 0
        if self.desired_tag:
            answer["desired_tag"] = self.desired_tag

    def _auth(self, command: Command) -> bytes:
        if self.server.authorizer is None:
            raise CommandError("E_AUTH_DISABLED", "AUTH Disabled")
        return super()._auth(command)

    def _check_deadline(self) -> None:  # nsqd/protocol_v2.go:179
        left = self._last_command_at + 3 * self.profile.heartbeat_interval - self.server.topics.now()
        if left > 0.001:
            self._deadline = self.server.after(left, self._check_deadline)
        else:
            self.close()

    # -- where a command goes ---------------------------------------------------------------------------------------

    def _partition(self, word: bytes) -> int:
        try:
            text = word.decode("ascii")
            if not text.lstrip("+-").isdigit() or len(text) > 18:
                raise ValueError
            return int(text)
        except ValueError:
            why = f"topic partition is not valid: strconv.Atoi: parsing {quoted(word)}: invalid syntax"
            raise CommandError("E_BAD_PARTITION", why) from None

    def _seat(self, name: str, number: int) -> tuple[ClusterTopic, Seat]:
        """Return the partition, of which this node is a replica.  Raises CommandError."""
        if number == -1:
            number = next(iter(self.cluster.led_by(name, self.node)), -1)
        seat, topic = self.cluster.seat(name, number), self.cluster.topics.get(name)
        if seat is None or topic is None or self.node not in seat.replicas:
            raise CommandError("E_TOPIC_NOT_EXIST", "")
        return topic, seat

    # -- consuming --------------------------------------------------------------------------------------------------

    def _sub(self, command: Command) -> bytes:
        words = command.words
        verb = words[0]
        if self.state != INIT:
            raise CommandError("E_INVALID", "cannot SUB in current state")
        start = self._start_offset(words[4]) if verb == b"SUB_ADVANCED" and len(words) > 4 and words[4] else None
        if self.profile.heartbeat_interval <= 0:
            raise CommandError("E_INVALID", "cannot SUB with heartbeats disabled")
        if len(words) < 3:
            raise CommandError("E_INVALID", "SUB insufficient number of parameters")
        name, channel_name = self._names(words)
        number = self._partition(words[3]) if len(words) == 4 else -1  # so the server: an offset hides the partition
        self._check_auth("SUB", name, channel_name)
        ordered = verb == b"SUB_ORDERED"
        topic, seat = self._seat(name, number)
        self._check_kind(topic, seat, ordered)
        if topic.disable_channel_auto_create and channel_name not in seat.partition.channels:
            raise CommandError("E_SUB_CHANNEL_NOT_REGISTERED", "channel is not registered under topic.")
        if ordered and self.sample_rate:
            raise CommandError("E_INVALID", "order consume is not allowed while sample rate is not 0")
        channel = seat.partition.channel(channel_name)
        if start is not None and not channel.clients:
            self._set_offset(channel, seat, start)
        self._join(channel, topic, ordered, verb)
        return b"OK"

    def _names(self, words: list[bytes]) -> tuple[str, str]:
        names = [word.decode("utf-8", "surrogateescape") for word in words[1:3]]
        for name, kind, word in zip(names, ("topic", "channel"), words[1:3], strict=True):
            if not is_valid_name(name):
                raise CommandError(f"E_BAD_{kind.upper()}", f"SUB {kind} name {quoted(word)} is not valid")
        return names[0], names[1]

    def _check_kind(self, topic: ClusterTopic, seat: Seat, ordered: bool) -> None:
        if topic.ordered and not ordered:
            raise CommandError("E_SUB_ORDER_IS_MUST", "this topic is configured only allow ordered sub")
        if topic.ext and not self.extend_support:
            why = "this topic is extended and should identify as extend support."
            raise CommandError("E_SUB_EXTEND_NEED", why)
        if not topic.ext and self.extend_support:
            why = "this topic is not extended and should not identify as extend support."
            raise CommandError("E_SUB_EXTEND_FORBIDDON", why)
        if seat.leader != self.node:
            raise CommandError("E_FAILED_ON_NOT_LEADER", "")
        if not seat.writable:
            raise CommandError("E_FAILED_ON_NOT_WRITABLE", "")

    def _start_offset(self, word: bytes) -> tuple[str, int]:
        text = word.decode("utf-8", "replace")
        kind, _, value = text.partition(":")
        if kind not in _OFFSETS or ":" in value:
            raise CommandError("E_INVALID", f"invalid consume offset:{text}")
        if not value.lstrip("-").isdigit():
            why = f"strconv.ParseInt: parsing {quoted(value.encode())}: invalid syntax"
            raise CommandError("E_INVALID", why)
        return kind, int(value)

    def _set_offset(self, channel: PartitionChannel, seat: Seat, start: tuple[str, int]) -> None:
        try:
            channel.start_from(seat.partition.messages_from(*start))
        except ValueError as error:
            raise CommandError("E_INVALID", str(error)) from None

    def _join(self, channel: PartitionChannel, topic: ClusterTopic, ordered: bool, verb: bytes) -> None:
        if ordered:
            channel.ordered = True
        if not topic.ext:
            self.desired_tag = ""
        self.with_ext, self.with_place = topic.ext, verb != b"SUB"
        self.profile.output_buffer_size = max(self.profile.output_buffer_size, 4096)
        channel.add_client(self)
        self.state, self.channel = SUBSCRIBED, channel

    def passes(self, message: PartitionMessage) -> bool:
        """Whether the client's filter lets *message* through; what it stops counts as finished."""
        return not self.with_ext or passes(self.ext_filter, message.header)

    def deliver(self, messages: list[StoredMessage]) -> None:
        """Buffer message frames: what the topic and the SUB add goes before the body."""
        framed = []
        for message in messages:
            held = cast(PartitionMessage, message)
            more = b""
            if self.with_ext:
                header = held.header
                more = b"\0" if header is None else b"\4" + len(header).to_bytes(2, "big") + header
            if self.with_place:
                more += held.offset.to_bytes(8, "big") + held.raw_size.to_bytes(4, "big")
            frame = StoredMessage(held.id, more + held.body, held.timestamp_ns)
            frame.attempts = held.attempts
            framed.append(frame)
        super().deliver(framed)

    def _held(self, command: Command, count: int) -> tuple[Any, bytes]:
        words = command.words
        if self.channel is None or self.state not in (SUBSCRIBED, CLOSING):
            raise CommandError("E_INVALID", f"cannot {words[0].decode()} in current state")
        if len(words) < count:
            raise CommandError("E_INVALID", f"{words[0].decode()} insufficient number of params")
        if int.from_bytes(words[1][:8], "big", signed=True) <= 0:
            raise CommandError("E_INVALID", "Invalid Message ID")
        return self.channel, words[1]

    def _refused(self, verb: str, message_id: bytes, why: AnswerRefused) -> CommandError:
        shown = " ".join(map(str, message_id))
        kind = "ErrType:7 ErrCode:0 : " if verb == "FIN" else ""
        return CommandError(f"E_{verb}_FAILED", f"{verb} [{shown}] failed {kind}{why}", fatal=False)

    def _whole(self, command: Command, count: int) -> Command:
        channel, message_id = self._held(command, count)
        known = channel.held_id(message_id)
        return command if known == message_id else command._replace(words=[command.words[0], known, *command.words[2:]])

    def _fin(self, command: Command) -> None:
        super()._fin(self._whole(command, 2))

    def _req(self, command: Command) -> None:
        channel, _ = self._held(command, 3)
        delay = base10(command.words[2])
        if channel.ordered and delay:
            return  # ignored without a word: protocol_v2.go:1298
        super()._req(self._whole(command, 3))

    def _touch(self, command: Command) -> None:
        super()._touch(self._whole(command, 2))

    # -- publishing -------------------------------------------------------------------------------------------------

    def _place(self, words: list[bytes]) -> tuple[ClusterTopic, Seat]:
        name = words[1].decode("utf-8", "surrogateescape")
        number = self._partition(words[2]) if len(words) == 3 else -1
        topic, seat = self._seat(name, number)
        if number == -1 and topic.ordered:
            raise CommandError("E_BAD_PARTITION", "topic partition is not valid for multi partition: -1")
        self._check_auth("PUB", name, "")
        return topic, seat

    def _append(self, verb: str, seat: Seat, made: list[PartitionMessage], traces: list[int]) -> None:
        if seat.leader != self.node:
            raise CommandError("E_FAILED_ON_NOT_LEADER", "", fatal=False)
        if not seat.writable:
            raise CommandError("E_FAILED_ON_NOT_WRITABLE", "", fatal=False)
        try:
            seat.partition.put(made, traces)
        except PutRefused as error:
            raise CommandError(f"E_{verb}_FAILED", str(error), fatal=False) from None

    def _pub(self, command: Command) -> bytes:
        topic, seat = self._place(command.words)
        verb, body = command.words[0], command.body
        header, trace, traced = None, 0, verb == b"PUB_TRACE"
        if traced:
            if len(body) <= 8:
                raise CommandError("E_BAD_BODY", f"invalid body size {len(body)} with trace id enabled")
            trace, body = int.from_bytes(body[:8], "big"), body[8:]
        elif verb == b"PUB_EXT":
            if len(body) <= 2:
                raise CommandError("E_BAD_BODY", f"invalid body size {len(body)} with ext json header enabled")
            header, body = cut_header(body)
            found = trace_of(header)
            if not topic.ext:
                raise _no_ext(topic)
            trace, traced = found or 0, found is not None
        made = self.cluster.message(body, header)
        self._append("PUB", seat, [made], [trace])
        return _trace_reply(made, trace, made.raw_size) if traced else b"OK"

    def _mpub(self, command: Command) -> bytes:
        topic, seat = self._place(command.words)
        verb = command.words[0]
        made, traces = [], []
        for number, body in enumerate(command.bodies or []):
            header, trace = None, 0
            if verb == b"MPUB_TRACE":
                if len(body) <= 8:
                    why = f"MPUB invalid message({number}) body size {len(body)} for tracing"
                    raise CommandError("E_BAD_MESSAGE", why)
                trace, body = int.from_bytes(body[:8], "big"), body[8:]
            elif verb == b"MPUB_EXT":
                header, body = cut_header(body)
                if header and not topic.ext:
                    raise _no_ext(topic)
                trace = (trace_of(header) or 0) if header else 0
                header = header or None
            made.append(self.cluster.message(body, header))
            traces.append(trace)
        self._append("MPUB", seat, made, traces)
        if verb != b"MPUB_TRACE":
            return b"OK"
        return _trace_reply(made[0], 0, sum(message.raw_size for message in made))

    def _create_topic(self, command: Command) -> bytes:
        why = "CREATE_TOPIC is not allowed here while cluster feature enabled."
        raise CommandError("E_CREATE_TOPIC_FAILED", why, fatal=False)

    def answer_nothing(self) -> None:
        """Say no more, not even heartbeats, and keep the connection: a topic upgraded under its consumers does so."""
        for timer in (self._heartbeat,):
            if timer is not None:
                timer.stop()
        self.ready_count = 0
        if self.channel is not None:
            self.server.topics.leave(self.channel, self)
            self.channel = None


def _no_ext(topic: ClusterTopic) -> CommandError:
    return CommandError("E_EXT_NOT_SUPPORT", f"ext content not supported in topic {topic.name}", fatal=False)


def _trace_reply(first: PartitionMessage, trace: int, size: int) -> bytes:
    place = first.offset.to_bytes(8, "big") + size.to_bytes(4, "big")
    return b"OK" + first.id[:8] + trace.to_bytes(8, "big") + place


YouzanSession.verbs = {
    b"IDENTIFY": YouzanSession._identify,
    b"AUTH": YouzanSession._auth,
    b"RDY": YouzanSession._rdy,
    b"FIN": YouzanSession._fin,
    b"REQ": YouzanSession._req,
    b"TOUCH": YouzanSession._touch,
    b"CLS": YouzanSession._cls,
    b"NOP": YouzanSession._nop,
    b"INTERNAL_CREATE_TOPIC": YouzanSession._create_topic,
    **dict.fromkeys((b"SUB", b"SUB_ADVANCED", b"SUB_ORDERED"), YouzanSession._sub),
    **dict.fromkeys(_SINGLE, YouzanSession._pub),
    **dict.fromkeys(_MULTI, YouzanSession._mpub),
}
