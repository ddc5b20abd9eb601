"""A key's messages go to one partition and nowhere else; the others take turns (YZ-4, YZ-5, YZ-8)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_lite.dialect import Endpoint
from gnsq_lite.errors import (
    BadTopicError,
    ConnectionLost,
    MpubFailedError,
    NotLeaderError,
    NotSent,
    NotWritableError,
    NSQError,
    OptionError,
    OutcomeUnknown,
    PartitionUnavailable,
    PubFailedError,
    TopicNotExistError,
)
from gnsq_lite.youzan.hashing import partition_of
from gnsq_lite.youzan.lookup import TopicLayout
from gnsq_lite.youzan.partitions import PartitionChooser, should_reroute


def layout(count: int, *listed: int) -> TopicLayout:
    partitions = {n: Endpoint("10.0.0.1", 4150 + n, n) for n in listed}
    return TopicLayout(partition_num=count, partitions=partitions, has_meta=True)


WHOLE = layout(4, 0, 1, 2, 3)


@pytest.mark.rule("YZ-4")
def test_without_a_key_the_writable_partitions_take_turns_per_topic() -> None:
    chooser = PartitionChooser()
    turns = [chooser.in_turn("t", layout(4, 0, 1, 3).endpoints()).partition for _ in range(6)]
    assert turns == [0, 1, 3, 0, 1, 3]
    assert chooser.in_turn("other", WHOLE.endpoints()).partition == 0
    assert chooser.choose("t", WHOLE, partition=2).partition == 2
    leaders = chooser.leaders("other", WHOLE)
    assert leaders is not None
    taken = [leaders.of(None, None) for _ in range(3)]
    assert [leader and leader.endpoint.partition for leader in taken] == [1, 2, 3]  # they are the same turns


@pytest.mark.rule("YZ-5")
@given(st.binary(max_size=12), st.sets(st.integers(0, 7)), st.sampled_from(["go", "java"]))
def test_a_key_goes_to_its_partition_or_nowhere(key: bytes, listed: set[int], mapping: Any) -> None:
    chooser = PartitionChooser(mapping)
    leaders = chooser.leaders("t", layout(8, *listed))
    assert leaders is not None
    try:
        wanted = partition_of(key, 8, mapping)
    except OptionError:
        assert leaders.of(key, None) is None
        return
    found = leaders.of(key, None)
    assert (found and found.endpoint.partition) == (wanted if wanted in listed else None)
    if wanted in listed:
        assert chooser.choose("t", layout(8, *listed), key=key).partition == wanted
        reachable = {e for e in layout(8, *listed).endpoints() if e.partition != wanted}
        with pytest.raises(PartitionUnavailable) as unreachable:
            chooser.choose("t", layout(8, *listed), key=key, reachable=reachable)
        assert unreachable.value.partition == wanted
    else:
        with pytest.raises(PartitionUnavailable) as missing:
            chooser.choose("t", layout(8, *listed), key=key)
        assert missing.value.partition == wanted


def test_the_number_of_partitions_and_not_the_listed_ones_decides_the_mapping() -> None:
    for key in (b"a", b"key1", b"order-123"):
        assert PartitionChooser().partition_for("t", layout(4, 0), key, None) == partition_of(key, 4)


def test_a_key_without_a_known_number_of_partitions_is_not_sent() -> None:
    with pytest.raises(NotSent, match="how many"):
        PartitionChooser().choose("t", TopicLayout(producers=(Endpoint("a", 1),)), key=b"k")


def test_what_contradicts_itself_or_the_topic_is_an_option_error() -> None:
    chooser = PartitionChooser()
    with pytest.raises(OptionError, match="together with a key"):
        chooser.choose("t", WHOLE, key=b"k", partition=0)
    with pytest.raises(OptionError, match="no partition is given"):
        chooser.choose("t", WHOLE)
    with pytest.raises(OptionError, match="4 partitions"):
        chooser.choose("t", WHOLE, partition=4)
    with pytest.raises(OptionError, match="between 0 and 254"):
        chooser.choose("t", WHOLE, partition=-1)
    with pytest.raises(OptionError, match="key_mapping"):
        PartitionChooser("rust")  # type: ignore[arg-type]


def test_with_no_partition_to_write_to_nothing_is_sent() -> None:
    with pytest.raises(NotSent, match="no partition"):
        PartitionChooser().in_turn("t", ())
    assert (leaders := PartitionChooser().leaders("t", layout(4))) is not None
    assert leaders.of(None, None) is leaders.of(None, 0) is leaders.of(b"k", None) is None


def test_a_server_alone_is_sent_the_partition_that_was_named() -> None:
    alone = TopicLayout(producers=(Endpoint("a", 1),))
    assert PartitionChooser().choose("t", alone, partition=3) == Endpoint("a", 1, 3)
    assert PartitionChooser().leaders("t", alone) is None


# -- what calls for a fresh lookup --


@pytest.mark.rule("YZ-8")
@pytest.mark.parametrize(
    "error",
    [
        NotLeaderError("E_FAILED_ON_NOT_LEADER"),
        NotWritableError("E_FAILED_ON_NOT_WRITABLE"),
        TopicNotExistError("E_TOPIC_NOT_EXIST"),
        PubFailedError("E_PUB_FAILED", "exiting"),
        MpubFailedError("E_MPUB_FAILED", "exiting"),
        PartitionUnavailable("t", 0, "no leader"),
    ],
)
def test_an_error_that_tells_of_no_leader_calls_for_a_lookup(error: NSQError) -> None:
    assert should_reroute(error)


@pytest.mark.parametrize(
    "error",
    [
        OutcomeUnknown("x"),
        PubFailedError("E_PUB_FAILED", "disk full"),
        MpubFailedError("E_MPUB_FAILED", "disk full"),
        BadTopicError("E_BAD_TOPIC"),
        ConnectionLost("a:1", "reset"),
        NotSent("x"),
    ],
)
def test_anything_else_is_not_rerouted(error: NSQError) -> None:
    assert not should_reroute(error)
