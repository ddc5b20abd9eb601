"""Run ``gnsq-lite worker``, and look at its messages, processes and status pages."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gnsq_lite.broker import Broker
from tests.programs import Program, running
from tests.servers import http_call

APP = """
import os, time
from gnsq_lite import Worker

worker = Worker(requeue_delay=0.0, backoff=False, reconnect_delay=0.1)

def say(line):
    os.write(1, line.encode() + b"\\n")  # whole: several processes write here at once

@worker.handler("t", "ch", on_give_up="log")
def handle(message):
    say(f"handled {message.body.decode()} {os.getpid()}")
    if message.body == b"die":
        os._exit(7)
    if message.body == b"exit":
        raise SystemExit(5)
    if message.body == b"slow":
        time.sleep(1.0)
        say("finished slow")
    if message.body == b"stuck":
        while True:
            time.sleep(0.1)
"""


@contextmanager
def worker(folder: Path, address: str, *flags: str, app: str | None = APP, target: str = "app") -> Iterator[Program]:
    if app is not None:
        (folder / "app.py").write_text(app, encoding="utf-8")
    arguments = ["-m", "gnsq_lite", "worker", target, "--nsqd-tcp-address", address, *flags]
    with running(arguments, folder) as program:
        yield program


def publish(nsqd: Broker, *bodies: bytes) -> None:
    for body in bodies:
        assert http_call(nsqd.http_address, "POST", "/pub?topic=t", body).status == 200


def channel(nsqd: Broker) -> dict[str, Any]:
    stats = json.loads(http_call(nsqd.http_address, "GET", "/stats?format=json").body)
    found: dict[str, Any] = stats["topics"][0]["channels"][0]
    return found


def pids(program: Program, word: str = "handled") -> list[int]:
    return [int(line.split()[-1]) for line in program.output.splitlines() if line.startswith(word)]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def pages_at(program: Program) -> str:
    program.says("live page: http://")
    return program.output.split("live page: http://")[1].split("/")[0]


def get(address: str, page: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}{page}", timeout=20) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
