"""Jumps of the wall clock change no time limit and no delay of the library."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ledger import clock

pytestmark = pytest.mark.slow

#: Seconds a thing of one second may take on a busy machine; hours are what a mistake costs.
LATEST = 20.0

#: Each part prints its name and how many monotonic seconds it took; the clock jumps when it has begun.
PROGRAM = """
import json, socket, sys, threading, time
from gnsq_lite import Reader, Writer
from gnsq_lite.errors import NSQError
from gnsq_lite.http import NsqdClient
from tests import servers
from tests.ledger import clock
from tests.system.clients import QUICK

hours = 3600 * int(sys.argv[1])
silent = socket.create_server(("127.0.0.1", 0), backlog=64)
address = f"127.0.0.1:{silent.getsockname()[1]}"
found = {}

def jumps_after(call, *arguments, **options):
    clock.jump(0)
    timer = threading.Timer(0.3, clock.jump, [hours])
    timer.start()
    began = time.monotonic()
    try:
        call(*arguments, **options)
    except NSQError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    passed = time.monotonic() - began
    timer.join()
    return passed

with Writer(address, publish_timeout=1.0, handshake_timeout=30.0) as writer:
    found["publish"] = jumps_after(writer.publish, "t", b"x")

drips = socket.create_server(("127.0.0.1", 0))
def drip():
    peer, _ = drips.accept()
    peer.recv(65536)
    peer.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 100000\\r\\n\\r\\n")
    for _ in range(250):
        time.sleep(0.1)
        try:
            peer.send(b"x")
        except OSError:
            return
threading.Thread(target=drip, daemon=True).start()
with NsqdClient(f"127.0.0.1:{drips.getsockname()[1]}", http_timeout=1.0) as client:
    found["http"] = jumps_after(client.ping)

reasons = []
lost = threading.Event()
class Silent(Exception):
    pass
def told(error):
    reasons.append(str(error))
    lost.set()
reader = Reader("t", "c", print, nsqd_tcp_addresses=address, on_error=told, **{**QUICK, "handshake_timeout": 1.0})
def handshake():
    reader.start(block=False)
    assert lost.wait(60)
found["handshake"] = jumps_after(handshake)
reader.close()

with servers.embedded_nsqd() as nsqd:
    nsqd.prepare("t", "c")
    arrived, release = threading.Event(), threading.Event()
    def handle(message):
        arrived.set()
        release.wait(60)
    reader = Reader("t", "c", handle, nsqd_tcp_addresses=nsqd.tcp_address, **QUICK)
    reader.start(block=False)
    nsqd.publish("t", b"x")
    assert arrived.wait(60)
    found["close"] = jumps_after(reader.close, timeout=1.0)
    release.set()

    handled = threading.Event()
    failures = []
    def fail_once(message):
        if message.attempts == 1:
            failures.append(message)
            raise RuntimeError("once")
        handled.set()
    with Reader("t", "d", fail_once, nsqd_tcp_addresses=nsqd.tcp_address, requeue_delay=0.5, **QUICK):
        nsqd.prepare("t", "d")
        def requeued():
            nsqd.publish("t", b"y")
            assert handled.wait(60)
        found["requeue and backoff"] = jumps_after(requeued)

    again = threading.Event()
    with Reader("t", "e", print, nsqd_tcp_addresses=nsqd.tcp_address, on_connected=lambda at: again.set(), **QUICK):
        assert again.wait(60)
        again.clear()
        def reconnected():
            nsqd.kill()
            time.sleep(0.5)
            nsqd.restart()
            assert again.wait(60)
        found["reconnect"] = jumps_after(reconnected)
print(json.dumps(found))
"""


@pytest.fixture
def variables(tmp_path: Path) -> Iterator[dict[str, str]]:
    yield clock.environment(tmp_path)
    shutil.rmtree(tmp_path, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.rule("CONN-5")
@pytest.mark.parametrize("hours", [-5, 5])
def test_a_jump_of_the_wall_clock_neither_shortens_nor_lengthens_a_wait(hours: int, variables: dict[str, str]) -> None:
    command = [sys.executable, "-c", PROGRAM, str(hours)]
    environment = {**os.environ, **variables}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    least = {"publish": 1.0, "http": 1.0, "handshake": 1.0, "close": 1.0, "requeue and backoff": 0.5, "reconnect": 0.5}
    assert set(found) == set(least)
    for name, seconds in found.items():
        assert least[name] - 0.02 <= seconds < LATEST, (name, seconds, done.stderr)
