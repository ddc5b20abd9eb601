"""Which partition a publish goes to, and which failures call for a fresh lookup: pure.

A key's partition follows from the key and the number of partitions alone (YZ-5).  Where its leader cannot be reached
the publish fails or waits, it never goes elsewhere: the order of a key's messages rests on that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from itertools import count

from gnsq_lite.dialect import Endpoint
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
from gnsq_lite.policy.leaders import Leader, Leaders
from gnsq_lite.youzan.commands import check_partition, publish_head
from gnsq_lite.youzan.hashing import HASHES, KeyMapping, partition_of
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

    def choose(
        self,
        topic: str,
        layout: TopicLayout,
        *,
        key: str | bytes | None = None,
        partition: int | None = None,
        reachable: Collection[Endpoint] | None = None,
    ) -> Endpoint:
        """Return the endpoint of a publish that has a key or names its partition.

        *reachable* is what can be connected to; None: all that is listed.

        Raises:
            PartitionUnavailable: the partition has no leader that can be reached; nothing was sent.
            NotSent, OptionError: as :meth:`partition_for`.
        """
        return self._endpoint_of(topic, layout, self.partition_for(topic, layout, key, partition), reachable)

    def leaders(self, topic: str, layout: TopicLayout) -> Leaders | None:
        """Return what chooses as this does, and takes the same turns; None where nobody tells of partitions."""
        if not layout.has_meta or not 0 <= max(layout.partitions, default=0) < layout.partition_num:
            return None
        listed = layout.partitions
        made = {number: Leader(endpoint, publish_head(topic, number)) for number, endpoint in listed.items()}
        by_number = [made.get(number) for number in range(layout.partition_num)]
        return Leaders(by_number, self._turns[topic], HASHES[self._mapping])

    def in_turn(self, topic: str, endpoints: Sequence[Endpoint]) -> Endpoint:
        """Return the one of *endpoints* whose turn it is; from any thread.  Raises NotSent: there is none."""
        if not endpoints:
            raise NotSent(f"no partition of {topic} can be written to")
        return endpoints[next(self._turns[topic]) % len(endpoints)]

    def _endpoint_of(
        self, topic: str, layout: TopicLayout, partition: int, reachable: Collection[Endpoint] | None
    ) -> Endpoint:
        endpoint = layout.partitions.get(partition)
        if endpoint is None:
            if not layout.has_partitions and len(layout.producers) == 1:  # a server alone: nobody lists partitions
                endpoint = Endpoint(*layout.producers[0].address, partition)
            else:
                raise PartitionUnavailable(
                    topic,
                    partition,
                    "no leader is known that accepts writes, may be connected to and was not just lost",
                )
        # One that is known without partitions takes any of its own.
        if reachable is not None and endpoint not in reachable and Endpoint(*endpoint.address) not in reachable:
            raise PartitionUnavailable(topic, partition, f"its leader {endpoint} cannot be reached")
        return endpoint


def should_reroute(error: NSQError) -> bool:
    """Whether *error* means that the partition's leader is to be looked up again (YZ-8, YZ-5).

    A leader that shuts down says so and has not taken the message; another one follows within a second or so.
    """
    if isinstance(error, (PubFailedError, MpubFailedError)):
        return error.text == "exiting"
    return isinstance(error, (*MOVED, PartitionUnavailable))
