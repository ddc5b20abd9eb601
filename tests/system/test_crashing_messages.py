"""Messages that fail or crash their process under one supervisor, and the messages prefetched beside them (MSG-4)."""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.programs import Program, wait_for
from tests.servers import ServerHandle
from tests.system.worker_programs import worker

pytestmark = [pytest.mark.program, pytest.mark.timeout(240)]

APP = """
import os, time
from gnsq_lite import Worker

def say(line):
    os.write(1, line.encode() + b"\\n")

def give_up(message):
    say(f"given up {message.body.decode()} {os.getpid()}")

worker = Worker(
    max_attempts=3, max_in_flight=200, concurrency=1, backoff=False, requeue_delay=0.0, msg_timeout=3.0,
    reconnect_delay=0.1, on_give_up=give_up,
)

@worker.handler("t", "ch")
def handle(message):
    body = message.body.decode()
    say(f"begins {body} {os.getpid()}")
    while body.startswith("neighbour") and not os.path.exists("go"):
        time.sleep(0.05)
    if body.startswith("crash"):
        os._exit(9)
    if body.startswith("fail"):
        raise ValueError(body)
    say(f"done {body} {os.getpid()}")
"""


def bodies(program: Program, word: str) -> Counter[str]:
    return Counter(re.findall(rf"^{word} (\S+) \d+$", program.output, re.MULTILINE))


@pytest.mark.rule("MSG-4")
def test_a_failing_or_crashing_message_runs_at_most_max_attempts_handlers(broker: ServerHandle, tmp_path: Path) -> None:
    broker.prepare("t", "ch")
    bad = ["crash1", "crash2", *(f"fail{number}" for number in range(20))]
    with worker(tmp_path, broker.tcp_address, "--processes", "3", app=APP) as program:
        program.says("connected", times=3)
        broker.publish("t", *[body.encode() for body in bad])
        wait_for(lambda: set(bodies(program, "given up")) == set(bad), timeout=120)
        begun = bodies(program, "begins")
        assert all(1 <= begun[body] <= 3 for body in bad), begun
        assert begun["crash1"] > 1, "a crash is no reason to give up at once"


@pytest.mark.rule("MSG-4")
def test_of_200_messages_prefetched_by_five_killed_processes_none_is_given_up_that_no_handler_began(
    broker: ServerHandle, tmp_path: Path
) -> None:
    broker.prepare("t", "ch")
    broker.publish("t", *[b"neighbour%d" % number for number in range(200)])
    with worker(tmp_path, broker.tcp_address, app=APP) as program:
        killed: set[int] = set()
        while len(killed) < 5:
            wait_for(lambda: set(pids(program)) - killed, timeout=60)
            (running,) = set(pids(program)) - killed
            os.kill(running, signal.SIGKILL)
            killed.add(running)
        (tmp_path / "go").touch()
        wait_for(lambda: len({**bodies(program, "done"), **bodies(program, "given up")}) == 200, timeout=60)
        begun, given_up = bodies(program, "begins"), bodies(program, "given up")
        assert all(begun[body] >= 3 for body in given_up), (begun, given_up)
        assert len(given_up) <= 2


def pids(program: Program) -> list[int]:
    return [int(pid) for pid in re.findall(r"^begins \S+ (\d+)$", program.output, re.MULTILINE)]
