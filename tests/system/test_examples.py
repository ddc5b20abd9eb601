"""Each example is run by the command in its first lines."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gnsq_lite.broker import Broker
from tests.programs import running, wait_for
from tests.servers import Response, http_call

pytestmark = pytest.mark.program


@pytest.fixture
def nsqd(monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    with Broker(lookupd=False) as broker:
        monkeypatch.setenv("NSQD_TCP_ADDRESSES", broker.nsqd_tcp_address)
        yield broker


def topic(nsqd: Broker, name: str) -> dict[str, Any]:
    stats = json.loads(http_call(nsqd.http_address, "GET", "/stats?format=json").body)
    return next((t for t in stats["topics"] or [] if t["topic_name"] == name), {})


def test_celery_like_tasks_run_in_the_worker(nsqd: Broker, tmp_path: Path) -> None:
    flags = ["-m", "gnsq_lite", "worker", "examples.celery_like", "--processes", "2", "--concurrency", "4"]
    with running(flags, tmp_path, name="worker") as worker:
        worker.says("connected", times=2)
        calls = "from examples.celery_like import add\nassert add(1, 1) == 2\n"
        calls += "for n in range(10): add.delay(n, 100)\nadd.apply_async((5, 5), countdown=0.5)\n"
        with running(["-c", calls], tmp_path, name="caller") as caller:
            assert caller.ends() == 0, caller.output
        worker.says("5 + 5 = 10")
        worker.says("+ 100 =", times=10)
        worker.signal(signal.SIGTERM)
        assert worker.ends() == 0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.parametrize(
    "flags", [["--workers", "2"], ["--workers", "2", "--preload"], ["--worker-class", "gevent"]], ids=" ".join
)
def test_flask_publishes_under_gunicorn_prefork_preload_and_gevent(
    nsqd: Broker, tmp_path: Path, flags: list[str]
) -> None:
    pytest.importorskip("flask")
    pytest.importorskip("gunicorn")
    port = free_port()
    program = ["-m", "gunicorn", "--bind", f"127.0.0.1:{port}", *flags, "examples.flask_publisher:app"]
    with running(program, tmp_path) as server:
        server.says("Booting worker", times=1 if "gevent" in flags else 2)

        def click(number: int) -> Response:
            return http_call(f"127.0.0.1:{port}", "POST", "/clicks", b"%d" % number)

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(click, range(40)))
        assert {answer.status for answer in answers} == {201}, server.output
        wait_for(lambda: topic(nsqd, "clicks").get("message_count") == 40)
        assert "Exception in" not in server.output
        server.signal(signal.SIGTERM)
        assert server.ends() == 0
