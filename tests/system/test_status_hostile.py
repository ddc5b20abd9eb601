"""Slow clients of the status pages do not delay other clients."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from gnsq_lite.supervise import status
from gnsq_lite.supervise.status import StatusServer, Verdict
from tests.programs import running, wait_for
from tests.servers import ServerHandle
from tests.system.worker_programs import pages_at


class Pages:
    def metrics(self) -> tuple[str, bytes]:
        return "text/plain", b"up 1\n"

    def health(self) -> Verdict:
        return True, {}

    ready = health

    def history(self) -> dict[str, Any]:
        return {}

    running = history


def is_healthy(port: int) -> bool:
    with urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5) as answer:
        body: Any = answer.read()
    return b'"ok": true' in body


class SlowPages(Pages):
    """Renders the live page's document only after *may_end* is set."""

    def __init__(self) -> None:
        self.begun, self.may_end, self.made = threading.Event(), threading.Event(), 0

    def live(self, brief: bool) -> dict[str, Any]:
        self.begun.set()
        assert self.may_end.wait(60)
        self.made += 1
        return {"made": self.made}


def begin_request(port: int) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), 10)
    client.sendall(b"GET /metrics HTTP/1.1\r\nX-Slow: ")
    return client


def test_a_request_has_one_time_limit_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "TIMEOUT", 0.5)
    port = StatusServer(Pages(), ("127.0.0.1", 0)).start().port
    with begin_request(port) as client:
        client.settimeout(0.05)
        began = time.monotonic()
        while True:  # a byte each 50 ms
            try:
                client.sendall(b"x")
                if client.recv(1) == b"":
                    break
            except TimeoutError:
                assert time.monotonic() - began < 30
            except ConnectionError:
                break


def test_a_new_connection_takes_the_place_of_the_oldest_incomplete_request() -> None:
    pages = SlowPages()
    port = StatusServer(pages, ("127.0.0.1", 0)).start().port
    with ExitStack() as stack:
        rendered = stack.enter_context(socket.create_connection(("127.0.0.1", port), 30))
        rendered.sendall(b"GET /api/status HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert pages.begun.wait(30)
        clients = [stack.enter_context(begin_request(port)) for _ in range(status.MAX_CONNECTIONS + 36)]
        assert is_healthy(port)
        kept = status.MAX_CONNECTIONS - 2  # the others are the rendered one and the check of is_healthy()
        wait_for(lambda: all(is_closed(client) for client in clients[:-kept]))
        assert not any(is_closed(client) for client in clients[-kept:])
        pages.may_end.set()
        assert rendered.recv(100).startswith(b"HTTP/1.0 200")


def is_closed(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


LIMITED = """
import resource, runpy
from gnsq_lite import Worker

worker = Worker()

@worker.handler("t", "ch")
def handle(message): pass

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
    runpy.run_module("gnsq_lite", run_name="__main__")
"""


def drip_and_reconnect(port: int, stopped: threading.Event) -> None:
    """Keep 50 incomplete requests open, send a byte of each once a second, and replace closed connections."""
    clients: list[socket.socket] = []
    while not stopped.wait(1.0):
        for client in list(clients):
            with suppress(BlockingIOError, ConnectionError):
                client.sendall(b"x")
            if is_closed(client):
                clients.remove(client)
                client.close()
        clients += [begin_request(port) for _ in range(50 - len(clients))]
    for client in clients:
        client.close()


@pytest.mark.program
@pytest.mark.slow
def test_a_supervisor_with_few_descriptors_serves_probes_and_replaces_processes_among_slow_clients(
    broker: ServerHandle, tmp_path: Path
) -> None:
    (tmp_path / "jobs.py").write_text(LIMITED)
    flags = ["--nsqd-tcp-address", broker.tcp_address, "--processes", "2", "--metrics-port", "0"]
    with running(["jobs.py", "worker", "jobs:worker", *flags], tmp_path) as program, ExitStack() as stack:
        program.says("subscribed", times=2)
        port = int(pages_at(program).rpartition(":")[2].strip("/"))
        listed = Path(f"/proc/{program.process.pid}/task/{program.process.pid}/children")
        first = listed.read_text().split()
        stopped = threading.Event()
        threads = [threading.Thread(target=drip_and_reconnect, args=(port, stopped)) for _ in range(4)]
        for thread in threads:
            thread.start()
            stack.callback(thread.join)
        stack.callback(stopped.set)
        time.sleep(2.0)
        os.kill(int(first[0]), signal.SIGKILL)
        program.says("subscribed", times=3)
        began, before = time.monotonic(), cpu_of(program.process.pid)
        for _ in range(20):
            assert is_healthy(port)
            time.sleep(0.1)
        print(f"20 probes in {time.monotonic() - began:.1f} s, {cpu_of(program.process.pid) - before:.2f} s of CPU")
        assert time.monotonic() - began < 20.0


def cpu_of(pid: int) -> float:
    """Return the seconds of CPU that a process has used."""
    return sum(map(int, Path(f"/proc/{pid}/stat").read_text().split()[13:15])) / os.sysconf("SC_CLK_TCK")


def test_a_page_that_is_rendered_slowly_delays_no_probe_and_is_rendered_once_for_all_clients() -> None:
    pages = SlowPages()
    port = StatusServer(pages, ("127.0.0.1", 0)).start().port
    with ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection(("127.0.0.1", port), 30)) for _ in range(50)]
        for client in clients:
            client.sendall(b"GET /api/status HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert pages.begun.wait(30)
        assert is_healthy(port)
        wait_for(lambda: sum("process_request_thread" in thread.name for thread in threading.enumerate()) >= 50)
        pages.may_end.set()
        assert all(b" 200 " in client.recv(4096) for client in clients)
    assert pages.made < 10
