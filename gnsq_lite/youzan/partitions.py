"""Which partition a publish goes to, and what to do when that fails: pure.

A key's partition follows from the key and the number of partitions alone (YZ-5).  Where its leader cannot be reached
the publish fails or waits, it never goes elsewhere: the order of a key's messages rests on that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from gnsq_lite.clock import Clock
from gnsq_lite.dialect import Endpoint
from gnsq_lite.errors import (
    MpubFailedError,
    NotLeaderError,
    NotSent,
    NotWritableError,
    NsqdError,
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
        self._turns: dict[str, int] = {}

    def partition_for(
        self, topic: str, layout: TopicLayout, key: str | bytes | None, partition: int | None
    ) -> int | None:
        """Return the one partition that will do; None when any will.

        Raises:
            OptionError: both are given, or the topic has no such partition.
            NotSent: a key is given and nobody knows how many partitions there are; nothing was sent.
        """
        if partition is not None:
            if key is not None:
                raise OptionError("partition", partition, "cannot be given together with a key")
            if layout.partition_num and check_partition(partition) >= layout.partition_num:
                why = f"{topic} has {layout.partition_num} partitions, numbered from 0"
                raise OptionError("partition", partition, why)
            return check_partition(partition)
        if key is None:
            return None
        if not layout.partition_num:
            raise NotSent(f"{topic}: nsqlookupd does not say how many partitions it has, so a key has none")
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
        """Return the endpoint of a publish.

        *reachable* is what can be connected to; None: all that is listed.  Without key and partition the writable
        partitions take turns.

        Raises:
            PartitionUnavailable: the key's or the named partition has no leader that can be reached; nothing was sent.
            NotSent: no partition can be reached; nothing was sent.
            OptionError: as :meth:`partition_for`.
        """
        wanted = self.partition_for(topic, layout, key, partition)
        if wanted is not None:
            return self._endpoint_of(topic, layout, wanted, reachable)
        open_ones = [e for e in layout.endpoints() if reachable is None or e in reachable]
        if not open_ones:
            raise NotSent(f"no partition of {topic} can be written to")
        turn = self._turns.get(topic, -1) + 1
        self._turns[topic] = turn
        return open_ones[turn % len(open_ones)]

    def _endpoint_of(
        self, topic: str, layout: TopicLayout, partition: int, reachable: Collection[Endpoint] | None
    ) -> Endpoint:
        endpoint = layout.partitions.get(partition)
        if endpoint is None:
            if not layout.has_meta and len(layout.producers) == 1:  # a server alone: nobody lists partitions
                endpoint = Endpoint(*layout.producers[0].address, partition)
            else:
                raise PartitionUnavailable(topic, partition, "nsqlookupd lists no leader that takes writes")
        # One that is known without partitions takes any of its own.
        if reachable is not None and endpoint not in reachable and Endpoint(*endpoint.address) not in reachable:
            raise PartitionUnavailable(topic, partition, f"its leader {endpoint} cannot be reached")
        return endpoint


@dataclass(frozen=True, slots=True)
class Retry:
    """Look the topic up again, then publish again after *delay* seconds."""

    delay: float


class PublishRetry:
    """How often and how long one publish is tried again (YZ-8); one object per publish.

    The first retry follows the fresh lookup at once: after a planned move the new leader is known by then.  Later ones
    wait 0.1 s, 0.2 s, 0.4 s ... up to *longest*.

    Args:
        attempts: How often it may be sent in all.
        deadline: Monotonic seconds after which it is not sent again.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        attempts: int = 8,
        deadline: float | None = None,
        first: float = 0.1,
        longest: float = 2.0,
    ) -> None:
        if attempts < 1:
            raise OptionError("attempts", attempts, "must be at least 1")
        self._clock, self._deadline, self._first, self._longest = clock, deadline, first, longest
        self._left = attempts - 1
        self._failures = 0

    def after(self, error: NSQError) -> Retry | None:
        """Return what to do after *error*; None: raise it.

        A refusal by one that is not the leader, and what was never sent, may be sent again and doubles nothing that the
        server had confirmed; an outcome that is not known is for the caller to decide (PUB-2).
        """
        if not should_reroute(error) or self._left == 0:
            return None
        delay = 0.0 if self._failures == 0 else min(self._first * 2.0 ** min(self._failures - 1, 32), self._longest)
        if self._deadline is not None and self._clock.now() + delay >= self._deadline:
            return None
        self._left -= 1
        self._failures += 1
        return Retry(delay)


def should_reroute(error: NSQError) -> bool:
    """Whether *error* means that the partition's leader is to be looked up again (YZ-8, YZ-5).

    A leader that shuts down says so and has not taken the message; another one follows within a second or so.
    """
    if isinstance(error, (PubFailedError, MpubFailedError)):
        return error.text == "exiting"
    return isinstance(error, (*MOVED, PartitionUnavailable))


def stays_open(error: NsqdError) -> bool:
    """Whether the server keeps the connection of a publisher open after *error*; clients close it all the same."""
    return isinstance(error, (NotLeaderError, NotWritableError)) or not error.closes_connection


def moved_away(before: TopicLayout, now: TopicLayout) -> dict[int, Endpoint | None]:
    """Return the partitions whose leader changed, with the new one; None where there is none now (YZ-12)."""
    numbers: Iterable[int] = before.partitions.keys() | now.partitions.keys()
    return {
        number: now.partitions.get(number)
        for number in sorted(numbers)
        if before.partitions.get(number) != now.partitions.get(number)
    }
