"""``gnsq-lite worker --metrics-port``: /api/status of real processes, one of which dies, and acting over HTTP."""

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
from tests.programs import Program, running, wait_for
from tests.servers import http_call

pytestmark = pytest.mark.program

TOKEN = "open-sesame-open-sesame"
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
    with running(arguments, folder, {"GNSQ_LITE_CONTROL_TOKEN": TOKEN}) as program:
        program.says("live: http://")
        yield program, program.output.split("live: http://")[1].split("/")[0]


def call(address: str, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(address, timeout=30)
    try:
        data = None if body is None else json.dumps(body).encode()
        named = {name.replace("_", "-"): value.encode() for name, value in headers.items()}
        connection.request(method, path, data, named)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def status(address: str) -> dict[str, Any]:
    code, body = call(address, "GET", "/api/status?history")
    assert code == 200, body
    found: dict[str, Any] = json.loads(body)
    return found


def act(address: str, action: str, token: str = TOKEN, channel: str = "ch", **headers: str) -> int:
    named = {"Content_Type": "application/json", "Authorization": f"Bearer {token}", **headers}
    return call(address, "POST", "/api/control", {"action": action, "topic": "t", "channel": channel}, **named)[0]


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
        wait_for(lambda: [each["state"] for each in status(address)["processes"]] == ["running"] * count)
        publish(nsqd, b"good", b"good", b"bad")
        wait_for(lambda: (status(address)["handlers"] or [{"finished": 0}])[0]["finished"] == 3)
        wait_for(lambda: status(address)["handlers"][0]["depth"] == 0)
        wait_for(lambda: len(status(address)["handlers"][0]["history"]["rate"]) >= 2)
        told = status(address)
        (handler,) = told["handlers"]
        assert (handler["failures"] > 1, handler["given_up"], handler["max_in_flight"]) == (True, 1, count)
        (error, *_) = handler["errors"]
        assert (error["type"], error["text"]) == ("ValueError", "<b>no & \x1b[31m</b>")
        assert [each["address"] for each in told["nsqds"]] == [nsqd.nsqd_tcp_address]
        assert all(each["memory"] > 1 << 20 and each["pid"] for each in told["processes"])
        assert call(address, "GET", "/api/status", Host="rebound.example")[0] == 403
        assert call(address, "GET", "/", Host="rebound.example")[0] == 403
        assert call(address, "GET", "/healthz", Host="rebound.example")[0] == 200  # probes ask by any name
        assert act(address, "drain") == 403
        assert "<title>" in call(address, "GET", "/")[1]


def test_a_process_that_dies_is_shown_and_comes_back(nsqd: Broker, tmp_path: Path) -> None:
    with worker(tmp_path, nsqd, "--processes", "2") as (program, address):
        wait_for(lambda: [each["state"] for each in status(address)["processes"]] == ["running"] * 2)
        os.kill(status(address)["processes"][1]["pid"], signal.SIGKILL)
        program.says("process 1 ended (-9)")

        def is_back() -> bool:
            found = status(address)["processes"][1]
            return bool(found["restarts"] == 1 and found["state"] == "running")

        wait_for(is_back)


@KINDS
def test_who_has_the_token_pauses_resumes_and_drains(nsqd: Broker, tmp_path: Path, flags: list[str]) -> None:
    with worker(tmp_path, nsqd, "--allow-control", *flags) as (program, address):
        wait_for(lambda: status(address)["handlers"] and status(address)["handlers"][0]["ready"] > 0)
        assert act(address, "pause", token="wrong") == 401
        assert act(address, "pause", Origin="http://evil.example") == 403
        assert act(address, "pause", channel="other") == 404
        assert act(address, "pause", Content_Type="text/plain") == 415
        assert not status(address)["handlers"][0]["paused"]
        assert act(address, "pause") == 200
        wait_for(lambda: status(address)["handlers"][0]["paused"])
        publish(nsqd, b"waits")
        if "--no-supervise" not in flags:  # who is started later is paused too, before its first message
            os.kill(status(address)["processes"][0]["pid"], signal.SIGKILL)
            wait_for(lambda: status(address)["processes"][0]["restarts"] == 1)
            wait_for(lambda: status(address)["processes"][0]["state"] == "running")
            wait_for(lambda: status(address)["handlers"][0]["paused"])
            assert status(address)["handlers"][0]["received"] == 0
        assert act(address, "resume") == 200
        wait_for(lambda: status(address)["handlers"][0]["finished"] == 1)
        assert act(address, "drain") == 200
        assert program.ends() == 0


def test_a_token_is_made_and_told_where_none_is_given(nsqd: Broker, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP, encoding="utf-8")
    arguments = ["-m", "gnsq_lite", "worker", "app", "--metrics-port", "0", "--allow-control", "--no-supervise"]
    arguments += ["--nsqd-tcp-address", nsqd.nsqd_tcp_address, "--allow-host", "shop-worker"]
    with running(arguments, tmp_path, {"GNSQ_LITE_CONTROL_TOKEN": ""}) as program:
        program.says("live: http://")
        address = program.output.split("live: http://")[1].split("/")[0]
        token = program.output.split("is not set): ")[1].split()[0]
        assert len(token) > 30
        assert call(address, "GET", "/api/status", Host="shop-worker:80")[0] == 200
        assert act(address, "drain", token=token) == 200
        assert program.ends() == 0


@pytest.mark.parametrize("token", ["short", "öffne dich, öffne dich", "with a space in its midst"])
def test_a_token_that_is_weak_or_no_header_is_refused(nsqd: Broker, tmp_path: Path, token: str) -> None:
    (tmp_path / "app.py").write_text(APP, encoding="utf-8")
    arguments = ["-m", "gnsq_lite", "worker", "app", "--metrics-port", "0", "--allow-control"]
    with running(arguments, tmp_path, {"GNSQ_LITE_CONTROL_TOKEN": token}) as program:
        assert program.ends() != 0
        assert "GNSQ_LITE_CONTROL_TOKEN" in program.output
        assert token not in program.output
