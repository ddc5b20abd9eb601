"""The CPU time of an idle Reader with a hundred nsqds."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack

import pytest

from gnsq_lite.broker import Broker
from tests.cli.programs import environment

CONNECTIONS = 100
SECONDS = 3.0

#: CPU seconds a second, and KiB a connection; measured: 0.01 and 20.
CPU_BUDGET = 0.10
MEMORY_BUDGET = 100.0

PROGRAM = """
import json, resource, sys, time
from gnsq_lite import Reader

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 1024

def wait(count):
    deadline = time.monotonic() + 30
    while len(reader.stats().connections) < count and time.monotonic() < deadline:
        time.sleep(0.05)

addresses = sys.argv[2:]
reader = Reader("t", "c", print, nsqd_tcp_addresses=addresses, max_in_flight=10, heartbeat_interval=1.0)
warm = Reader("t", "warm", print, nsqd_tcp_addresses=addresses[0])
warm.start(block=False)
time.sleep(0.5)
before = resident()
reader.start(block=False)
wait(len(addresses))
began = time.process_time()
time.sleep(float(sys.argv[1]))
used = time.process_time() - began
stats = reader.stats()
print(json.dumps({
    "cpu": used / float(sys.argv[1]),
    "memory": (resident() - before) / len(addresses),
    "connections": len(stats.connections),
    "share": stats.share,
    "reconnects": stats.reconnects,
}))
reader.close()
warm.close()
"""


@pytest.mark.rule("RDY-4")
def test_a_hundred_idle_connections_stay_within_their_budget() -> None:
    with ExitStack() as stack:
        brokers = [stack.enter_context(Broker(nsqds=CONNECTIONS // 2, lookupd=False)) for _ in range(2)]
        addresses = [address for broker in brokers for address in broker.nsqd_tcp_addresses]
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(SECONDS), *addresses],
            capture_output=True,
            timeout=100,
            env=environment(),
            check=False,
        )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    print(figures)
    assert (figures["connections"], figures["reconnects"]) == (CONNECTIONS, 0)
    assert figures["share"] <= 10
    assert figures["cpu"] < CPU_BUDGET
    assert figures["memory"] < MEMORY_BUDGET
