"""Chooses the partition of a publish, and decides which errors require a new lookup.

The partition of a key depends only on the key and the number of partitions (YZ-5).  If the leader of the partition is
unreachable, the publish waits for a leader, and fails at its deadline.  It never goes to another partition, because the
messages of the key would lose their order.

Youzan's two clients map keys differently.  All writers of a topic must use the same mapping, because the messages of a
key would otherwise go to two partitions and lose their order.

* ``"go"``: the unsigned murmur3 x86_32 hash of the key's bytes (seed 0), modulo the number of partitions
  (``GetPartitionID`` in go-nsq/producer.go, with the hasher that go-nsq's examples use).
* ``"java"``: ``Math.abs(key.hashCode() % partitions)`` of the key as text (nsqJavaSDK, Topic.java).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from gnsq_lite._core import murmur3_32
from gnsq_lite.errors import (
    MpubFailedError,
    NotLeaderError,
    NotWritableError,
    NSQError,
    OptionError,
    PartitionUnavailable,
    PubFailedError,
    TopicNotExistError,
)

#: Errors after which the partition may have another leader (YZ-8).
MOVED = (NotLeaderError, NotWritableError, TopicNotExistError)

KeyMapping = Literal["go", "java"]

_U32 = 0xFFFFFFFF


def java_string_hash(text: str) -> int:
    """Compute Java's ``String.hashCode()``, a signed 32-bit hash of the UTF-16 code units of *text*."""
    units = text.encode("utf-16-be", "surrogatepass")
    h = 0
    for at in range(0, len(units), 2):
        h = (31 * h + int.from_bytes(units[at : at + 2], "big")) & _U32
    return h - (1 << 32) if h & 0x80000000 else h


def _java_hash(key: bytes) -> int:
    return abs(java_string_hash(key.decode()))


#: Hash function of each mapping.  The partition is the hash modulo the number of partitions.
HASHES: dict[KeyMapping, Callable[[bytes], int]] = {"go": murmur3_32, "java": _java_hash}


def partition_of(key: bytes, partition_num: int, mapping: KeyMapping = "go") -> int:
    """Return the partition of *key*.  Raises OptionError if the mapping is "java" and the key is not UTF-8 text."""
    try:
        return HASHES[mapping](key) % partition_num
    except UnicodeError:
        raise OptionError("key", key, f"is not UTF-8 text, which the {mapping!r} mapping needs") from None


def should_reroute(error: NSQError) -> bool:
    """Return whether the Writer must send a publish again to another leader after nsqd refused it (YZ-8, YZ-5).

    A leader that shuts down refuses messages with "exiting".  The cluster elects a new leader within about a second.
    """
    if isinstance(error, (PubFailedError, MpubFailedError)):
        return error.text == "exiting"
    return isinstance(error, (*MOVED, PartitionUnavailable))
