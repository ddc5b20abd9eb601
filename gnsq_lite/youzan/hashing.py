"""Sharding key -> partition, as Youzan's own clients map it (YZ-5).

Two clients, two mappings, and they disagree: a topic whose keys are written by both needs one of them chosen for all
its writers, or messages of one key end up in two partitions and lose their order.

* ``"go"``: murmur3 x86_32 of the key's bytes, seed 0, unsigned, modulo the number of partitions
  (go-nsq/producer.go "GetPartitionID" with the hasher its examples set).
* ``"java"``: ``Math.abs(key.hashCode() % partitions)`` (nsqJavaSDK, Topic.java); the key is text, hashed over its
  UTF-16 code units.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from gnsq_lite._core import murmur3_32
from gnsq_lite.errors import OptionError

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
