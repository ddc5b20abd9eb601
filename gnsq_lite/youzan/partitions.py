"""Which partition a publish goes to, and which failures call for a fresh lookup: pure.

A key's partition follows from the key and the number of partitions alone (YZ-5).  Where its leader cannot be reached
the publish fails or waits, it never goes elsewhere: the order of a key's messages rests on that.

Youzan's two clients map keys differently: a topic whose keys are written by both needs one mapping for all its writers,
or messages of one key end up in two partitions and lose their order.

* ``"go"``: murmur3 x86_32 of the key's bytes, seed 0, unsigned, modulo the number of partitions
  (go-nsq/producer.go "GetPartitionID" with the hasher its examples set).
* ``"java"``: ``Math.abs(key.hashCode() % partitions)`` (nsqJavaSDK, Topic.java); the key is text, hashed over its
  UTF-16 code units.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from gnsq_lite._core import murmur3_32
from gnsq_lite.errors import (
    MpubFailedError,
    NotLeaderError,
    NotSent,
    NotWritableError,
    NSQError,
    OptionError,
    PartitionUnavailable,
    PubFailedError,
    TopicNotExistError,
)
from gnsq_lite.youzan.commands import check_partition
from gnsq_lite.youzan.lookup import TopicLayout

#: The partition's leader is, or may be, elsewhere: look it up again (YZ-8).
MOVED = (NotLeaderError, NotWritableError, TopicNotExistError)

KeyMapping = Literal["go", "java"]

_U32 = 0xFFFFFFFF


def java_string_hash(text: str) -> int:
    """Return what Java's ``String.hashCode()`` gives: signed, 32 bits, over UTF-16 code units."""
    units = text.encode("utf-16-be", "surrogatepass")
    h = 0
    for at in range(0, len(units), 2):
        h = (31 * h + int.from_bytes(units[at : at + 2], "big")) & _U32
    return h - (1 << 32) if h & 0x80000000 else h


def _java_hash(key: bytes) -> int:
    return abs(java_string_hash(key.decode()))


#: What each mapping makes of a key, to be taken modulo the number of partitions; UnicodeError: "java" needs text.
HASHES: dict[KeyMapping, Callable[[bytes], int]] = {"go": murmur3_32, "java": _java_hash}


def partition_of(key: str | bytes, partition_num: int, mapping: KeyMapping = "go") -> int:
    """Return the partition, 0 to ``partition_num - 1``, that *key* belongs to.

    The two types of one key give the same: text is hashed as UTF-8 by "go", bytes are read as UTF-8 by "java".
    Raises OptionError for a key that is no text where the mapping needs text, or no partitions.
    """
    if not isinstance(key, (str, bytes)):
        raise OptionError("key", key, "must be bytes or text")
    if partition_num < 1:
        raise OptionError("partition_num", partition_num, "must be at least 1")
    if mapping not in HASHES:
        raise OptionError("key_mapping", mapping, "must be 'go' or 'java'")
    try:
        return HASHES[mapping](key if isinstance(key, bytes) else key.encode()) % partition_num
    except UnicodeError:
        raise OptionError("key", key, f"is not UTF-8 text, which the {mapping!r} mapping needs") from None


def check_place(key: str | bytes | None, partition: int | None, mapping: KeyMapping) -> None:
    """Raise OptionError for a key and a partition together, no partition's number, or a key without a hash."""
    if partition is not None:
        check_partition(partition)
        if key is not None:
            raise OptionError("partition", partition, "cannot be given together with a key")
    elif key is not None and mapping == "java":  # "go" takes any bytes
        partition_of(key, 1, mapping)


def partition_for(
    topic: str, layout: TopicLayout, key: str | bytes | None, partition: int | None, mapping: KeyMapping = "go"
) -> int:
    """Return the key's partition or the named one; one of the two is given.

    Raises:
        OptionError: the topic has no such partition, or as :func:`check_place`.
        NotSent: there is a key, but the number of partitions is unknown; nothing was sent.
    """
    check_place(key, partition, mapping)
    if partition is not None:
        if layout.partition_num and partition >= layout.partition_num:
            raise OptionError("partition", partition, f"{topic} has {layout.partition_num} partitions, numbered from 0")
        return partition
    if not layout.partition_num:
        raise NotSent(f"{topic}: nsqlookupd does not say how many partitions it has; a key needs that")
    return partition_of(key or b"", layout.partition_num, mapping)


def should_reroute(error: NSQError) -> bool:
    """Whether *error* means that the partition's leader is to be looked up again (YZ-8, YZ-5).

    A leader that shuts down says so and has not taken the message; another one follows within a second or so.
    """
    if isinstance(error, (PubFailedError, MpubFailedError)):
        return error.text == "exiting"
    return isinstance(error, (*MOVED, PartitionUnavailable))
