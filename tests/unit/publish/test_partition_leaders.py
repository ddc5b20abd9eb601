"""Following a partition's leader; without a network and without waiting."""

from __future__ import annotations

from typing import Any

import pytest

from gnsq_lite import errors
from gnsq_lite.dialect import Endpoint, PublishRequest
from gnsq_lite.net.loop import loop_here
from gnsq_lite.options import ConnectionOptions, LookupOptions, WriterReconnectOptions
from gnsq_lite.publish.partition_leaders import Topic, lightest
from gnsq_lite.publish.producer import Producer
from gnsq_lite.publish.publication import Publication
from gnsq_lite.publish.settings import ProducerSettings
from gnsq_lite.youzan.dialect import YouzanDialect
from tests.fakes import FakeClock


class NoDiscovery:
    """Stands in for the discovery of a topic: nobody answers."""

    def poke(self) -> None:
        pass

    def stop(self) -> None:
        pass


@pytest.mark.rule("YZ-8")
def test_the_deadline_alone_limits_how_long_a_leader_is_followed() -> None:
    clock = FakeClock()
    settings = ProducerSettings(
        dialect=YouzanDialect(),
        endpoints=(),
        lookupds=("127.0.0.1:1",),
        connection=ConnectionOptions(),
        reconnect=WriterReconnectOptions(),
        lookup=LookupOptions(),
        max_body_size=5_000_000,
        max_pending=1_000_000,
        coalesce=False,
    )
    core: Any = Producer(loop_here(), settings, clock)
    topic = core.routes._topics["t"] = Topic()
    topic.discovery = NoDiscovery()  # type: ignore[assignment]
    publication = Publication(core.loop, "t", (b"x",), 86_400.0, clock.now() + 86_400.0)
    publication.request = PublishRequest(topic="t", bodies=(b"x",), key=b"k")
    core.submit(publication)
    try:
        for _ in range(5_000):
            topic.waiting.clear()
            core.routes.retry(publication, errors.NotLeaderError("E_FAILED_ON_NOT_LEADER"))
            assert publication.again_at - clock.now() <= 2.0
            clock.advance(2.0)
        assert not publication.done()
        clock.advance(86_400.0)
        core._expire()
        with pytest.raises(errors.NotLeaderError):
            publication.result(0)
    finally:
        core.routes.close()
        core._alarm.stop()


@pytest.mark.rule("YZ-4")
def test_the_partitions_that_owe_the_fewest_answers_are_chosen_among() -> None:
    owed = {Endpoint("a", 1, 0): 3, Endpoint("a", 1, 1): 1, Endpoint("b", 1, 2): 1}
    assert lightest(owed, owed.__getitem__) == [Endpoint("a", 1, 1), Endpoint("b", 1, 2)]
    assert lightest([], owed.__getitem__) == []
