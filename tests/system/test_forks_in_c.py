"""Forks that do not run Python's fork hooks: in uWSGI's master, and in other C code that calls fork()."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest

from tests.programs import LIMIT, python, wait_for
from tests.servers import ServerHandle

pytestmark = pytest.mark.program

FORKS = """
import os, sys
how, address, topic = sys.argv[1:]
if how == "patched":
    from gevent import monkey
    monkey.patch_all()
import ctypes, threading, time
from gnsq_lite import Reader, Writer, errors
libc = ctypes.PyDLL(None)
writer, other = Writer(address, publish_timeout=10), Writer(address, publish_timeout=10)
writer.publish(topic, b"parent")
other.publish(topic, b"parent")
reader = Reader(topic + "_read", "ch", print, nsqd_tcp_addresses=address)
reader.start(block=False)
while not reader.stats().connections:
    time.sleep(0.01)
time.sleep(0.2)  # a thread that waits for the interpreter's lock in a fork in C would be fatal to any child
pid = libc.fork()
if pid == 0:
    threads = [threading.Thread(target=each.publish, args=(topic, b"child")) for each in (writer, other) * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.multipublish(topic, [b"child", b"child"])
    assert (writer.stats().published, other.stats().published) == (4, 2), writer.stats()
    for call in (reader.join,) if how == "patched" else (reader.join, reader.pause):
        try:
            call()
        except errors.ClosedError as error:
            assert "parent" in str(error), error
        else:
            raise AssertionError(call)
    reader.close()
    writer.flush()
    writer.close()
    os._exit(7)
waited = os.waitpid(pid, 0) if how == "plain" else __import__("gevent").monkey.get_original("os", "waitpid")(pid, 0)
writer.publish(topic, b"parent")
assert reader.stats().state == "connected"
reader.close()
writer.close()
other.close()
print(os.waitstatus_to_exitcode(waited[1]))
"""


@pytest.mark.rule("PUB-1")
@pytest.mark.parametrize("how", ["plain", "patched"])
def test_a_child_forked_without_hooks_publishes_and_is_told_what_is_its_parents(
    broker: ServerHandle, topic: str, how: str
) -> None:
    done = python(FORKS, how, broker.tcp_address, topic)
    assert (done.returncode, done.stdout) == (0, b"7\n"), done
    assert int(broker.stats(topic)["depth"]) == 3 + 6


APPLICATION = """
import os
from gnsq_lite import Writer
writer = Writer(os.environ["ADDRESS"], publish_timeout=10)
writer.publish(os.environ["TOPIC"], b"preloaded")
def application(environ, start_response):
    writer.publish(os.environ["TOPIC"], b"asked")
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"published %d" % writer.stats().published]
"""


def uwsgi() -> str | None:
    """Return where uWSGI is: beside this Python, or on PATH."""
    beside = Path(sys.executable).parent / "uwsgi"
    return str(beside) if beside.exists() else shutil.which("uwsgi")


@pytest.mark.skipif(uwsgi() is None, reason="no uWSGI: pip install uwsgi")
@pytest.mark.parametrize(
    "flags",
    [[], ["--py-call-osafterfork"], ["--enable-threads"], ["--lazy-apps"], ["--lazy-apps", "--enable-threads"]],
    ids=" ".join,
)
def test_a_writer_of_an_application_publishes_in_uwsgis_workers(
    broker: ServerHandle, topic: str, flags: list[str], tmp_path: Path
) -> None:
    (tmp_path / "application.py").write_text(APPLICATION)
    loads = 2 if "--lazy-apps" in flags else 1  # each worker loads the module and publishes, or only the master does
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [str(uwsgi()), "--http-socket", address, "--master", "--processes", "2", "--need-app", "--die-on-term"]
    command += ["--home", sys.prefix, "--wsgi-file", str(tmp_path / "application.py"), *flags]
    environment = {"ADDRESS": broker.tcp_address, "TOPIC": topic, "PYTHONPATH": str(Path(__file__).parents[2])}
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log, env=environment) as run,
    ):
        try:
            answer = _asked(f"http://{address}/")
            wait_for(lambda: int(broker.stats(topic)["depth"]) == loads + 1)
        finally:
            run.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                run.wait(10)
            run.kill()
    assert answer == b"published %d" % loads, (tmp_path / "log").read_text()


def _asked(url: str) -> bytes:
    """Return what the application answers, once it listens."""
    deadline = time.monotonic() + LIMIT
    while True:
        try:
            with urllib.request.urlopen(url, timeout=20) as answer:
                return bytes(answer.read())
        except OSError:
            assert time.monotonic() < deadline, "no answer"
            time.sleep(0.05)
