from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_lite.errors import ProtocolError
from tests.fakes import decode_message

ID = b"0123456789abcdef"


@pytest.mark.rule("WIRE-3")
def test_a_messages_fields_stand_where_the_specification_says() -> None:
    data = b"\x00\x00\x00\x00\x00\x00\x01\x02" + b"\x03\x04" + ID + b"the body"
    assert decode_message(data) == (0x0102, 0x0304, ID, b"the body")


@pytest.mark.rule("WIRE-3")
def test_attempts_are_unsigned_and_the_timestamp_is_not() -> None:
    timestamp, attempts, _, body = decode_message(b"\xff" * 8 + b"\x9c\x40" + ID)
    assert (timestamp, attempts, body) == (-1, 40000, b"")


@pytest.mark.rule("WIRE-4")
def test_a_message_has_26_bytes_at_least() -> None:
    assert decode_message(bytes(26))[3] == b""
    with pytest.raises(ProtocolError, match="25 bytes"):
        decode_message(bytes(25))


@given(st.binary(max_size=60))
def test_any_bytes_are_a_message_or_a_frame_error(data: bytes) -> None:
    try:
        fields = decode_message(data)
    except ProtocolError:
        assert len(data) < 26
    else:
        assert struct.pack(">qH16s", *fields[:3]) + fields[3] == data
