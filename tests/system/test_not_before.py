"""Messages that nsqd delivers before their time."""

from __future__ import annotations

import time

import pytest

from gnsq_lite import Message, Reader, Writer
from tests.programs import wait_for
from tests.servers import ServerHandle
from tests.system.clients import POOLS, QUICK, channel


@pytest.mark.rule("MSG-4")
@pytest.mark.parametrize("pool", POOLS)
def test_an_early_message_comes_again_at_its_time_and_has_all_its_attempts(
    broker: ServerHandle, topic: str, pool: str
) -> None:
    calls: list[tuple[float, int]] = []
    broker.prepare(topic, "ch")
    due = time.time() + 1.5

    def handle(message: Message) -> None:
        calls.append((time.time(), message.attempts))
        if len(calls) == 1:
            raise ValueError("once more")

    options = {"handler_pool": pool, "max_attempts": 2, "requeue_delay": 0.1, "backoff": False, **QUICK}
    with (
        Writer(broker.tcp_address) as writer,
        Reader(
            topic,
            "ch",
            handle,
            nsqd_tcp_addresses=broker.tcp_address,
            not_before=lambda message: due if message.body == b"timed" else None,
            **options,
        ) as reader,
    ):
        writer.publish(topic, b"timed")
        wait_for(lambda: reader.stats().finished == 1, 30.0)
        stats = reader.stats()
    assert [attempts for _, attempts in calls] == [1, 2]
    assert calls[0][0] >= due
    assert (stats.failures, stats.given_up) == (1, 0)
    assert channel(broker, topic)["depth"] == 0
