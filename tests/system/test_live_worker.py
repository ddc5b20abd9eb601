"""``gnsq-lite worker --metrics-port``: /api/status of real processes, one of which dies, and pauses by signal."""

from __future__ import annotations

import http.client
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gnsq_lite.broker import Broker
from tests.programs import STARTING, Program, running, wait_for
from tests.servers import http_call

pytestmark = pytest.mark.program

APP = """
from gnsq_lite import Worker

worker = Worker(requeue_delay=0.0, backoff=False, reconnect_delay=0.1, max_attempts=2, lookupd_poll_interval=0.2)

@worker.handler("t", "ch", on_give_up="log")
def handle(message):
    if message.body == b"bad":
        raise ValueError("<b>no & \\x1b[31m</b>")
"""


@pytest.fixture
def nsqd() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@contextmanager
def worker(folder: Path, nsqd: Broker, *flags: str) -> Iterator[tuple[Program, str]]:
    (folder / "app.py").write_text(APP, encoding="utf-8")
    http_call(nsqd.http_address, "POST", "/channel/create?topic=t&channel=ch")
    http_call(nsqd.http_address, "POST", "/topic/create?topic=t")
    http_call(nsqd.http_address, "POST", "/channel/create?topic=t&channel=ch")
    arguments = ["-m", "gnsq_lite", "worker", "app", "--metrics-port", "0", *flags]
    arguments += ["--lookupd-http-address", nsqd.lookupd_http_address]
    with running(arguments, folder) as program:
        program.says("live page: http://")
        yield program, program.output.split("live page: http://")[1].split("/")[0]


def call(address: str, method: str, path: str, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(address, timeout=30)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def status(address: str) -> dict[str, Any]:
    code, body = call(address, "GET", "/api/status")
    assert code == 200, body
    found: dict[str, Any] = json.loads(body)
    return found


def publish(nsqd: Broker, *bodies: bytes) -> None:
    for body in bodies:
        assert http_call(nsqd.http_address, "POST", "/pub?topic=t", body).status == 200


TWO = ["--processes", "2"]
KINDS = pytest.mark.parametrize(
    "flags", [TWO, [*TWO, "--patch"], ["--no-supervise"]], ids=["plain", "patched", "alone"]
)


@KINDS
def test_the_status_is_of_all_processes_with_failures_depths_and_lines(
    nsqd: Broker, tmp_path: Path, flags: list[str]
) -> None:
    count = 1 if "--no-supervise" in flags else 2
    with worker(tmp_path, nsqd, *flags) as (_, address):
        wait_for(lambda: [each["state"] for each in status(address)["processes"]] == ["running"] * count, STARTING)
        publish(nsqd, b"good", b"good", b"bad")
        wait_for(lambda: (status(address)["handlers"] or [{"finished": 0}])[0]["finished"] == 3)
        wait_for(lambda: status(address)["handlers"][0]["depth"] == 0)
        told = status(address)
        (handler,) = told["handlers"]
        assert (handler["failures"] > 1, handler["given_up"], handler["max_in_flight"]) == (True, 1, count)
        (error, *_) = handler["errors"]
        assert (error["type"], error["text"]) == ("ValueError", "<b>no & \x1b[31m</b>")
        assert [each["address"] for each in told["nsqds"]] == [nsqd.nsqd_tcp_address]
        assert all(each["memory"] > 1 << 20 and each["pid"] for each in told["processes"])
        assert call(address, "GET", "/api/status", Host="rebound.example")[0] == 403
        if "--no-supervise" in flags:
            assert json.loads(call(address, "GET", "/api/history")[1]) == {"samples": []}
        else:
            wait_for(lambda: json.loads(call(address, "GET", "/api/history")[1])["samples"], STARTING)
        assert call(address, "GET", "/api/history", Host="rebound.example")[0] == 403
        assert call(address, "GET", "/", Host="rebound.example")[0] == 403
        assert call(address, "GET", "/healthz", Host="rebound.example")[0] == 200  # probes may use any host name
        assert call(address, "POST", "/api/control")[0] == 501
        assert "<title>" in call(address, "GET", "/")[1]


def test_a_process_that_dies_is_shown_and_comes_back(nsqd: Broker, tmp_path: Path) -> None:
    with worker(tmp_path, nsqd, "--processes", "2") as (program, address):
        wait_for(lambda: [each["state"] for each in status(address)["processes"]] == ["running"] * 2, STARTING)
        os.kill(status(address)["processes"][1]["pid"], signal.SIGKILL)
        program.says("process 1 ended (-9)")

        def is_back() -> bool:
            found = status(address)["processes"][1]
            return bool(found["restarts"] == 1 and found["state"] == "running")

        wait_for(is_back, STARTING)


def test_sigusr1_pauses_processes_that_start_later_too_and_sigusr2_resumes(nsqd: Broker, tmp_path: Path) -> None:
    with worker(tmp_path, nsqd, "--processes", "2") as (program, address):
        wait_for(lambda: status(address)["handlers"] and status(address)["handlers"][0]["ready"] > 0, STARTING)
        program.signal(signal.SIGUSR1)
        wait_for(lambda: status(address)["handlers"][0]["paused"])
        publish(nsqd, b"waits")
        os.kill(status(address)["processes"][0]["pid"], signal.SIGKILL)
        wait_for(lambda: status(address)["processes"][0]["restarts"] == 1, STARTING)
        wait_for(lambda: status(address)["processes"][0]["state"] == "running", STARTING)
        wait_for(lambda: status(address)["handlers"][0]["paused"])
        assert status(address)["handlers"][0]["received"] == 0
        program.signal(signal.SIGUSR2)
        wait_for(lambda: status(address)["handlers"][0]["finished"] == 1)
        program.signal(signal.SIGTERM)
        assert program.ends() == 0
