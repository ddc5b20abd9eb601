"""Keys and limits of Youzan's NSQ.  Comments cite source lines of youzan/nsq 0.3.7-HA.1.13.0."""

from __future__ import annotations

from typing import Final

#: Partitions are numbered 0 to 254.  consistence/nsqlookup_coord_api.go:15
MAX_PARTITIONS: Final = 255
#: Number of the lowest bit of the partition in an internal id.  A standalone server's partition is 0.
PARTITION_SHIFT: Final = 50
#: Bytes of a trace id and of an internal id.  nsqd/message.go:18
TRACE_ID_LENGTH: Final = 8
MAX_UINT64: Final = 2**64 - 1
#: Maximum bytes of an ext header.  nsqd adds 29 to the length, in a uint16.  A longer header would overflow the uint16:
#: nsqd would then panic at each delivery, even after a restart.  nsqd/message.go:436
MAX_HEADER_BYTES: Final = 65535 - 29
#: Bytes that nsqd counts for an ext header in addition to its JSON: two for the size, and one for the ext version.
HEADER_EXTRA: Final = 3
#: Bytes of queue offset (8) and raw size (4).  They follow the id of each message after SUB_ADVANCED and SUB_ORDERED.
TAIL_LENGTH: Final = 12
#: Ext version of a message without a header.  The other versions are 2, for a header of an old server, and 4, for
#: JSON.  Both versions have the same length field.  internal/ext/ext.go
EXT_NONE: Final = 0
EXT_VERSIONS: Final = (EXT_NONE, 2, 4)

#: Header names that the server reads.  internal/ext/ext.go:13
TRACE_ID_KEY: Final = "##trace_id"
TAG_KEY: Final = "##client_dispatch_tag"
#: Prefix of the header names that the server reserves.
RESERVED: Final = "##"
#: Maximum characters of a tag.  internal/ext/ext.go:19
MAX_TAG: Final = 100
