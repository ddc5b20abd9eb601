"""Checks and executes the commands of nsqd's TCP protocol.

Errors have nsqd's texts.  Source: nsqd/protocol_v2.go @v1.3.0.
"""

from __future__ import annotations

import copy
from typing import Any

from gnsq_lite.broker import gojson, identify
from gnsq_lite.broker.auth import AuthRequest
from gnsq_lite.broker.channels import AnswerRefused, Channel, TooManyConsumers
from gnsq_lite.broker.commands import Command, CommandError, as_int64, base10, quoted
from gnsq_lite.broker.session import CLOSING, INIT, RESPONSE, SUBSCRIBED, Session
from gnsq_lite.broker.topics import PutRefused, Topic, is_valid_name

#: Write timeout, in seconds, for clients without heartbeats.  nsqd has no write timeout for such clients.
_WRITE_TIMEOUT = 60.0


class ProtocolV2(Session):
    """Session of a client with the V2 protocol."""

    # -- before a body is read --------------------------------------------------------------------------------------

    def _begin(self, words: list[bytes]) -> None:
        """Raise CommandError if nsqd refuses the command before reading the command's body."""
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
            self.grant = authorizer.check(self.grant, self._auth_request(), verb, topic, channel)

    def _auth_request(self) -> AuthRequest:
        return AuthRequest(self.secret, self.remote_host, self.tls, self.link.tls_info.get("common_name", ""))

    # -- commands ---------------------------------------------------------------------------------------------------

    def _identify(self, command: Command) -> bytes | None:
        try:
            data = gojson.decode(command.body, identify.FIELDS)
        except gojson.NotDecodable:
            raise CommandError("E_BAD_BODY", "IDENTIFY failed to decode JSON body") from None
        faults = self.server.faults
        for name in faults.refused_features:
            data[name] = identify.NO_FEATURES[name]
        profile = self.profile
        if self._is_identified and self.server.options.like_nsqd:
            profile = copy.copy(profile)  # nsqd's goroutine that sends reads the first IDENTIFY only
        self._is_identified = True
        profile.apply(data)
        self.msg_timeout, self.sample_rate = self.profile.msg_timeout, self.profile.sample_rate
        self._ticker_started_at = self._last_command_at = self.server.topics.now()
        self.link.write_timeout = self.profile.heartbeat_interval or _WRITE_TIMEOUT
        self._wait_for_client()
        if not data["feature_negotiation"] or faults.skip_negotiation:
            return b"OK"
        answer = profile.negotiate(
            data, has_tls=self.server.tls_context is not None, auth_required=self.server.authorizer is not None
        )
        self._adjust(answer, data)
        self.respond(RESPONSE, gojson.encode(answer))
        self._upgrade(answer)
        return None

    def _adjust(self, answer: dict[str, Any], data: dict[str, Any]) -> None:
        """Change the reply to IDENTIFY.  Subclasses that emulate other servers override this method."""

    def _upgrade(self, answer: dict[str, Any]) -> None:
        context = self.server.tls_context
        if answer["tls_v1"] and context is not None:
            self.flush()
            self._reader.take_rest()  # as nsqd does, drop bytes that arrived before the handshake
            self.link.start_tls(context)
            self.tls = True
            self.respond(RESPONSE, b"OK")
        for kind in ("snappy", "deflate"):
            if answer[kind]:
                self.flush()
                self.compression = kind
                self.link.start_compression(kind, answer["deflate_level"], self._reader.take_rest())
                self.respond(RESPONSE, b"OK")
                self.flush()  # the client gets the OK even if its first compressed bytes are invalid

    def _auth(self, command: Command) -> bytes:
        if self.grant is not None and self.grant.permission_count:
            raise CommandError("E_INVALID", "AUTH already set")
        authorizer = self.server.authorizer
        if authorizer is None:
            raise CommandError("E_AUTH_DISABLED", "AUTH disabled")
        self.secret = command.body.decode("utf-8", "surrogateescape")
        self.grant = grant = authorizer.request_grant(self._auth_request())
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
            self._flush_soon()

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
        """Do nothing.  The session has recorded the time of the command already."""

    def _pub(self, command: Command) -> bytes:
        name = command.words[1].decode("ascii")  # _begin() has checked the name
        self._check_auth("PUB", name, "")
        return self._publish("PUB", self.server.topics.get(name), [command.body])

    def _dpub(self, command: Command) -> bytes:
        name = command.words[1].decode("ascii")
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


ProtocolV2.verbs.update(
    {
        b"IDENTIFY": ProtocolV2._identify,
        b"AUTH": ProtocolV2._auth,
        b"SUB": ProtocolV2._sub,
        b"RDY": ProtocolV2._rdy,
        b"FIN": ProtocolV2._fin,
        b"REQ": ProtocolV2._req,
        b"TOUCH": ProtocolV2._touch,
        b"CLS": ProtocolV2._cls,
        b"NOP": ProtocolV2._nop,
        b"PUB": ProtocolV2._pub,
        b"MPUB": ProtocolV2._mpub,
        b"DPUB": ProtocolV2._dpub,
    }
)
