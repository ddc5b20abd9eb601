"""A call to a silent server blocks no other greenlet, monkey-patched or not."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import gevent
import pytest
from gevent import monkey
from gevent._hub_local import get_hub_if_exists

from gnsq_lite import errors
from gnsq_lite.blocking_calls import call_cooperatively
from gnsq_lite.http import NsqdClient
from tests.native import native_held_lock, native_ident, start_native_thread
from tests.system.http_stub import answer, read_request, scripted

ROOT = Path(__file__).parents[2]

#: Program in which one greenlet counts while another greenlet calls a silent server.
BESIDE_A_DEAD_PEER = """
import sys, time
import gevent
from gnsq_lite import errors
from gnsq_lite.http import LookupdClient

ticks = 0
def tick():
    global ticks
    while True:
        gevent.sleep(0.01)
        ticks += 1

def ask(address):
    try:
        LookupdClient(address, http_timeout=1.0).lookup("t")
    except errors.HTTPTimeout:
        return "timeout"

gevent.spawn(tick)
began = time.monotonic()
asked = [gevent.spawn(ask, sys.argv[1]) for _ in range(20)]
gevent.joinall(asked, timeout=20)
assert [a.value for a in asked] == ["timeout"] * 20, [a.value for a in asked]
print(ticks, time.monotonic() - began)
"""


def silent(connection: object) -> None:
    time.sleep(30)


@pytest.mark.program
@pytest.mark.parametrize("patched", [False, True], ids=["unpatched", "patched"])
@pytest.mark.rule("DISC-1")
def test_twenty_calls_to_a_silent_server_take_as_long_as_one_and_block_no_greenlet(
    patched: bool, tmp_path: Path
) -> None:
    script = tmp_path / "beside.py"
    script.write_text(BESIDE_A_DEAD_PEER)
    command = [sys.executable, *(["-m", "gevent.monkey"] if patched else []), str(script)]
    with scripted(silent) as address:
        run = subprocess.run(
            [*command, address],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert run.returncode == 0, run.stderr
    ticks, elapsed = run.stdout.split()
    assert float(elapsed) < 15.0  # 1 s; one after another, the calls would take 20 s
    assert int(ticks) > 20
    assert run.stderr == ""


def answering(delay: float) -> Callable[..., None]:
    def script(connection: object) -> None:
        read_request(connection)  # type: ignore[arg-type]
        time.sleep(delay)
        connection.sendall(answer(b"OK"))  # type: ignore[attr-defined]

    return script


def test_forty_calls_wait_for_slow_answers_at_the_same_time() -> None:
    with scripted(answering(0.5)) as address, NsqdClient(address, http_timeout=20.0) as client:
        began = time.monotonic()
        asking = [gevent.spawn(client.ping) for _ in range(40)]
        gevent.joinall(asking)
        assert [each.value for each in asking] == ["OK"] * 40
        assert time.monotonic() - began < 15.0  # one after another, the answers would take 20 s


def test_a_greenlet_that_waits_for_an_answer_can_be_killed() -> None:
    with scripted(answering(20)) as address, NsqdClient(address, http_timeout=30.0) as client:
        asking = gevent.spawn(client.ping)
        gevent.sleep(0.1)
        began = time.monotonic()
        asking.kill()
        assert time.monotonic() - began < 15.0  # the answer would come after 20 s


def test_a_timeout_of_the_caller_interrupts_the_call() -> None:
    with scripted(answering(20)) as address, NsqdClient(address, http_timeout=30.0) as client:
        with pytest.raises(gevent.Timeout) as caught, gevent.Timeout(0.2) as limit:
            client.ping()
        assert caught.value is limit


def test_in_a_thread_without_a_hub_the_call_creates_no_hub() -> None:
    seen: list[object] = []
    ended = native_held_lock()

    def run() -> None:
        seen.append(call_cooperatively(native_ident, timeout=5.0) == native_ident())
        seen.append(get_hub_if_exists())
        ended.release()

    start_native_thread("without-hub", run)
    ended.acquire(True, 10)
    assert seen == [True, None]


def test_an_exception_of_the_call_is_raised_and_not_printed(capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise errors.HTTPConnectError("http://x", "no")

    def ask() -> object:
        with pytest.raises(errors.HTTPConnectError) as caught:
            call_cooperatively(fail, timeout=5.0)
        return caught.value.args

    assert gevent.spawn(ask).get(timeout=10) == ("http://x", "no")
    assert capfd.readouterr().err == ""


def test_a_call_that_does_not_end_raises_timeout_error() -> None:
    release = threading.Event()
    wait = release.wait if not monkey.is_module_patched("threading") else gevent.event.Event().wait

    def ask() -> str:
        with pytest.raises(TimeoutError, match=r"no result in 0\.2 s"):
            call_cooperatively(wait, 20, timeout=0.2)
        return "given up"

    began = time.monotonic()
    assert gevent.spawn(ask).get(timeout=15) == "given up"
    assert time.monotonic() - began < 15.0
    release.set()
