"""The handshake of a connection with a scripted nsqd, without sockets."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from gnsq_lite import errors
from gnsq_lite.clock import SYSTEM_CLOCK
from gnsq_lite.dialect import Endpoint
from gnsq_lite.net.connection import BaseConnection, Target
from gnsq_lite.net.stream import ByteStream
from gnsq_lite.options import ConnectionOptions, TLSOptions
from gnsq_lite.wire import commands
from gnsq_lite.wire.compress import make_codec
from gnsq_lite.wire.frames import HEARTBEAT_FRAME, OK_FRAME, Frame
from gnsq_lite.wire.identify import AuthReply
from tests.unit.wire.golden import golden

ADDRESS = "node7:4150"
SUB = commands.subscribe("t", "c")
AUTH_REPLY = Frame(0, b'{"identity":"me","identity_url":"http://x","permission_count":2}')
#: Answers of an nsqd that grants and requires everything, by command.
ANSWERED = ["IDENTIFY", "TLS", "snappy", "AUTH", "SUB"]
EVERYTHING: dict[str, Any] = {"tls": TLSOptions(), "compression": "snappy", "auth_secret": "hush"}


def options(**values: Any) -> ConnectionOptions:
    return ConnectionOptions(output_buffer_timeout=None, **values)


def reply(**values: Any) -> Frame:
    return Frame(0, json.dumps(values).encode())


class Peer(ByteStream):
    """An nsqd that sends one of *answers* for each read, compressed if the nsqd has granted compression."""

    def __init__(self, *answers: Frame, heartbeats: bool = False) -> None:
        super().__init__(None, ADDRESS)
        self.answers, self.heartbeats = list(answers), heartbeats
        #: Decompressed commands, and "TLS".
        self.sent: list[bytes | str] = []
        granted = json.loads(answers[0].body) if answers[0].body.startswith(b"{") else {}
        codec: Any = next((name for name in ("snappy", "deflate") if granted.get(name)), None)
        self._codec, self._plain = codec and make_codec(codec), 1 + granted.get("tls_v1", False)

    def read(self) -> bytes:
        if not self.answers:
            raise errors.ConnectionLost(ADDRESS, "nsqd sends no more")
        self._plain -= 1
        frames = [HEARTBEAT_FRAME] * self.heartbeats + [self.answers.pop(0)]
        data = b"".join((len(f.body) + 4).to_bytes(4, "big") + f.kind.to_bytes(4, "big") + f.body for f in frames)
        return data if self._codec is None or self._plain >= 0 else self._codec.compress(data)

    def write(self, data: bytes) -> None:
        is_plain = self._codec is None or self._plain > 0 or data == b"NOP\n"
        self.sent.append(data if is_plain else b"".join(self._codec.decompress(data)))

    def start_tls(self, tls: Any, host: str, early: bytes = b"") -> bytes:
        self.sent.append("TLS")
        return b""


def connect(peer: Peer, opts: ConnectionOptions | None = None, subscribe: bytes | None = SUB) -> BaseConnection:
    target = Target(endpoint=Endpoint("node7", 4150), subscribe=subscribe)
    connection = BaseConnection(target, opts or options(), SYSTEM_CLOCK)
    connection._shake_hands(peer, "node7")
    return connection


def answer_last(asked: str, frame: Frame) -> BaseConnection:
    """Do a handshake in which nsqd responds to *asked* with *frame*."""
    answers = [reply(tls_v1=True, snappy=True, auth_required=True), OK_FRAME, OK_FRAME, AUTH_REPLY, OK_FRAME]
    at = ANSWERED.index(asked)
    return connect(Peer(*answers[:at], frame, *answers[at + 1 :]), options(**EVERYTHING))


# -- every way through


@pytest.mark.rule("CONN-1")
@pytest.mark.rule("WIRE-1")
@pytest.mark.rule("SEC-1")
@pytest.mark.rule("SEC-2")
@pytest.mark.rule("SEC-3")
@pytest.mark.rule("SEC-4")
@pytest.mark.parametrize("heartbeats", [False, True])
@pytest.mark.parametrize("subscribe", [None, SUB])
@pytest.mark.parametrize("auth", [False, True])
@pytest.mark.parametrize("codec", [None, "snappy", "deflate"])
@pytest.mark.parametrize("tls", [False, True])
def test_the_handshake_goes_in_order(
    tls: bool,
    codec: Any,
    auth: bool,
    subscribe: bytes | None,
    heartbeats: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    opts = options(tls=TLSOptions() if tls else None, compression=codec, deflate_level=3, auth_secret="hush")
    granted: dict[str, Any] = {"tls_v1": tls, "auth_required": auth, "deflate_level": 3} | (
        {codec: True} if codec else {}
    )
    oks = [OK_FRAME] * (tls + bool(codec))
    peer = Peer(reply(**granted), *oks, *[AUTH_REPLY] * auth, OK_FRAME, heartbeats=heartbeats)
    connection = connect(peer, opts, subscribe)
    identify, *sent = [command for command in peer.sent if command != b"NOP\n"]
    assert isinstance(identify, bytes)
    assert identify.startswith(b"  V2IDENTIFY\n")
    expected: list[bytes | str] = ["TLS"] * tls
    if auth:
        expected.append(b"AUTH\n\x00\x00\x00\x04hush")
    if subscribe:
        expected.append(subscribe)
    assert sent == expected
    assert len(peer.sent) - len(sent) - 1 == heartbeats * (1 + tls + bool(codec) + auth + bool(subscribe))
    assert caplog.text == ""
    assert connection.negotiated is not None
    assert (connection.auth_reply is not None) == auth


@pytest.mark.rule("SEC-2")
def test_the_servers_deflate_level_is_used_else_the_clients_own() -> None:
    body = b"0123456789abcdef" * 200 + bytes(range(256)) * 20
    for granted, level in (({}, 8), ({"deflate_level": 1}, 1)):
        connection = connect(
            Peer(reply(deflate=True, **granted), OK_FRAME, OK_FRAME), options(compression="deflate", deflate_level=8)
        )
        expected = make_codec("deflate", level)
        expected.compress(SUB)
        assert connection._codec.compress(body) == expected.compress(body)


@pytest.mark.rule("NEG-2")
def test_a_server_that_does_not_negotiate_is_subscribed_to_at_once() -> None:
    peer = Peer(OK_FRAME, OK_FRAME)
    connection = connect(peer)
    assert peer.sent[1:] == [SUB]
    assert connection.negotiated is not None
    assert connection.negotiated.max_rdy_count == 2500


# -- what is not granted


@pytest.mark.rule("NEG-4")
@pytest.mark.parametrize("answer", [OK_FRAME, reply(), reply(tls_v1=False, auth_required=True)])
def test_tls_that_is_not_granted_ends_it_before_anything_else_is_sent(answer: Frame) -> None:
    peer = Peer(answer, OK_FRAME, OK_FRAME)
    with pytest.raises(errors.TLSNotGranted) as caught:
        connect(peer, options(tls=TLSOptions(), auth_secret="hush"))
    assert caught.value.address == ADDRESS
    assert len(peer.sent) == 1


def warnings(caplog: pytest.LogCaptureFixture, answer: Frame, subscribe: bytes | None = SUB, **asked: Any) -> list[str]:
    """Return the warnings that a handshake logs."""
    caplog.clear()
    connect(Peer(answer, OK_FRAME, OK_FRAME), options(**asked), subscribe)
    assert all(record.levelno == logging.WARNING for record in caplog.records)
    return [record.getMessage().removeprefix(f"{ADDRESS}: ") for record in caplog.records]


@pytest.mark.rule("NEG-4")
@pytest.mark.parametrize(
    ("asked", "granted", "warning"),
    [
        ({"compression": "snappy"}, {}, "snappy was requested"),
        ({"compression": "deflate"}, {"deflate": False}, "deflate was requested"),
        ({"compression": "deflate", "deflate_level": 9}, {"deflate": True, "deflate_level": 6}, "deflate_level=9"),
        ({"sample_rate": 5}, {"sample_rate": 0}, "sample_rate=5 was requested; nsqd uses 0"),
        ({"sample_rate": 5}, {}, "sample_rate=5"),
        ({"msg_timeout": 5.0}, {"msg_timeout": 60000}, "msg_timeout=5.0 was requested; nsqd uses 60.0"),
    ],
)
def test_other_things_that_are_not_granted_are_a_warning(
    asked: dict[str, Any], granted: dict[str, Any], warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    (line,) = warnings(caplog, reply(**granted), **asked)
    assert warning in line


@pytest.mark.rule("NEG-4")
@pytest.mark.rule("SEC-5")
def test_what_is_granted_gives_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    granted = reply(deflate=True, deflate_level=6, sample_rate=5, msg_timeout=5000)
    assert warnings(caplog, granted, compression="deflate", sample_rate=5, msg_timeout=5.0004) == []


@pytest.mark.rule("NEG-3")
@pytest.mark.parametrize(("subscribe", "count"), [(b"SUB t c\n", 1), (None, 0)], ids=["a Reader", "a Writer"])
def test_max_rdy_count_0_is_a_warning_for_a_reader(
    subscribe: bytes | None, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    lines = warnings(caplog, reply(max_rdy_count=0), subscribe)
    assert ["delivers no messages" in line for line in lines] == [True] * count


@pytest.mark.rule("NEG-4")
def test_a_server_that_does_not_negotiate_is_warned_of_for_each_thing_asked(caplog: pytest.LogCaptureFixture) -> None:
    lines = warnings(caplog, OK_FRAME, compression="snappy", sample_rate=5, msg_timeout=60.0)
    assert [line.split()[0] for line in lines] == ["snappy", "sample_rate=5", "msg_timeout=60.0"]


# -- AUTH


@pytest.mark.rule("SEC-4")
def test_auth_that_is_required_and_not_configured_is_typed_before_sub() -> None:
    peer = Peer(reply(auth_required=True), OK_FRAME)
    with pytest.raises(errors.AuthFirstError, match="set auth_secret") as caught:
        connect(peer)
    assert caught.value.address == ADDRESS
    assert len(peer.sent) == 1


@pytest.mark.rule("SEC-4")
@pytest.mark.parametrize(("secret", "sent"), [("h\u00fcsh", "h\u00fcsh".encode()), (b"\x00\xff", b"\x00\xff")])
def test_the_secret_goes_out_as_its_bytes(secret: Any, sent: bytes) -> None:
    peer = Peer(reply(auth_required=True), AUTH_REPLY, OK_FRAME)
    connect(peer, options(auth_secret=secret))
    assert peer.sent[1] == b"AUTH\n" + len(sent).to_bytes(4, "big") + sent


@pytest.mark.rule("SEC-4")
def test_the_reply_of_a_real_nsqd_to_auth_is_kept() -> None:
    data = golden("auth_reply")
    first = 4 + int.from_bytes(data[:4], "big")
    second = first + 4 + int.from_bytes(data[first : first + 4], "big")
    peer = Peer(Frame(0, data[8:first]), Frame(0, data[first + 8 : second]), OK_FRAME)
    connection = connect(peer, options(auth_secret="hush"))
    assert connection.auth_reply.identity == "golden"
    assert connection.auth_reply.permission_count == 1


@pytest.mark.parametrize("body", [b'{"identity":5,"identity_url":null,"permission_count":"many"}', b"{}"])
def test_an_odd_reply_to_auth_does_no_harm(body: bytes) -> None:
    assert answer_last("AUTH", Frame(0, body)).auth_reply == AuthReply()


@pytest.mark.parametrize("body", [b"OK", b"", b"[]", b"nope"])
def test_a_reply_to_auth_that_is_no_object_is_unexpected(body: bytes) -> None:
    with pytest.raises(errors.ProtocolError, match="node7:4150: the reply is n"):
        answer_last("AUTH", Frame(0, body))


@pytest.mark.rule("SEC-4")
def test_the_secret_shows_nowhere() -> None:
    opts = options(auth_secret="hush-hush")
    with pytest.raises(errors.ProtocolError) as caught:
        connect(Peer(reply(auth_required=True), OK_FRAME), opts)
    assert "hush-hush" not in f"{opts!r} {caught.value} {caught.value!r}"


# -- frames that do not belong


@pytest.mark.rule("ERR-2")
@pytest.mark.parametrize("asked", ANSWERED)
@pytest.mark.parametrize("code", ["E_INVALID", "E_FIN_FAILED", "E_UNHEARD_OF"])
def test_an_error_frame_ends_the_handshake_and_names_the_nsqd(asked: str, code: str) -> None:
    with pytest.raises(errors.NsqdError) as caught:
        answer_last(asked, Frame(1, f"{code} told so".encode()))
    assert (caught.value.code, caught.value.text, caught.value.address) == (code, "told so", ADDRESS)


@pytest.mark.parametrize("asked", ANSWERED)
def test_a_message_in_the_handshake_is_unexpected(asked: str) -> None:
    with pytest.raises(errors.ProtocolError, match="node7:4150") as caught:
        answer_last(asked, Frame(2, bytes(26)))
    assert "frame type 2" in str(caught.value)


@pytest.mark.parametrize("asked", ["TLS", "snappy", "SUB"])
@pytest.mark.parametrize("body", [b"", b"ok", b"OK ", b"CLOSE_WAIT", b"{}", b"x" * 1000])
def test_anything_but_ok_where_ok_is_due_is_unexpected(asked: str, body: bytes) -> None:
    with pytest.raises(errors.ProtocolError, match=f"expected OK to {asked}") as caught:
        answer_last(asked, Frame(0, body))
    assert len(str(caught.value)) < 300


def test_a_bad_reply_to_identify_names_the_nsqd() -> None:
    with pytest.raises(errors.ProtocolError, match="node7:4150"):
        connect(Peer(Frame(0, b"nope")))
