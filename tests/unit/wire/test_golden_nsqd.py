"""The library decodes recorded bytes of nsqd."""

from __future__ import annotations

from typing import Any

import pytest

from gnsq_lite import errors
from gnsq_lite.wire.constants import CLOSE_WAIT, FRAME_ERROR
from gnsq_lite.wire.frames import HEARTBEAT_FRAME, OK_FRAME, Frame, FrameDecoder
from tests.unit.wire.golden import NAMES, golden

STREAMS = ("deflate_stream", "snappy_stream")
PLAIN = [name for name in NAMES if name not in STREAMS]


def decoded(name: str) -> tuple[list[Any], list[Frame]]:
    decoder = FrameDecoder(1 << 20, lambda owner, *fields: fields)
    result = decoder.feed(golden(name))
    assert decoder.error is None
    assert decoder.pending_bytes == 0
    return result


#: The last frame of each file that ends in an error: its class, and part of its text.
ERRORS: dict[str, tuple[type[errors.NsqdError], str]] = {
    "error_auth_disabled": (errors.AuthDisabledError, "AUTH disabled"),
    "error_auth_empty": (errors.BadBodyError, "AUTH invalid body size 0"),
    "error_auth_failed": (errors.AuthFailedError, "AUTH failed"),
    "error_auth_first": (errors.AuthFirstError, "AUTH required before SUB"),
    "error_auth_first_pub": (errors.AuthFirstError, "AUTH required before PUB"),
    "error_auth_twice": (errors.InvalidError, "AUTH already set"),
    "error_bad_magic": (errors.BadProtocolError, ""),
    "error_cls_before_sub": (errors.InvalidError, "cannot CLS in current state"),
    "error_dpub_empty": (errors.BadMessageError, "DPUB invalid message body size 0"),
    "error_dpub_negative": (errors.InvalidError, "DPUB could not parse timeout -1"),
    "error_dpub_too_late": (errors.InvalidError, "DPUB timeout 3600001 out of range 0-3600000"),
    "error_fin_bad_id": (errors.InvalidError, "invalid message ID"),
    "error_fin_before_sub": (errors.InvalidError, "cannot FIN in current state"),
    "error_fin_failed": (errors.FinFailedError, "FIN 0123456789abcdef failed ID not in flight"),
    "error_identify_both_codecs": (errors.IdentifyFailedError, "cannot enable both deflate and snappy compression"),
    "error_identify_buffer_timeout": (errors.BadBodyError, "IDENTIFY output buffer timeout (24) is invalid"),
    "error_identify_empty": (errors.BadBodyError, "IDENTIFY invalid body size 0"),
    "error_identify_heartbeat": (errors.BadBodyError, "IDENTIFY heartbeat interval (500) is invalid"),
    "error_identify_msg_timeout": (errors.BadBodyError, "IDENTIFY msg timeout (999) is invalid"),
    "error_identify_no_json": (errors.BadBodyError, "IDENTIFY failed to decode JSON body"),
    "error_identify_sample_rate": (errors.BadBodyError, "IDENTIFY sample rate (100) is invalid"),
    "error_identify_twice": (errors.InvalidError, "cannot IDENTIFY in current state"),
    "error_invalid_command": (errors.InvalidError, "invalid command FOO"),
    "error_mpub_bad_topic": (errors.BadTopicError, "E_BAD_TOPIC MPUB topic name"),
    "error_mpub_empty_message": (errors.BadMessageError, "MPUB invalid message(0) body size 0"),
    "error_mpub_no_messages": (errors.BadBodyError, "MPUB invalid message count 0"),
    "error_mpub_too_big": (errors.BadBodyError, "MPUB body too big 5242881 > 5242880"),
    "error_pub_bad_topic": (errors.BadTopicError, 'PUB topic name "bad!t" is not valid'),
    "error_pub_empty": (errors.BadMessageError, "PUB invalid message body size 0"),
    "error_pub_too_big": (errors.BadMessageError, "PUB message too big 1048577 > 1048576"),
    "error_rdy_before_sub": (errors.InvalidError, "cannot RDY in current state"),
    "error_rdy_negative": (errors.InvalidError, "RDY could not parse count -1"),
    "error_rdy_too_many": (errors.InvalidError, "RDY count 2501 out of range 0-2500"),
    "error_req_failed": (errors.ReqFailedError, "REQ 0123456789abcdef failed ID not in flight"),
    "error_sub_bad_channel": (errors.BadChannelError, 'SUB channel name "bad!c" is not valid'),
    "error_sub_bad_topic": (errors.BadTopicError, 'SUB topic name "bad!t" is not valid'),
    "error_sub_failed": (errors.SubFailedError, "SUB failed consumers for golden:ch exceeds limit of 1"),
    "error_sub_heartbeats_off": (errors.InvalidError, "cannot SUB with heartbeats disabled"),
    "error_sub_no_channel": (errors.InvalidError, "SUB insufficient number of parameters"),
    "error_sub_twice": (errors.InvalidError, "cannot SUB in current state"),
    "error_tls_required": (errors.TLSRequiredError, "cannot SUB in current state (TLS required)"),
    "error_touch_failed": (errors.TouchFailedError, "TOUCH 0123456789abcdef failed ID not in flight"),
    "error_unauthorized_none": (errors.UnauthorizedError, "AUTH no authorizations found"),
    "error_unauthorized_sub": (errors.UnauthorizedError, 'AUTH failed for SUB on "golden" "ch"'),
}


@pytest.mark.rule("ERR-3")
@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("error_")])
def test_an_error_frame_of_a_real_nsqd_has_its_class_and_keeps_its_text(name: str) -> None:
    _, frames = decoded(name)
    kind, body = frames[-1]
    assert kind == FRAME_ERROR
    error = errors.error_for(body, "nsqd:4150")
    wanted, text = ERRORS[name]
    assert type(error) is wanted
    assert text in error.text
    assert body.decode() in str(error)


@pytest.mark.rule("ERR-1")
def test_late_answers_leave_the_connection_open() -> None:
    _, frames = decoded("two_errors_that_leave_it_open")
    assert [frame.kind for frame in frames] == [0, 1, 1, 0]
    assert frames[-1].body == CLOSE_WAIT
    assert not any(errors.error_for(frame.body).closes_connection for frame in frames[1:3])


@pytest.mark.rule("WIRE-3")
def test_a_message_of_a_real_nsqd_has_its_fields() -> None:
    ((timestamp, attempts, message_id, body),), frames = decoded("message")
    assert frames == [OK_FRAME, OK_FRAME, Frame(0, b"CLOSE_WAIT")]
    assert (attempts, body) == (1, b"hello")
    assert 1_700_000_000 < timestamp / 1e9 < 2_500_000_000
    assert int(message_id, 16) > 0


@pytest.mark.rule("WIRE-3")
def test_a_message_that_comes_again_counts_its_attempts_and_keeps_the_rest() -> None:
    messages, _ = decoded("message_attempts")
    assert [message[1] for message in messages] == [1, 2, 3]
    assert len({(message[0], message[2], message[3]) for message in messages}) == 1


@pytest.mark.parametrize(
    ("name", "frames"),
    [
        ("identify_plain_ok", [OK_FRAME]),
        ("pub_ok", [OK_FRAME, OK_FRAME]),
        ("mpub_ok", [OK_FRAME]),
        ("close_wait", [OK_FRAME, Frame(0, b"CLOSE_WAIT")]),
        ("heartbeat", [OK_FRAME, HEARTBEAT_FRAME]),
    ],
)
def test_a_response_of_a_real_nsqd_is_read(name: str, frames: list[Frame]) -> None:
    assert decoded(name) == ([], frames)


@pytest.mark.rule("WIRE-5")
@pytest.mark.parametrize("name", PLAIN)
def test_each_file_reads_the_same_in_every_split(name: str) -> None:
    data, whole = golden(name), decoded(name)
    for at in range(len(data) + 1):
        decoder = FrameDecoder(1 << 20, lambda owner, *fields: fields)
        parts = [decoder.feed(data[:at]), decoder.feed(data[at:])]
        assert (parts[0][0] + parts[1][0], parts[0][1] + parts[1][1]) == whole
