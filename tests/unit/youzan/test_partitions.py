"""Errors after which a Writer looks the topic up again (YZ-8)."""

from __future__ import annotations

import pytest

from gnsq_lite.errors import (
    BadTopicError,
    ConnectionLost,
    MpubFailedError,
    NotLeaderError,
    NotSent,
    NotWritableError,
    NSQError,
    OutcomeUnknown,
    PartitionUnavailable,
    PubFailedError,
    TopicNotExistError,
)
from gnsq_lite.youzan.partitions import should_reroute

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
