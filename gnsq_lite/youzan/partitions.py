"""Which partition a publish goes to, and which failures call for a fresh lookup: pure.

A key's partition follows from the key and the number of partitions alone (YZ-5).  Where its leader cannot be reached
the publish fails or waits, it never goes elsewhere: the order of a key's messages rests on that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import count

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
from gnsq_lite.youzan.hashing import KeyMapping, partition_of
from gnsq_lite.youzan.lookup import TopicLayout

#: The partition's leader is, or may be, elsewhere: look it up again (YZ-8).
MOVED = (NotLeaderError, NotWritableError, TopicNotExistError)


class PartitionChooser:
    """Chooses the partition, and so the endpoint, of each publish (YZ-4, YZ-5)."""

    def __init__(self, mapping: KeyMapping = "go") -> None:
        if mapping not in ("go", "java"):
            raise OptionError("key_mapping", mapping, "must be 'go' or 'java'")
        self._mapping: KeyMapping = mapping
        self._turns: defaultdict[str, Iterator[int]] = defaultdict(count)

    def check(self, key: str | bytes | None, partition: int | None) -> None:
        """Raise OptionError for a key and a partition together, no partition's number, or a key without a hash."""
        if partition is not None:
            check_partition(partition)
            if key is not None:
                raise OptionError("partition", partition, "cannot be given together with a key")
        elif key is not None and self._mapping == "java":  # "go" takes any bytes
            partition_of(key, 1, self._mapping)

    def partition_for(self, topic: str, layout: TopicLayout, key: str | bytes | None, partition: int | None) -> int:
        """Return the key's partition or the named one.

        Raises:
            OptionError: both are given, or neither, or the topic has no such partition.
            NotSent: a key is given and nobody knows how many partitions there are; nothing was sent.
        """
        self.check(key, partition)
        if partition is not None:
            if layout.partition_num and partition >= layout.partition_num:
                why = f"{topic} has {layout.partition_num} partitions, numbered from 0"
                raise OptionError("partition", partition, why)
            return partition
        if key is None:
            raise OptionError("key", key, "is needed where no partition is given")
        if not layout.partition_num:
            raise NotSent(f"{topic}: nsqlookupd does not say how many partitions it has; a key needs that")
        return partition_of(key, layout.partition_num, self._mapping)

    def turn(self, topic: str) -> int:
        """Return the number of the next turn of a topic's partitions; from any thread."""
        return next(self._turns[topic])


def should_reroute(error: NSQError) -> bool:
    """Whether *error* means that the partition's leader is to be looked up again (YZ-8, YZ-5).

    A leader that shuts down says so and has not taken the message; another one follows within a second or so.
    """
    if isinstance(error, (PubFailedError, MpubFailedError)):
        return error.text == "exiting"
    return isinstance(error, (*MOVED, PartitionUnavailable))
