"""A thousand HTTP clients at a worker's live page: its handlers, its heartbeats and a browser do not notice."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from gnsq_lite.broker import Broker
from tests.crowd import Kind, crowd
from tests.devtools import browsing
from tests.programs import running, wait_for
from tests.servers import http_call

COUNT = 1000
#: Seconds the crowd stays; three heartbeats, of which nsqd misses no two.
STAYS = 6.0
#: Threads and MiB that a process may have beyond those it had alone.
MOST_THREADS, MOST_MEMORY = 150, 60

APP = """
from gnsq_lite import Worker

worker = Worker(heartbeat_interval=2.0, reconnect_delay=0.1)

@worker.handler("t", "ch", concurrency=4)
def handle(message):
    pass
"""


def figures(pid: int) -> dict[str, int]:
    """Return the threads, and MiB in use, of a process."""
    lines = (Path("/proc") / str(pid) / "status").read_text(encoding="ascii").splitlines()
    found = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    return {"threads": int(found["Threads"]), "memory": int(found["VmRSS"].split()[0]) // 1024}


def publish(nsqd: Broker, count: int) -> None:
    assert http_call(nsqd.http_address, "POST", "/mpub?topic=t", b"\n".join([b"x"] * count)).status == 200


def clients(nsqd: Broker) -> list[str]:
    """Return the addresses of who consumes: another one after a reconnect."""
    answer = http_call(nsqd.http_address, "GET", "/stats?format=json")
    return sorted(each["remote_address"] for each in answer.json()["topics"][0]["channels"][0]["clients"])


def is_all_finished(nsqd: Broker, count: int) -> bool:
    (topic,) = http_call(nsqd.http_address, "GET", "/stats?format=json").json()["topics"]
    (channel,) = topic["channels"]
    return bool(topic["message_count"] == count and channel["depth"] == channel["in_flight_count"] == 0)


KINDS: tuple[tuple[str, Kind], ...] = (
    ("--processes=2", "poll"),
    ("--processes=2", "drip"),
    ("--processes=2", "silent"),
    ("--no-supervise", "poll"),
)


@pytest.mark.slow
@pytest.mark.program
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("flag", "kind"), KINDS, ids=["-".join(each).strip("-") for each in KINDS])
def test_a_thousand_clients_of_the_page_hold_up_nobody(tmp_path: Path, flag: str, kind: Kind) -> None:
    (tmp_path / "app.py").write_text(APP, encoding="utf-8")
    with Broker(lookupd=False) as nsqd, browsing(tmp_path / "browser") as browser:
        for path in ("/topic/create?topic=t", "/channel/create?topic=t&channel=ch"):
            http_call(nsqd.http_address, "POST", path)
        arguments = ["-m", "gnsq_lite", "worker", "app", "--metrics-port", "0", flag]
        with running([*arguments, "--nsqd-tcp-address", nsqd.nsqd_tcp_address], tmp_path) as program:
            program.says("live: http://")
            host, _, port = program.output.split("live: http://")[1].split("/")[0].partition(":")
            wait_for(lambda: len(clients(nsqd)) == (1 if flag == "--no-supervise" else 2))
            connected, alone = clients(nsqd), figures(program.process.pid)
            most, sent = alone, 0
            with crowd((host, int(port)), kind, COUNT) as there:
                wait_for(lambda: there.seen["connections"] >= COUNT)
                page = browser.page()
                page.open(f"http://{host}:{port}/")
                page.wait_for("document.getElementById('state').textContent === 'running'")
                began = time.monotonic()
                while time.monotonic() - began < STAYS:
                    publish(nsqd, 100)
                    sent += 100
                    now = figures(program.process.pid)
                    most = {name: max(most[name], now[name]) for name in most}
                    time.sleep(0.1)
                page.wait_for("parseFloat(document.querySelector('.card .big').innerText) > 0")
                wait_for(lambda: is_all_finished(nsqd, sent))
            assert clients(nsqd) == connected
            assert most["threads"] - alone["threads"] < MOST_THREADS
            assert most["memory"] - alone["memory"] < MOST_MEMORY
