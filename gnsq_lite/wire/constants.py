"""Bytes and limits of NSQ's V2 protocol, with their sources.

A text in quotes is a section of NSQ's "TCP Protocol Spec".  Line numbers are those of nsqd v1.3.0.
"""

from __future__ import annotations

from typing import Final

#: First bytes on a connection: the protocol's version (WIRE-1).  "TCP Protocol Spec", introduction.
MAGIC_V2: Final = b"  V2"

# -- frames (WIRE-2).  "Data Format" --------------------------------------------------------------------------------

FRAME_RESPONSE: Final = 0
FRAME_ERROR: Final = 1
FRAME_MESSAGE: Final = 2
#: Bytes of a frame's size field.  The size is the number of bytes after this field.
SIZE_LENGTH: Final = 4
#: Bytes of a frame's type field, which is also the smallest valid size of a frame (WIRE-4).
TYPE_LENGTH: Final = 4
#: Bytes before a frame's data.
FRAME_HEAD_LENGTH: Final = SIZE_LENGTH + TYPE_LENGTH
#: Maximum accepted size of a response or an error.  nsqd sends a few KiB at most (WIRE-4).
MAX_TEXT_FRAME: Final = 64 * 1024

#: nsqd sends this response every heartbeat interval, and the client answers NOP (HB-1).  nsqd/protocol_v2.go:27
HEARTBEAT: Final = b"_heartbeat_"
#: The response to a successful command.  nsqd/protocol_v2.go:28
OK: Final = b"OK"
#: The response to CLS, after which nsqd sends no messages.  "CLS"
CLOSE_WAIT: Final = b"CLOSE_WAIT"

# -- messages (WIRE-3).  "Data Format", nsqd/message.go:10 -----------------------------------------------------------

MESSAGE_ID_LENGTH: Final = 16
#: Timestamp (8), attempts (2), id (16).
MESSAGE_HEAD_LENGTH: Final = 8 + 2 + MESSAGE_ID_LENGTH

# -- names (WIRE-6).  internal/protocol/names.go:7 -------------------------------------------------------------------

#: Maximum characters of a topic's or channel's name, including the suffix.
MAX_NAME: Final = 64
#: Suffix of the names of topics and channels that nsqd deletes with their last client.
EPHEMERAL: Final = "#ephemeral"

# -- defaults of nsqd's configuration --------------------------------------------------------------------------------

#: Maximum RDY if the reply to IDENTIFY has none (NEG-2).  nsqd/options.go:136
DEFAULT_MAX_RDY_COUNT: Final = 2500
#: Seconds for which nsqd waits for an answer to a message.  nsqd/options.go:128
DEFAULT_MSG_TIMEOUT: Final = 60.0
#: Maximum seconds that TOUCH can keep a message in flight.  nsqd/options.go:129
DEFAULT_MAX_MSG_TIMEOUT: Final = 900.0
#: DEFLATE level if the client requests none.  nsqd/protocol_v2.go:398
DEFAULT_DEFLATE_LEVEL: Final = 6

# -- limits of the encoding ------------------------------------------------------------------------------------------

#: Sizes and counts are signed 32-bit numbers on nsqd's side.  nsqd/protocol_v2.go:1010
MAX_INT32: Final = 2**31 - 1
#: Milliseconds of the longest time that fits Go's int64 nanoseconds.  nsqd does not check for an overflow.
MAX_DURATION_MS: Final = (2**63 - 1) // 1_000_000
