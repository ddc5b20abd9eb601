"""Words, keys and limits of Youzan's NSQ beyond plain NSQ's; lines are of youzan/nsq 0.3.7-HA.1.13.0."""

from __future__ import annotations

from typing import Final

#: Partitions are numbered 0 to 254.  consistence/nsqlookup_coord_api.go:15
MAX_PARTITIONS: Final = 255
#: The partition is the part of an internal id above this bit, in cluster mode; 0 on a server alone.
PARTITION_SHIFT: Final = 50
#: Bytes of a trace id and of an internal id.  nsqd/message.go:18
TRACE_ID_LENGTH: Final = 8
MAX_UINT64: Final = 2**64 - 1
#: Bytes an ext header may have: nsqd reads one back at 29 + its length, a uint16 that overflows, and panics; at each
#: delivery, after each restart.  nsqd/message.go:436
MAX_HEADER_BYTES: Final = 65535 - 29
#: Bytes that an ext header takes beside its JSON: its size (2), and the ext version that nsqd stores.
HEADER_EXTRA: Final = 3
#: Bytes after a message's id where SUB_ADVANCED or SUB_ORDERED was sent: queue offset (8), raw size (4).
TAIL_LENGTH: Final = 12
#: Ext versions: none; a tag of old servers, with JSON's layout; JSON.  internal/ext/ext.go
EXT_NONE: Final = 0
EXT_TAG: Final = 2
EXT_JSON: Final = 4

#: Ext keys that the server itself reads.  internal/ext/ext.go:13
TRACE_ID_KEY: Final = "##trace_id"
TAG_KEY: Final = "##client_dispatch_tag"
#: Keys with this start are the server's.
RESERVED: Final = "##"
#: Most characters of a tag.  internal/ext/ext.go:19
MAX_TAG: Final = 100
