"""Keys and limits of Youzan's NSQ; source lines are of youzan/nsq 0.3.7-HA.1.13.0."""

from __future__ import annotations

from typing import Final

#: Partitions are numbered 0 to 254.  consistence/nsqlookup_coord_api.go:15
MAX_PARTITIONS: Final = 255
#: Internal ids hold the partition in the bits from this one upwards in cluster mode, and 0 on a standalone server.
PARTITION_SHIFT: Final = 50
#: Bytes of a trace id and of an internal id.  nsqd/message.go:18
TRACE_ID_LENGTH: Final = 8
MAX_UINT64: Final = 2**64 - 1
#: Maximum bytes of an ext header.  nsqd adds 29 to the length in a uint16; a longer header overflows the uint16, and
#: nsqd panics at each delivery, also after a restart.  nsqd/message.go:436
MAX_HEADER_BYTES: Final = 65535 - 29
#: Bytes of an ext header besides its JSON: the size (2), and the ext version that nsqd stores (1).
HEADER_EXTRA: Final = 3
#: Bytes after a message's id, after SUB_ADVANCED or SUB_ORDERED: queue offset (8), raw size (4).
TAIL_LENGTH: Final = 12
#: Ext versions: no header; a tag of old servers, laid out like JSON; JSON.  internal/ext/ext.go
EXT_NONE: Final = 0
EXT_TAG: Final = 2
EXT_JSON: Final = 4

#: Ext keys that the server itself reads.  internal/ext/ext.go:13
TRACE_ID_KEY: Final = "##trace_id"
TAG_KEY: Final = "##client_dispatch_tag"
#: Prefix of keys that are reserved for the server.
RESERVED: Final = "##"
#: Maximum characters of a tag.  internal/ext/ext.go:19
MAX_TAG: Final = 100
