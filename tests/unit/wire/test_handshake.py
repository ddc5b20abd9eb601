from __future__ import annotations

import json
from typing import Any

import pytest

from gnsq_lite import errors
from gnsq_lite.options import ConnectionOptions, TLSOptions
from gnsq_lite.wire import commands, handshake
from gnsq_lite.wire.frames import HEARTBEAT_FRAME, OK_FRAME, Frame
from gnsq_lite.wire.handshake import Done, Handshake, Send, StartCompression, StartTLS
from tests.unit.wire.golden import golden

ADDRESS = "node7:4150"
SUB = commands.subscribe("t", "c")
AUTH_REPLY = Frame(0, b'{"identity":"me","identity_url":"http://x","permission_count":2}')
#: The answers of an nsqd that grants and requires everything, by what they answer.
ANSWERED = ["IDENTIFY", "TLS", "snappy", "AUTH", "SUB"]


def options(**values: Any) -> ConnectionOptions:
    return ConnectionOptions(output_buffer_timeout=None, **values)


def make(opts: ConnectionOptions | None = None, subscribe: bytes | None = SUB) -> Handshake:
    return Handshake(opts or options(), ADDRESS, identify=b"{}", subscribe=subscribe)


def started(opts: ConnectionOptions | None = None, subscribe: bytes | None = SUB) -> Handshake:
    under_test = make(opts, subscribe)
    under_test.start()
    return under_test


def reply(**values: Any) -> Frame:
    return Frame(0, json.dumps(values).encode())


def at(asked: str) -> Handshake:
    """A handshake that waits for the answer to *asked*."""
    under_test = started(options(tls=TLSOptions(), compression="snappy", auth_secret="hush"))
    answers = [reply(tls_v1=True, snappy=True, auth_required=True), OK_FRAME, OK_FRAME, AUTH_REPLY]
    for frame in answers[: ANSWERED.index(asked)]:
        under_test.receive(frame)
    return under_test


# -- every way through


class FakeNsqd:
    """Answers as nsqd does, with a heartbeat before each answer where asked."""

    def __init__(self, tls: bool, codec: str | None, auth: bool) -> None:
        granted: dict[str, Any] = {"tls_v1": tls, "auth_required": auth, "deflate_level": 3}
        if codec:
            granted[codec] = True
        self.answers = [reply(**granted)] + [OK_FRAME] * (tls + bool(codec))
        self.after = [AUTH_REPLY] * auth + [OK_FRAME]


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
    tls: bool, codec: Any, auth: bool, subscribe: bytes | None, heartbeats: bool
) -> None:
    opts = options(tls=TLSOptions() if tls else None, compression=codec, deflate_level=3, auth_secret="hush")
    under_test = make(opts, subscribe)
    assert under_test.start() == b"  V2IDENTIFY\n\x00\x00\x00\x02{}"
    peer = FakeNsqd(tls, codec, auth)
    steps = []
    for frame in [*peer.answers, *peer.after]:
        if heartbeats:
            assert under_test.receive(HEARTBEAT_FRAME) == Send(b"NOP\n")
        steps.append(under_test.receive(frame))
        if steps[-1] == Done():
            break
    expected: list[handshake.Step] = []
    if tls:
        expected.append(StartTLS())
    if codec:
        expected.append(StartCompression(codec, 3))
    if auth:
        expected.append(Send(b"AUTH\n\x00\x00\x00\x04hush"))
    if subscribe:
        expected.append(Send(subscribe))
    assert steps == [*expected, Done()]
    assert under_test.warnings == []
    assert under_test.negotiated is not None
    assert (under_test.auth_reply is not None) == auth


@pytest.mark.rule("SEC-2")
def test_a_server_that_names_no_level_leaves_this_sides_own() -> None:
    under_test = started(options(compression="deflate", deflate_level=8))
    assert under_test.receive(reply(deflate=True)) == StartCompression("deflate", 8)


@pytest.mark.rule("NEG-2")
def test_a_server_that_does_not_negotiate_is_subscribed_to_at_once() -> None:
    under_test = started()
    assert under_test.receive(OK_FRAME) == Send(SUB)
    assert under_test.receive(OK_FRAME) == Done()
    assert under_test.negotiated is not None
    assert under_test.negotiated.max_rdy_count == 2500


# -- what is not granted


@pytest.mark.rule("NEG-4")
@pytest.mark.parametrize("answer", [OK_FRAME, reply(), reply(tls_v1=False, auth_required=True)])
def test_tls_that_is_not_granted_ends_it_before_anything_else_is_sent(answer: Frame) -> None:
    under_test = started(options(tls=TLSOptions(), auth_secret="hush"))
    with pytest.raises(errors.TLSNotGranted) as caught:
        under_test.receive(answer)
    assert caught.value.address == ADDRESS


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
    asked: dict[str, Any], granted: dict[str, Any], warning: str
) -> None:
    under_test = started(options(**asked))
    under_test.receive(reply(**granted))
    (line,) = under_test.warnings
    assert warning in line


@pytest.mark.rule("NEG-4")
@pytest.mark.rule("SEC-5")
def test_what_is_granted_gives_no_warning() -> None:
    opts = options(compression="deflate", sample_rate=5, msg_timeout=5.0004)
    under_test = started(opts)
    under_test.receive(reply(deflate=True, deflate_level=6, sample_rate=5, msg_timeout=5000))
    assert under_test.warnings == []


@pytest.mark.rule("NEG-3")
@pytest.mark.parametrize(("subscribe", "count"), [(b"SUB t c\n", 1), (None, 0)], ids=["a Reader", "a Writer"])
def test_max_rdy_count_0_is_a_warning_for_a_reader(subscribe: bytes | None, count: int) -> None:
    under_test = started(options(), subscribe=subscribe)
    under_test.receive(reply(max_rdy_count=0))
    assert [line for line in under_test.warnings if "delivers no messages" in line] == under_test.warnings
    assert len(under_test.warnings) == count


@pytest.mark.rule("NEG-4")
def test_a_server_that_does_not_negotiate_is_warned_of_for_each_thing_asked() -> None:
    under_test = started(options(compression="snappy", sample_rate=5, msg_timeout=60.0))
    under_test.receive(OK_FRAME)
    assert [line.split()[0] for line in under_test.warnings] == ["snappy", "sample_rate=5", "msg_timeout=60.0"]


# -- AUTH


@pytest.mark.rule("SEC-4")
def test_auth_that_is_required_and_not_configured_is_typed_before_sub() -> None:
    under_test = started()
    with pytest.raises(errors.AuthFirstError, match="set auth_secret") as caught:
        under_test.receive(reply(auth_required=True))
    assert caught.value.address == ADDRESS


@pytest.mark.rule("SEC-4")
@pytest.mark.parametrize(("secret", "sent"), [("h\u00fcsh", "h\u00fcsh".encode()), (b"\x00\xff", b"\x00\xff")])
def test_the_secret_goes_out_as_its_bytes(secret: Any, sent: bytes) -> None:
    step = started(options(auth_secret=secret)).receive(reply(auth_required=True))
    assert step == Send(b"AUTH\n" + len(sent).to_bytes(4, "big") + sent)


@pytest.mark.rule("SEC-4")
def test_auth_is_not_sent_where_it_is_not_required() -> None:
    assert started(options(auth_secret="hush")).receive(reply(auth_required=False)) == Send(SUB)


@pytest.mark.rule("SEC-4")
def test_the_reply_of_a_real_nsqd_to_auth_is_kept() -> None:
    data = golden("auth_reply")
    first = 4 + int.from_bytes(data[:4], "big")
    second = first + 4 + int.from_bytes(data[first : first + 4], "big")
    under_test = started(options(auth_secret="hush"))
    under_test.receive(Frame(0, data[8:first]))
    assert under_test.receive(Frame(0, data[first + 8 : second])) == Send(SUB)
    assert under_test.auth_reply is not None
    assert under_test.auth_reply.identity == "golden"
    assert under_test.auth_reply.permission_count == 1


@pytest.mark.parametrize("body", [b'{"identity":5,"identity_url":null,"permission_count":"many"}', b"{}"])
def test_an_odd_reply_to_auth_does_no_harm(body: bytes) -> None:
    under_test = at("AUTH")
    under_test.receive(Frame(0, body))
    assert under_test.auth_reply == handshake.AuthReply()


@pytest.mark.parametrize("body", [b"OK", b"", b"[]", b"nope"])
def test_a_reply_to_auth_that_is_no_object_is_unexpected(body: bytes) -> None:
    with pytest.raises(errors.ProtocolError, match="AUTH"):
        at("AUTH").receive(Frame(0, body))


@pytest.mark.rule("SEC-4")
def test_the_secret_shows_nowhere() -> None:
    opts = options(auth_secret="hush-hush")
    under_test = started(opts)
    step = under_test.receive(reply(auth_required=True))
    shown = [repr(step), repr(under_test), repr(opts), str(step)]
    with pytest.raises(errors.ProtocolError) as caught:
        under_test.receive(OK_FRAME)
    shown += [str(caught.value), repr(caught.value)]
    assert "hush-hush" not in "".join(shown)


# -- frames that do not belong


@pytest.mark.rule("ERR-2")
@pytest.mark.parametrize("asked", ANSWERED)
@pytest.mark.parametrize("code", ["E_INVALID", "E_FIN_FAILED", "E_UNHEARD_OF"])
def test_an_error_frame_ends_the_handshake_and_names_the_nsqd(asked: str, code: str) -> None:
    with pytest.raises(errors.NsqdError) as caught:
        at(asked).receive(Frame(1, f"{code} told so".encode()))
    assert (caught.value.code, caught.value.text, caught.value.address) == (code, "told so", ADDRESS)


@pytest.mark.parametrize("asked", ANSWERED)
def test_a_message_in_the_handshake_is_unexpected(asked: str) -> None:
    with pytest.raises(errors.ProtocolError, match="node7:4150") as caught:
        at(asked).receive(Frame(2, bytes(26)))
    assert "frame type 2" in str(caught.value)


@pytest.mark.parametrize("asked", ["TLS", "snappy", "SUB"])
@pytest.mark.parametrize("body", [b"", b"ok", b"OK ", b"CLOSE_WAIT", b"{}", b"x" * 1000])
def test_anything_but_ok_where_ok_is_due_is_unexpected(asked: str, body: bytes) -> None:
    with pytest.raises(errors.ProtocolError, match=f"expected OK to {asked}") as caught:
        at(asked).receive(Frame(0, body))
    assert len(str(caught.value)) < 300


def test_a_bad_reply_to_identify_names_the_nsqd() -> None:
    with pytest.raises(errors.ProtocolError, match="node7:4150"):
        started().receive(Frame(0, b"nope"))
