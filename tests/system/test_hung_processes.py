"""Worker processes whose handler holds the GIL: the supervisor kills and replaces them."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from tests.programs import wait_for
from tests.servers import ServerHandle
from tests.system.worker_programs import get, pages_at, worker

pytestmark = pytest.mark.program

APP = """
import ctypes, os
from gnsq_lite import Worker

worker = Worker(max_attempts=2, backoff=False, reconnect_delay=0.1, hang_timeout=1.0, msg_timeout=4.0)
worker.every(1, "ticks", b"tick")

def say(line):
    os.write(1, line.encode() + b"\\n")

@worker.handler("t", "ch")
def handle(message):
    say(f"begins {message.body.decode()} {os.getpid()}")
    if message.body.startswith(b"hold"):
        ctypes.PyDLL(None).sleep(600)  # in C with the GIL, as a regular expression that takes forever

@worker.handler("ticks", "ch")
def tick(message):
    say(f"ticks {os.getpid()}")
"""


@pytest.mark.timeout(240)
@pytest.mark.parametrize("patch", [False, True], ids=["plain", "patched"])
def test_hung_processes_are_killed_and_messages_and_schedules_continue(
    broker: ServerHandle, tmp_path: Path, patch: bool
) -> None:
    broker.prepare("t", "ch")
    broker.prepare("ticks", "ch")
    flags = ["--processes", "2", "--metrics-port", "0", *(["--patch"] if patch else [])]
    with worker(tmp_path, broker.tcp_address, *flags, app=APP) as program:
        program.says("connected", times=4)
        program.says("ticks")
        broker.publish("t", b"hold1", b"hold2")
        program.says("begins hold", times=2)
        broker.publish("t", *[b"later%d" % number for number in range(100)])
        program.says("begins later", times=100, timeout=90)
        program.says("hangs: its I/O loop has not run for", times=2)
        assert "killing it; last message begun: t/ch " in program.output
        assert re.search(r'File ".*app.py", line \d+ in handle', program.output), "no Python stack"
        program.says("giving up message", times=2, timeout=90)
        for number in range(1, 3):
            assert program.output.count(f"begins hold{number} ") <= 2
        ticks = program.output.count("ticks ")
        program.says("ticks ", times=ticks + 2)
        wait_for(lambda: get(pages_at(program), "/readyz")[0] == 200)
        killed = program.output.count("hangs: its I/O loop")
        assert f'"hung": {killed}' in get(pages_at(program), "/healthz")[1]
        metrics = get(pages_at(program), "/metrics")[1]
        assert f'gnsq_worker_hung_processes_total{{process="supervisor"}} {killed}.0' in metrics
        starts = re.findall(r'gnsq_worker_process_starts_total{process="supervisor"} (\d+)', metrics)
        assert int(starts[0]) >= 1 + killed
        program.signal(signal.SIGTERM)
        assert program.ends() == 0
