"""Queues of the embedded broker: order, memory, and no lost or doubled message."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnsq_lite.broker.channels import Channel
from gnsq_lite.broker.messages import MESSAGE_OVERHEAD, StoredMessage, Subscriber
from gnsq_lite.broker.options import BrokerOptions
from gnsq_lite.broker.topics import PutRefused, Topics
from tests.fakes import FakeClock
from tests.profiles import repeats


class FakeSubscriber(Subscriber):
    """A client that keeps what it gets."""

    def __init__(self, client_id: int = 1, ready: int = 0, msg_timeout: float = 60.0) -> None:
        super().__init__(client_id, msg_timeout)
        self.ready_count = ready
        self.got: list[StoredMessage] = []
        self.disconnected = False

    def deliver(self, messages: list[StoredMessage]) -> None:
        self.got += messages

    def disconnect(self) -> None:
        self.disconnected = True

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.got]


class Rig:
    """The topics of one nsqd and a clock that is moved by hand."""

    def __init__(self, **options: Any) -> None:
        self.clock = FakeClock()
        self.topics = Topics(BrokerOptions(**options), self.clock)

    def publish(self, name: str, *bodies: bytes, defer: float = 0.0) -> None:
        self.topics.publish(self.topics.get(name), bodies, defer)
        self.pump()

    def subscribe(self, name: str, channel: str, consumer: Subscriber) -> Channel:
        found = self.topics.get_channel(self.topics.get(name), channel)
        found.add_client(consumer)
        self.pump()
        return found

    def pump(self) -> None:
        self.topics.shared.pump(self.clock.now())

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.topics.scan()
        self.pump()


def test_touching_again_and_again_takes_no_memory() -> None:
    rig, client = Rig(), FakeSubscriber(ready=1, msg_timeout=60.0)
    channel = rig.subscribe("t", "c", client)
    rig.publish("t", b"x")
    for _ in range(1000):
        rig.clock.advance(0.001)
        channel.touch(client, client.got[0].id, rig.clock.now())
    assert len(channel._timeouts) < 100
    rig.advance(59.9)
    assert channel.timeout_count == 0
    rig.advance(0.1)
    assert channel.timeout_count == 1


def test_the_timeouts_of_finished_messages_are_forgotten_long_before_they_are_due() -> None:
    rig, client = Rig(), FakeSubscriber(ready=10)
    channel = rig.subscribe("t", "c", client)
    for _ in range(1000):
        rig.publish("t", b"x")
        channel.finish(client, client.got[-1].id)
    assert len(channel._timeouts) < 100
    rig.advance(100.0)
    assert channel.timeout_count == 0


def test_clients_of_a_channel_share_its_messages_evenly() -> None:
    rig, clients = Rig(), [FakeSubscriber(n, ready=100) for n in range(4)]
    for client in clients:
        rig.subscribe("t", "c", client)
    rig.publish("t", *[b"x"] * 100)
    assert [len(client.got) for client in clients] == [25, 25, 25, 25]


def test_a_batch_that_does_not_fit_in_memory_is_refused_whole() -> None:
    rig = Rig(max_memory=3 * (10 + MESSAGE_OVERHEAD))
    rig.publish("t", b"x" * 10, b"y" * 10)
    with pytest.raises(PutRefused, match="memory limit"):
        rig.publish("t", b"x" * 10, b"y" * 10)
    rig.publish("t", b"z" * 10)
    assert rig.topics.get("t").depth == 3


_actions = st.lists(
    st.tuples(
        st.sampled_from(["pub", "fin", "req", "req_later", "touch", "rdy", "time", "leave", "join"]), st.integers(0, 5)
    ),
    max_size=60,
)


@settings(max_examples=repeats(150))
@given(_actions)
def test_no_message_is_lost_or_doubled_whatever_happens(actions: list[tuple[str, int]]) -> None:
    rig = Rig(max_msg_timeout=8.0)
    clients = [FakeSubscriber(n, ready=2, msg_timeout=3.0) for n in range(3)]
    channel = rig.subscribe("t", "c", clients[0])
    published, finished = 0, 0
    for action, n in actions:
        client = clients[n % 3]
        held = [m for m in channel.in_flight.values() if m.client is client]
        if action == "pub":
            rig.publish("t", *[b"x"] * n)
            published += n
        elif action == "fin" and held:
            channel.finish(client, held[0].id)
            finished += 1
        elif action in ("req", "req_later") and held:
            channel.requeue(client, held[0].id, 0.0 if action == "req" else 2.0, rig.clock.now())
        elif action == "touch" and held:
            channel.touch(client, held[0].id, rig.clock.now())
        elif action == "rdy":
            client.ready_count = n
            channel.wake()
        elif action == "time":
            rig.advance(float(n))
        elif action == "leave":
            rig.topics.leave(channel, client)
        elif action == "join" and client.client_id not in channel.clients:
            clients[n % 3] = FakeSubscriber(client.client_id, ready=2, msg_timeout=3.0)
            channel.add_client(clients[n % 3])
        rig.pump()
        assert published - finished == channel.depth + len(channel.in_flight) + len(channel.deferred)
        assert rig.topics.shared.meter.used == (published - finished) * (1 + MESSAGE_OVERHEAD)
        for each in channel.clients.values():
            own = sum(m.client is each for m in channel.in_flight.values())
            assert each.in_flight_count == own
