"""A handler's rate limit, with both servers."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from gnsq_lite import Message, Reader
from gnsq_lite.broker import Broker
from tests.programs import wait_for
from tests.servers import ServerHandle
from tests.system.worker_programs import publish, worker


@pytest.mark.parametrize("pool", ["thread", "inline"])
def test_messages_arrive_at_the_rate_plus_one_burst(broker: ServerHandle, topic: str, pool: Any) -> None:
    broker.prepare(topic, "ch")
    broker.publish(topic, *[b"%d" % number for number in range(300)])
    times: list[float] = []

    def handle(message: Message) -> None:
        times.append(time.monotonic())

    with Reader(
        topic,
        "ch",
        handle,
        nsqd_tcp_addresses=broker.tcp_address,
        max_in_flight=40,
        rate_limit="100/s",
        handler_pool=pool,
    ) as reader:
        began = time.monotonic()
        wait_for(lambda: len(times) == 300)
        for number, when in enumerate(times):  # nsqd may not have read the last RDY
            assert number < 100 + 100 * (when - began) + 40 + 10
        assert times[-1] - began > 1.5
        assert reader.stats().received == 300
        reader.set_max_in_flight(5)
        broker.publish(topic, *[b"more"] * 20)
        wait_for(lambda: len(times) == 320)
    assert broker.stats(topic, "ch")["timeout_count"] == 0


def test_a_slow_rate_allows_one_message_at_a_time(broker: ServerHandle, topic: str) -> None:
    broker.prepare(topic, "ch")
    broker.publish(topic, b"1", b"2", b"3")
    times: list[float] = []

    def handle(message: Message) -> None:
        times.append(time.monotonic())

    address = broker.tcp_address
    with Reader(topic, "ch", handle, nsqd_tcp_addresses=address, max_in_flight=10, rate_limit="60/m") as reader:
        wait_for(lambda: len(times) == 3)
        assert times[1] - times[0] > 0.9
        assert times[2] - times[0] > 1.9
        wait_for(lambda: reader.stats().finished == 3)


APP = """
import os, time
from gnsq_lite import Worker

worker = Worker(reconnect_delay=0.1)

@worker.handler("t", "ch", rate_limit="40/s", max_in_flight=10)
def handle(message):
    os.write(1, f'{{"handled": {time.time()}}}\\n'.encode())
"""


@pytest.mark.program
def test_the_processes_of_a_worker_share_the_rate(tmp_path: Path) -> None:
    with (
        Broker(lookupd=False) as nsqd,
        worker(tmp_path, nsqd.nsqd_tcp_address, "--processes", "2", app=APP) as program,
    ):
        program.says("connected", times=2)
        publish(nsqd, *[b"%d" % number for number in range(160)])
        program.says('{"handled"', times=160)
        times = sorted(json.loads(line)["handled"] for line in program.output.splitlines() if line[:1] == "{")
        assert (
            times[-1] - times[0] > 2.0
        )  # 160 messages at 40 a second, less a burst of 40 and two RDYs, take more than half of that time
