"""Queues of the embedded broker: who gets what, when, and how often."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnsq_lite.broker.channels import AnswerRefused, TooManyConsumers
from gnsq_lite.broker.messages import MESSAGE_OVERHEAD
from gnsq_lite.broker.topics import PutRefused
from tests.profiles import repeats
from tests.unit.broker.helpers import FakeSubscriber, Rig


def test_every_channel_gets_its_own_copy_of_a_message() -> None:
    rig, one, two = Rig(), FakeSubscriber(1, ready=10), FakeSubscriber(2, ready=10)
    first, second = rig.subscribe("t", "a", one), rig.subscribe("t", "b", two)
    rig.publish("t", b"x")
    assert (one.bodies, two.bodies) == ([b"x"], [b"x"])
    assert one.got[0].id == two.got[0].id
    first.finish(one, one.got[0].id)
    assert (len(first.in_flight), len(second.in_flight)) == (0, 1)


def test_attempts_on_one_channel_do_not_count_on_another() -> None:
    rig, one, two = Rig(), FakeSubscriber(1, ready=1), FakeSubscriber(2)
    first, second = rig.subscribe("t", "a", one), rig.subscribe("t", "b", two)
    rig.publish("t", b"x")
    first.requeue(one, one.got[0].id, 0.0, rig.clock.now())
    rig.pump()
    two.ready_count = 1
    second.wake()
    rig.pump()
    assert (one.got[-1].attempts, two.got[-1].attempts) == (2, 1)


def test_the_first_channel_gets_the_backlog_and_a_later_one_does_not() -> None:
    rig, one, two = Rig(), FakeSubscriber(1, ready=10), FakeSubscriber(2, ready=10)
    rig.publish("t", b"1", b"2")
    assert rig.topics.get("t").depth == 2
    rig.subscribe("t", "a", one)
    rig.subscribe("t", "b", two)
    rig.publish("t", b"3")
    assert (one.bodies, two.bodies) == ([b"1", b"2", b"3"], [b"3"])


@pytest.mark.parametrize("ready", [0, 1, 3, 4])
def test_a_client_has_never_more_in_flight_than_its_rdy(ready: int) -> None:
    rig, client = Rig(), FakeSubscriber(ready=ready)
    channel = rig.subscribe("t", "c", client)
    rig.publish("t", *[b"x"] * 4)
    assert len(client.got) == min(ready, 4)
    assert channel.depth == 4 - len(client.got)


def test_rdy_does_not_count_down_a_finished_message_makes_room_for_the_next() -> None:
    rig, client = Rig(), FakeSubscriber(ready=1)
    channel = rig.subscribe("t", "c", client)
    rig.publish("t", b"1", b"2", b"3")
    for _ in range(3):
        channel.finish(client, client.got[-1].id)
        rig.pump()
    assert client.bodies == [b"1", b"2", b"3"]
    assert (client.finish_count, client.message_count, client.in_flight_count) == (3, 3, 0)


def test_a_message_times_out_at_its_timeout_and_not_before() -> None:
    rig, client = Rig(), FakeSubscriber(ready=1, msg_timeout=2.0)
    channel = rig.subscribe("t", "c", client)
    rig.publish("t", b"x")
    rig.advance(1.999)
    assert (len(client.got), channel.timeout_count) == (1, 0)
    rig.advance(0.001)
    assert [message.attempts for message in client.got[-1:]] == [2]
    assert (len(client.got), channel.timeout_count, client.in_flight_count) == (2, 1, 1)


def test_touch_restarts_the_timeout() -> None:
    rig, client = Rig(), FakeSubscriber(ready=1, msg_timeout=2.0)
    channel = rig.subscribe("t", "c", client)
    rig.publish("t", b"x")
    rig.advance(1.5)
    channel.touch(client, client.got[0].id, rig.clock.now())
    rig.advance(1.999)
    assert channel.timeout_count == 0
    rig.advance(0.001)
    assert channel.timeout_count == 1


@pytest.mark.rule("MSG-6")
def test_touch_extends_to_at_most_max_msg_timeout_after_the_delivery() -> None:
    rig, client = Rig(max_msg_timeout=5.0), FakeSubscriber(ready=1, msg_timeout=2.0)
    channel = rig.subscribe("t", "c", client)
    rig.publish("t", b"x")
    for _ in range(3):
        rig.advance(1.5)
        channel.touch(client, client.got[0].id, rig.clock.now())
    rig.advance(0.499)
    assert channel.timeout_count == 0
    rig.advance(0.001)
    assert channel.timeout_count == 1


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


def test_a_requeued_message_comes_back_at_once_at_the_end_of_the_queue() -> None:
    rig, client = Rig(), FakeSubscriber(ready=1)
    channel = rig.subscribe("t", "c", client)
    rig.publish("t", b"1", b"2")
    channel.requeue(client, client.got[0].id, 0.0, rig.clock.now())
    rig.pump()
    assert client.bodies == [b"1", b"2"]
    channel.finish(client, client.got[1].id)
    rig.pump()
    assert (client.bodies, client.got[-1].attempts) == ([b"1", b"2", b"1"], 2)
    assert (channel.requeue_count, client.requeue_count) == (1, 1)


def test_a_message_requeued_with_a_delay_comes_back_when_it_is_over() -> None:
    rig, client = Rig(), FakeSubscriber(ready=1)
    channel = rig.subscribe("t", "c", client)
    rig.publish("t", b"x")
    channel.requeue(client, client.got[0].id, 3.0, rig.clock.now())
    assert (len(channel.deferred), client.in_flight_count) == (1, 0)
    rig.advance(2.999)
    assert len(client.got) == 1
    rig.advance(0.001)
    assert (len(client.got), len(channel.deferred)) == (2, 0)


def test_a_deferred_publish_waits_from_the_moment_a_channel_has_it() -> None:
    rig, client = Rig(), FakeSubscriber(ready=1)
    rig.publish("t", b"x", defer=3.0)
    rig.advance(10.0)
    rig.subscribe("t", "c", client)
    rig.advance(2.999)
    assert client.got == []
    rig.advance(0.001)
    assert client.bodies == [b"x"]


def test_messages_of_a_client_that_left_stay_in_flight_until_their_timeout() -> None:
    rig, gone, other = Rig(), FakeSubscriber(1, ready=1, msg_timeout=5.0), FakeSubscriber(2, ready=1)
    channel = rig.subscribe("t", "c", gone)
    rig.publish("t", b"x")
    rig.topics.leave(channel, gone)
    rig.subscribe("t", "c", other)
    rig.advance(4.999)
    assert other.got == []
    rig.advance(0.001)
    assert (other.bodies, other.got[0].attempts, gone.in_flight_count) == ([b"x"], 2, 1)


def test_an_answer_is_refused_for_an_unknown_message_and_for_another_clients() -> None:
    rig, one, two = Rig(), FakeSubscriber(1, ready=1), FakeSubscriber(2)
    channel = rig.subscribe("t", "c", one)
    rig.subscribe("t", "c", two)
    rig.publish("t", b"x")
    message_id = one.got[0].id
    now = rig.clock.now()
    for answer in (
        channel.finish,
        lambda client, which: channel.requeue(client, which, 0.0, now),
        lambda client, which: channel.touch(client, which, now),
    ):
        with pytest.raises(AnswerRefused, match=r"^ID not in flight$"):
            answer(one, b"0" * 16)
        with pytest.raises(AnswerRefused, match=r"^client does not own message$"):
            answer(two, message_id)
    channel.finish(one, message_id)
    with pytest.raises(AnswerRefused):
        channel.finish(one, message_id)


def test_clients_of_a_channel_share_its_messages_evenly() -> None:
    rig, clients = Rig(), [FakeSubscriber(n, ready=100) for n in range(4)]
    for client in clients:
        rig.subscribe("t", "c", client)
    rig.publish("t", *[b"x"] * 100)
    assert [len(client.got) for client in clients] == [25, 25, 25, 25]


def test_single_messages_go_to_clients_in_turn() -> None:
    rig, clients = Rig(), [FakeSubscriber(n, ready=100) for n in range(3)]
    for client in clients:
        rig.subscribe("t", "c", client)
    for _ in range(30):
        rig.publish("t", b"x")
    assert [len(client.got) for client in clients] == [10, 10, 10]


def test_a_sample_is_about_its_share_and_the_rest_is_gone() -> None:
    rig, client = Rig(), FakeSubscriber(ready=10_000)
    rig.topics.shared.rng = random.Random(7)
    client.sample_rate = 30
    channel = rig.subscribe("t", "c", client)
    rig.publish("t", *[b"x"] * 5000)
    assert 0.27 < len(client.got) / 5000 < 0.35
    assert (channel.depth, len(channel.in_flight)) == (0, len(client.got))
    assert rig.topics.shared.meter.used == len(client.got) * (1 + MESSAGE_OVERHEAD)


def test_a_paused_channel_hands_out_nothing_and_keeps_everything() -> None:
    rig, client = Rig(), FakeSubscriber(ready=5)
    channel = rig.subscribe("t", "c", client)
    channel.pause()
    rig.publish("t", b"x")
    assert (client.got, channel.depth) == ([], 1)
    channel.unpause()
    rig.pump()
    assert client.bodies == [b"x"]


def test_a_paused_topic_gives_its_channels_nothing() -> None:
    rig, client = Rig(), FakeSubscriber(ready=5)
    channel = rig.subscribe("t", "c", client)
    topic = rig.topics.get("t")
    rig.topics.set_topic_paused(topic, True)
    rig.publish("t", b"x")
    assert (topic.depth, channel.depth, client.got) == (1, 0, [])
    rig.topics.set_topic_paused(topic, False)
    rig.pump()
    assert client.bodies == [b"x"]


def test_empty_drops_what_is_ready_in_flight_and_deferred() -> None:
    rig, client = Rig(), FakeSubscriber(ready=1)
    channel = rig.subscribe("t", "c", client)
    rig.publish("t", b"1", b"2")
    rig.publish("t", b"3", defer=9.0)
    channel.empty()
    assert (channel.depth, len(channel.in_flight), len(channel.deferred), client.in_flight_count) == (0, 0, 0, 0)
    assert rig.topics.shared.meter.used == 0
    with pytest.raises(AnswerRefused):
        channel.finish(client, client.got[0].id)
    rig.advance(100.0)
    assert len(client.got) == 1


def test_the_last_client_takes_an_ephemeral_channel_with_it_and_that_the_ephemeral_topic() -> None:
    rig, one, two = Rig(), FakeSubscriber(1), FakeSubscriber(2)
    channel = rig.subscribe("t#ephemeral", "c#ephemeral", one)
    rig.subscribe("t#ephemeral", "c#ephemeral", two)
    rig.topics.leave(channel, one)
    assert "t#ephemeral" in rig.topics.by_name
    rig.topics.leave(channel, two)
    assert rig.topics.by_name == {}


def test_a_lasting_channel_outlives_its_clients() -> None:
    rig, client = Rig(), FakeSubscriber()
    channel = rig.subscribe("t", "c", client)
    rig.topics.leave(channel, client)
    assert rig.topics.get("t").channels == {"c": channel}


@pytest.mark.parametrize(("size", "kept"), [(2, 2), (3, 3), (4, 3)])
def test_an_ephemeral_channel_drops_what_does_not_fit(size: int, kept: int) -> None:
    rig, client = Rig(mem_queue_size=3), FakeSubscriber(ready=0)
    channel = rig.subscribe("t", "c#ephemeral", client)
    rig.publish("t", *[b"x"] * size)
    assert channel.depth == kept
    assert rig.topics.shared.meter.used == kept * (1 + MESSAGE_OVERHEAD)


def test_an_ephemeral_topic_drops_what_does_not_fit() -> None:
    rig = Rig(mem_queue_size=3)
    rig.publish("t#ephemeral", *[b"x"] * 5)
    assert rig.topics.get("t#ephemeral").depth == 3


def test_a_lasting_channel_keeps_what_nsqd_would_write_to_disk() -> None:
    rig = Rig(mem_queue_size=3)
    rig.topics.get_channel(rig.topics.get("t"), "c")
    rig.publish("t", *[b"x"] * 5)
    channel = rig.topics.get("t").channels["c"]
    assert (channel.depth, channel.backend_depth) == (5, 2)


def test_a_channel_takes_no_more_clients_than_allowed() -> None:
    rig = Rig(max_channel_consumers=1)
    rig.subscribe("t", "c", FakeSubscriber(1))
    with pytest.raises(TooManyConsumers, match=r"^consumers for t:c exceeds limit of 1$"):
        rig.subscribe("t", "c", FakeSubscriber(2))


def test_a_batch_that_does_not_fit_in_memory_is_refused_whole() -> None:
    rig = Rig(max_memory=3 * (10 + MESSAGE_OVERHEAD))
    rig.publish("t", b"x" * 10, b"y" * 10)
    with pytest.raises(PutRefused, match="memory limit"):
        rig.publish("t", b"x" * 10, b"y" * 10)
    rig.publish("t", b"z" * 10)
    assert rig.topics.get("t").depth == 3


def test_attempts_fit_in_two_bytes() -> None:
    rig, client = Rig(), FakeSubscriber(ready=1)
    channel = rig.subscribe("t", "c", client)
    rig.publish("t", b"x")
    client.got[0].attempts = 0xFFFF
    channel.requeue(client, client.got[0].id, 0.0, rig.clock.now())
    rig.pump()
    assert client.got[-1].attempts == 0


def test_a_restart_makes_everything_unfinished_ready_again() -> None:
    rig, client = Rig(), FakeSubscriber(ready=1)
    rig.subscribe("t", "c", client)
    rig.publish("t", b"flying", b"ready")
    rig.publish("t", b"deferred", defer=99.0)
    rig.publish("backlog", b"b")
    rig.publish("gone#ephemeral", b"g")
    saved = rig.topics.close()
    assert client.disconnected
    after, reader = Rig(), FakeSubscriber(ready=10)
    after.topics.restore(saved)
    after.subscribe("t", "c", reader)
    assert sorted(reader.bodies) == [b"deferred", b"flying", b"ready"]
    assert {m.body: m.attempts for m in reader.got} == {b"deferred": 1, b"flying": 2, b"ready": 1}
    assert after.topics.get("backlog").depth == 1
    assert "gone#ephemeral" not in after.topics.by_name


def test_a_deleted_topic_disconnects_its_clients_and_frees_its_memory() -> None:
    rig, client = Rig(), FakeSubscriber(ready=1)
    rig.subscribe("t", "c", client)
    rig.publish("t", b"1", b"2")
    assert rig.topics.delete_topic("t")
    assert not rig.topics.delete_topic("t")
    assert (client.disconnected, rig.topics.by_name, rig.topics.shared.meter.used) == (True, {}, 0)


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
