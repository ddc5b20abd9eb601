"""``gnsq-lite worker``: replacement of processes, one by one."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gnsq_lite.broker import Broker
from tests.programs import STARTING, Program, running, wait_for
from tests.servers import ServerHandle
from tests.system.worker_programs import APP, channel, get, is_alive, pages_at, pids, publish, worker

pytestmark = pytest.mark.slow


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A directory with a short path: a supervisor uses /tmp if the paths of its sockets would be too long."""
    with tempfile.TemporaryDirectory(prefix="w") as path:
        yield Path(path)


def started(program: Program) -> list[int]:
    return [int(found) for found in re.findall(r"worker runs pid=(\d+)", program.output)]


def drains_after_the_next_is_ready(program: Program, count: int) -> bool:
    """Whether the n-th drain came after *count* + n processes had connected."""
    connected = drained = 0
    for line in program.output.splitlines():
        connected += ": connected" in line or " connected" in line.partition(" topic=")[0]
        if "worker drains" in line:
            drained += 1
            if connected < count + drained:
                return False
    return drained > 0


def test_sighup_replaces_processes_one_by_one_and_an_old_one_drains_when_the_new_one_is_ready(
    nsqd: Broker, tmp_path: Path
) -> None:
    with worker(tmp_path, nsqd.nsqd_tcp_address, "--processes", "2", "--metrics-port", "0") as program:
        address = pages_at(program)
        program.says("connected", times=2)
        wait_for(lambda: get(address, "/readyz")[0] == 200)
        publish(nsqd, b"slow")
        program.says("handled slow")
        answers: list[int] = []
        over = threading.Event()

        def probe() -> None:
            while not over.wait(0.1):
                answers.append(get(address, "/readyz")[0])

        prober = threading.Thread(target=probe)
        prober.start()
        program.signal(signal.SIGHUP)
        program.says("which was draining, ended (0)", times=2)
        over.set()
        prober.join()
        assert set(answers) == {200}
        assert "finished slow" in program.output
        assert drains_after_the_next_is_ready(program, 2), program.output
        first, second = started(program)[:2], started(program)[2:]
        assert len(set(first + second)) == 4
        assert [is_alive(pid) for pid in first + second] == [False, False, True, True]
        program.signal(signal.SIGTERM)
        assert program.ends() == 0
    assert channel(nsqd)["requeue_count"] == 0


def test_sighup_under_load_loses_and_repeats_no_message(broker: ServerHandle, tmp_path: Path) -> None:
    broker.prepare("t", "ch")
    app = APP.replace('say(f"handled', 'time.sleep(0.01)\n    say(f"handled')
    with worker(tmp_path, broker.tcp_address, "--processes", "2", "--concurrency", "4", app=app) as program:
        sent: list[int] = []
        program.says("connected", times=2)
        for round in range(3):
            program.signal(signal.SIGHUP)
            while program.output.count("which was draining, ended (0)") < 2 * (round + 1):
                broker.publish("t", *[b"m%d" % n for n in range(len(sent), len(sent) + 20)])
                sent.extend(range(len(sent), len(sent) + 20))
                time.sleep(0.05)
        program.says("handled m", times=len(sent))
        program.signal(signal.SIGTERM)
        assert program.ends() == 0
        handled = sorted(int(number) for number in re.findall(r"^handled m(\d+) ", program.output, re.M))
    assert handled == sent
    stats = broker.stats("t", "ch")
    assert (stats["depth"], stats["in_flight_count"], stats["timeout_count"]) == (0, 0, 0)


def test_after_sighup_with_broken_code_the_old_processes_continue(nsqd: Broker, tmp_path: Path) -> None:
    with worker(tmp_path, nsqd.nsqd_tcp_address, "--processes", "2") as program:
        program.says("connected", times=2)
        before = started(program)
        (tmp_path / "app.py").write_text("def broken(:\n", encoding="utf-8")
        program.signal(signal.SIGHUP)
        program.says("ended (2) before it was ready; the old processes keep running")
        publish(nsqd, *[b"x"] * 10)
        program.says("handled x", times=10)
        assert set(pids(program)) <= set(before)
        assert program.output.count("SyntaxError") == 1
        (tmp_path / "app.py").write_text(APP, encoding="utf-8")
        program.signal(signal.SIGHUP)
        program.says("which was draining, ended (0)", times=2)
        program.signal(signal.SIGTERM)
        assert program.ends() == 0


SLOW_TO_LOAD = "import time\nprint('loading', flush=True)\ntime.sleep(60)\n"


DOES_NOT_LOAD = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("loading", flush=True)
time.sleep(1.0)
"""


@pytest.mark.parametrize("new", [SLOW_TO_LOAD, DOES_NOT_LOAD], ids=["loads still", "does not load"])
def test_sigterm_during_a_replacement_drains_with_the_exit_code_of_the_old_process(
    nsqd: Broker, tmp_path: Path, new: str
) -> None:
    with worker(tmp_path, nsqd.nsqd_tcp_address) as program:
        program.says("connected")
        publish(nsqd, b"slow")
        program.says("handled slow")
        (tmp_path / "app.py").write_text(new, encoding="utf-8")
        program.signal(signal.SIGHUP)
        program.says("loading")
        program.signal(signal.SIGTERM)
        assert program.ends() == 0, program.output
        assert "finished slow" in program.output


def test_a_new_process_replaces_an_old_process_that_dies_meanwhile(nsqd: Broker, tmp_path: Path) -> None:
    with worker(tmp_path, nsqd.nsqd_tcp_address) as program:
        program.says("connected")
        (tmp_path / "app.py").write_text(SLOW_TO_LOAD, encoding="utf-8")
        program.signal(signal.SIGHUP)
        program.says("loading")
        os.kill(started(program)[0], signal.SIGKILL)
        program.says("ended (-9); the new process replaces it")
        (tmp_path / "app.py").write_text(APP, encoding="utf-8")
        program.signal(signal.SIGTERM)
        assert program.ends() == 0


NEVER_READY = """
import sys
from gnsq_lite.supervise.processes import Supervisor
script = '''
import os, signal, time
from gnsq_lite.supervise.shared_memory import ProcessMemory
from gnsq_lite.supervise.slots import take_slot
slot = take_slot()
open(slot.socket, "w").close()
if not os.path.exists("old"):
    open("old", "w").close()
    memory = ProcessMemory(slot.socket)
    memory.ready = memory.handlers = 1
print("up", os.getpid(), flush=True)
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
while True: time.sleep(0.1)
'''
sys.exit(Supervisor([sys.executable, "-c", script], 1, ready_timeout=0.5).run())
"""


def test_a_new_process_that_is_not_ready_in_time_is_stopped_and_the_old_one_continues(tmp_path: Path) -> None:
    with running(["-c", NEVER_READY], tmp_path) as program:
        program.says("up")
        program.signal(signal.SIGHUP)
        program.says("was not ready within 0.5 s; the old processes keep running")
        first, second = pids(program, "up")
        wait_for(lambda: not is_alive(second))
        assert is_alive(first)
        program.signal(signal.SIGTERM)
        assert program.ends() == 0


def test_max_messages_replaces_a_process_and_loses_and_repeats_no_message(nsqd: Broker, tmp_path: Path) -> None:
    with worker(tmp_path, nsqd.nsqd_tcp_address, "--max-messages", "10") as program:
        program.says("connected")
        publish(nsqd, *[b"a%d" % n for n in range(25)])
        program.says("it has handled 25 messages")
        program.says("which was draining, ended (0)")
        publish(nsqd, *[b"b%d" % n for n in range(9)])
        program.says("handled b", times=9)
        bodies = re.findall(r"^handled (\w+)", program.output, re.M)
        assert sorted(bodies) == sorted([f"a{n}" for n in range(25)] + [f"b{n}" for n in range(9)])
        assert drains_after_the_next_is_ready(program, 1)
        program.signal(signal.SIGTERM)
        assert program.ends() == 0


LEAKS = """
import os
from gnsq_lite import Worker

worker, kept = Worker(concurrency=2, max_attempts=3), []

@worker.handler("t", "ch")
def handle(message):
    kept.append(b"x" * (10 << 20))
    resident = int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20
    os.write(1, f"handled {message.body.decode()} {resident}\\n".encode())
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc")
def test_max_memory_bounds_the_memory_of_handlers_that_leak(nsqd: Broker, tmp_path: Path) -> None:
    with worker(tmp_path, nsqd.nsqd_tcp_address, "--max-memory", "160", "--processes", "2", app=LEAKS) as program:
        program.says("connected", times=2)
        publish(nsqd, *[b"%d" % number for number in range(40)])
        wait_for(lambda: len(set(re.findall(r"handled (\d+) ", program.output))) == 40, timeout=STARTING)
        assert max(map(int, re.findall(r"handled \d+ (\d+)", program.output))) < 1.5 * 160
        assert "it gets no messages until it is replaced" in program.output
        assert "giving up" not in program.output


def test_max_memory_replaces_a_process_with_growing_delays(nsqd: Broker, tmp_path: Path) -> None:
    with worker(tmp_path, nsqd.nsqd_tcp_address, "--max-memory", "1") as program:
        program.says("is to be replaced in 0.5 s: it uses ")
        program.says("is to be replaced in 1 s: it uses ")
        program.says("is to be replaced in 2 s: it uses ")
        program.signal(signal.SIGTERM)
        assert program.ends() == 0


def test_healthz_is_200_and_readyz_503_while_a_process_is_down(nsqd: Broker, tmp_path: Path) -> None:
    with worker(tmp_path, nsqd.nsqd_tcp_address, "--processes", "2", "--metrics-port", "0") as program:
        address = pages_at(program)
        program.says("connected", times=2)
        wait_for(lambda: get(address, "/readyz")[0] == 200)
        (tmp_path / "app.py").write_text(SLOW_TO_LOAD, encoding="utf-8")
        os.kill(started(program)[0], signal.SIGKILL)
        program.says("loading")
        assert get(address, "/readyz")[0] == 503
        status, body = get(address, "/healthz")
        assert (status, json.loads(body)["pid"]) == (200, program.process.pid)


# -- the service manager


class Manager:
    """The other end of NOTIFY_SOCKET."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self.socket.settimeout(0.1)
        self.heard: list[str] = []

    def hears(self, text: str, times: int = 1) -> None:
        def look() -> bool:
            try:
                while True:
                    self.heard.append(self.socket.recv(4096).decode())
            except TimeoutError:
                return sum(text in each for each in self.heard) >= times

        wait_for(look, STARTING)


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Manager]:
    if request.param == "abstract" and sys.platform != "linux":
        made = Manager(str(tmp_path / "notify"))
    else:
        made = Manager(f"@gnsq-lite-{os.getpid()}" if request.param == "abstract" else str(tmp_path / "notify"))
    monkeypatch.setenv("NOTIFY_SOCKET", made.address)
    monkeypatch.setenv("WATCHDOG_USEC", "200000")
    yield made
    made.socket.close()


def test_the_service_manager_gets_ready_watchdog_reloading_and_stopping(
    nsqd: Broker, tmp_path: Path, manager: Manager
) -> None:
    app = APP + "print('told:', [n for n in os.environ if n.startswith(('NOTIFY', 'WATCHDOG'))], flush=True)\n"
    with worker(tmp_path, nsqd.nsqd_tcp_address, "--processes", "2", app=app) as program:
        manager.hears("READY=1")
        manager.hears("STATUS=2 of 2 processes ready")
        alive = manager.heard.count("WATCHDOG=1")
        manager.hears("WATCHDOG=1", times=alive + 3)
        program.signal(signal.SIGHUP)
        manager.hears("RELOADING=1\nMONOTONIC_USEC=")
        manager.hears("READY=1", times=2)
        assert program.output.count("told: []") == 4
        program.signal(signal.SIGTERM)
        manager.hears("STOPPING=1")
        assert program.ends() == 0
        manager.hears("STATUS=stopping: ")


def test_a_missing_service_manager_does_not_delay_the_worker(
    nsqd: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    with worker(tmp_path, nsqd.nsqd_tcp_address) as program:
        program.says("connected")
        program.signal(signal.SIGTERM)
        assert program.ends() == 0


# -- what is left behind


def test_a_supervisor_removes_its_folder(
    nsqd: Broker, tmp_path: Path, short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(short_folder))
    with worker(tmp_path, nsqd.nsqd_tcp_address) as program:
        program.says("connected")
        assert len(list(short_folder.iterdir())) == 1
        program.signal(signal.SIGTERM)
        assert program.ends() == 0
    assert list(short_folder.iterdir()) == []
