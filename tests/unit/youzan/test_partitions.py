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
from gnsq_lite.youzan.lookup import TopicLayout
from gnsq_lite.youzan.partitions import partition_for, partition_of, should_reroute


def layout(count: int, *listed: int) -> TopicLayout:
    partitions = {n: Endpoint("10.0.0.1", 4150 + n, n) for n in listed}
    return TopicLayout(partition_num=count, partitions=partitions, has_meta=True)


WHOLE = layout(4, 0, 1, 2, 3)


@pytest.mark.rule("YZ-5")
@given(st.binary(max_size=12), st.sampled_from(["go", "java"]))
def test_a_key_goes_to_its_partition(key: bytes, mapping: Any) -> None:
    try:
        wanted = partition_of(key, 8, mapping)
    except OptionError:
        with pytest.raises(OptionError):
            partition_for("t", layout(8), key, None, mapping)
    else:
        assert partition_for("t", layout(8, 1), key, None, mapping) == wanted


def test_the_number_of_partitions_and_not_the_listed_ones_decides_the_mapping() -> None:
    for key in (b"a", b"key1", b"order-123"):
        assert partition_for("t", layout(4, 0), key, None) == partition_of(key, 4)


def test_a_key_without_a_known_number_of_partitions_is_not_sent() -> None:
    with pytest.raises(NotSent, match="how many"):
        partition_for("t", TopicLayout(producers=(Endpoint("a", 1),)), b"k", None)


def test_what_contradicts_itself_or_the_topic_is_an_option_error() -> None:
    assert partition_for("t", WHOLE, None, 2) == 2
    with pytest.raises(OptionError, match="together with a key"):
        partition_for("t", WHOLE, b"k", 0)
    with pytest.raises(OptionError, match="4 partitions"):
        partition_for("t", WHOLE, None, 4)
    with pytest.raises(OptionError, match="between 0 and 254"):
        partition_for("t", WHOLE, None, -1)


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
