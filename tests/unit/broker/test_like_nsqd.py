"""Where the broker is kinder than nsqd, unless like_nsqd is set."""

from __future__ import annotations

import pytest

from gnsq_lite.broker.options import BrokerOptions
from gnsq_lite.broker.topics import Topics
from tests.fakes import FakeClock
from tests.unit.broker.test_channels import FakeSubscriber


@pytest.mark.parametrize("like_nsqd", [True, False])
def test_a_new_channel_is_scanned_after_nsqd_has_learned_of_it(like_nsqd: bool) -> None:
    clock = FakeClock()
    topics = Topics(BrokerOptions(like_nsqd=like_nsqd), clock)
    channel = topics.get_channel(topics.get("t"), "ch")
    client = FakeSubscriber(ready=9)
    channel.add_client(client)
    topics.publish(topics.get("t"), [b"later"], 1.0)
    clock.advance(2.0)
    topics.scan()
    channel.pump(clock.now())
    assert client.bodies == ([] if like_nsqd else [b"later"])
    topics.learn_channels()
    topics.scan()
    channel.pump(clock.now())
    assert client.bodies == [b"later"]


@pytest.mark.parametrize("like_nsqd", [True, False])
def test_a_delay_is_lost_if_the_topic_has_more_than_its_memory_queue(like_nsqd: bool) -> None:
    topics = Topics(BrokerOptions(like_nsqd=like_nsqd, mem_queue_size=2), FakeClock())
    topics.publish(topics.get("t"), [b"1", b"2", b"3", b"4"], 600.0)
    channel = topics.get_channel(topics.get("t"), "ch")
    assert (len(channel.deferred), channel.depth) == ((2, 2) if like_nsqd else (4, 0))


def test_like_nsqd_scans_as_rarely_as_nsqd_unless_told_otherwise() -> None:
    assert BrokerOptions(like_nsqd=True).queue_scan_interval == 0.1
    assert BrokerOptions(like_nsqd=True, queue_scan_interval=0.5).queue_scan_interval == 0.5
