"""Messages by the clock, from the processes of a worker."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from gnsq_lite import Message, Reader, Worker
from gnsq_lite.broker import Broker
from tests.programs import wait_for
from tests.servers import http_call
from tests.system.worker_programs import worker

APP = """
from gnsq_lite import Worker
from gnsq_lite.worker import Middleware

class Says(Middleware):
    def started(self, worker):
        print("schedules:", 0 if worker.no_schedules else len(worker.schedules), flush=True)

worker = Worker(reconnect_delay=0.1, middleware=[Says()])
worker.every(1, "ticks", lambda when: b"%d" % when)

@worker.handler("t", "ch")
def handle(message):
    pass
"""


@pytest.mark.program
def test_one_process_publishes_each_due_time_once_while_processes_are_replaced(tmp_path: Path) -> None:
    times: list[int] = []

    def take(message: Message) -> None:
        times.append(int(message.body))

    with (
        Broker(lookupd=False) as nsqd,
        Reader("ticks", "ch", take, nsqd_tcp_addresses=nsqd.nsqd_tcp_address, max_in_flight=9),
        worker(tmp_path, nsqd.nsqd_tcp_address, "--processes", "2", app=APP) as program,
    ):
        wait_for(lambda: len(times) >= 2)
        program.signal(signal.SIGHUP)
        program.says("which was draining, ended (0)", times=2)
        since = len(times)
        wait_for(lambda: len(times) >= since + 2)
        program.signal(signal.SIGTERM)
        assert program.ends() == 0
        assert len(set(times)) == len(times)
        assert "schedules: 1" in program.output


@pytest.mark.program
def test_no_schedules_publishes_nothing(tmp_path: Path) -> None:
    with (
        Broker(lookupd=False) as nsqd,
        worker(tmp_path, nsqd.nsqd_tcp_address, "--no-schedules", app=APP) as program,
    ):
        program.says("worker runs")
        time.sleep(1.5)
        assert "ticks" not in http_call(nsqd.http_address, "GET", "/stats?format=json").body.decode()
        assert "schedules: 0" in program.output


def test_a_worker_without_a_supervisor_publishes_by_itself() -> None:
    with Broker(lookupd=False) as nsqd:
        worker = Worker(nsqd_tcp_addresses=nsqd.nsqd_tcp_address)
        bodies: list[bytes] = []

        @worker.handler("ticks", "ch")
        def handle(message: Message) -> None:
            bodies.append(message.body)
            worker.stop()

        worker.every("1s", "ticks", b"tick")
        assert worker.run() == 0
        assert bodies[0] == b"tick"
