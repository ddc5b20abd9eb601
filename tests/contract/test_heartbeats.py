"""Heartbeats: their interval, the end of a silent client, and how a client disables them."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest

from tests.conftest import Connect
from tests.rawclient import HEARTBEAT, Closed, pub
from tests.servers import ServerHandle


@pytest.mark.rule("HB-1")
def test_heartbeats_come_at_the_interval_asked_and_an_answered_client_stays(
    broker: ServerHandle, connect: Connect
) -> None:
    client = connect(broker)
    client.answers_heartbeats = False
    client.identify(heartbeat_interval=1000)
    start = time.monotonic()
    for beat in range(1, 4):
        assert client.frame() == HEARTBEAT
        assert beat - 0.6 < time.monotonic() - start < 10.0 * beat  # the default interval is 30 s
        client.send(b"NOP\n")
    client.sync()


@pytest.mark.rule("HB-1")
def test_a_client_that_says_nothing_is_dropped_after_two_intervals(
    broker: ServerHandle, connect: Connect, topic: str
) -> None:
    client = connect(broker)
    client.answers_heartbeats = False
    client.identify(heartbeat_interval=1000)
    client.subscribe(topic, "c", ready=1)
    start = time.monotonic()
    assert client.frame() == HEARTBEAT
    if time.monotonic() - start < 1.5:  # the second one and the end come at the same moment
        with suppress(Closed, ConnectionError):
            assert client.frame() == HEARTBEAT
    assert client.is_closed()
    assert 1.2 < time.monotonic() - start < 20.0  # with the default interval it would be 60 s
    assert broker.stats(topic, "c")["client_count"] == 0


@pytest.mark.rule("HB-1")
def test_any_command_counts_as_a_sign_of_life(broker: ServerHandle, connect: Connect, topic: str) -> None:
    client = connect(broker)
    client.answers_heartbeats = False
    client.identify(heartbeat_interval=1000)
    client.subscribe(topic, "c")
    end = time.monotonic() + 2.6
    while time.monotonic() < end:
        client.send(b"RDY 1\n")
        time.sleep(0.4)
    client.answers_heartbeats = True
    client.sync()


@pytest.mark.rule("PUB-3")
def test_a_producer_may_switch_heartbeats_off(broker: ServerHandle, connect: Connect, topic: str) -> None:
    client = connect(broker)
    client.answers_heartbeats = False
    client.identify(heartbeat_interval=-1)
    assert client.is_silent(1.5)
    assert client.ask(pub(topic, b"x")) == b"OK"
