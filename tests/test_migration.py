"""Scripts for gnsq and pynsq, as their users write them, run after the steps that the migration pages give."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gnsq_lite.broker import Broker
from tests.docblocks import blocks, local
from tests.programs import wait_for

DOCS = Path(__file__).parent.parent / "docs"

GNSQ = """
import gnsq

seen = []
reader = gnsq.Reader("orders", "billing", nsqd_tcp_addresses=["127.0.0.1:4150"], max_tries=3, max_concurrency=2,
                     max_in_flight=10)

@reader.on_message.connect
def handler(reader, message):
    message.touch()
    seen.append(message.body)

reader.start(block=False)
producer = gnsq.Producer("127.0.0.1:4150")
producer.start()
producer.publish("orders", b"one", defer=100)
producer.multipublish("orders", [b"two", b"three"])
"""

#: Each step: what stands in the script, what is put there, and the words of the page's row that says so.
GNSQ_STEPS = [
    ("import gnsq\n", "from gnsq_lite import Reader, Writer\n", "``gnsq.Producer(addr)``"),
    ("@reader.on_message.connect\n", "", "``@reader.on_message.connect``"),
    ("def handler(reader, message):", "def handler(message):", "the third argument: ``def handler(message)``"),
    (
        'gnsq.Reader("orders", "billing", ',
        'Reader("orders", "billing", handler, ',
        "``Reader(topic, channel, handler, ...)``",
    ),
    ("max_tries=", "max_attempts=", "``max_attempts=``"),
    ("max_concurrency=", "concurrency=", "``concurrency=``"),
    ("gnsq.Producer(", "Writer(", "``Writer(addr)``; it starts by itself"),
    ("producer.start()\n", "", "``Writer(addr)``; it starts by itself"),
    ("defer=100", "defer=0.1", "``writer.publish(topic, data, defer=seconds)``"),
]

PYNSQ = """
import nsq

seen = []

def handler(message):
    seen.append(message.body)
    return True

reader = nsq.Reader(message_handler=handler, nsqd_tcp_addresses=["127.0.0.1:4150"], topic="orders", channel="billing",
                    max_tries=3, max_in_flight=9)
nsq.run()
writer = nsq.Writer(["127.0.0.1:4150"])
writer.pub("orders", b"one")
writer.mpub("orders", [b"two", b"three"])
"""

PYNSQ_STEPS = [
    ("import nsq\n", "from gnsq_lite import Reader, Writer\n", "``nsq.Reader(topic=, channel=, message_handler=)``"),
    ("nsq.Reader(message_handler=", "Reader(handler=", "``Reader(topic, channel, handler)``"),
    ("max_tries=", "max_attempts=", "``max_attempts=``"),
    ("nsq.run()", "reader.start(block=False)", "``reader.start()``"),
    ("nsq.Writer(", "Writer(", "``Writer([addresses])``"),
    ("writer.pub(", "writer.publish(", "``writer.publish(topic, body)``"),
    ("writer.mpub(", "writer.multipublish(", "``writer.multipublish``"),
]


def moved_up(script: str) -> str:
    """Put the Reader's lines behind the handler it names: a function is passed, so it has to be there first."""
    lines = script.splitlines(keepends=True)
    at = next(n for n, line in enumerate(lines) if line.startswith("reader = Reader("))
    start = next(n for n, line in enumerate(lines) if line.startswith("reader.start("))
    made = lines[at : at + 2]
    del lines[at : at + 2]
    lines[start - 2 : start - 2] = made
    return "".join(lines)


@pytest.mark.parametrize(
    ("page", "script", "steps"),
    [("from_gnsq.rst", GNSQ, GNSQ_STEPS), ("from_pynsq.rst", PYNSQ, PYNSQ_STEPS)],
    ids=["gnsq", "pynsq"],
)
def test_a_script_runs_after_the_steps_of_its_page(page: str, script: str, steps: list[tuple[str, str, str]]) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    for before, after, row in steps:
        assert before in script, before
        assert row in text, row
        script = script.replace(before, after)
    if page == "from_gnsq.rst":
        script = moved_up(script)
    namespace: dict[str, Any] = {}
    with Broker() as broker:
        exec(compile(local(script, broker), page, "exec"), namespace)
        wait_for(lambda: len(namespace["seen"]) == 3)
        namespace["reader"].close()
        namespace.get("producer", namespace.get("writer")).close()
    assert sorted(namespace["seen"]) == [b"one", b"three", b"two"]


@pytest.mark.parametrize(("page", "lines"), [("from_gnsq.rst", 3), ("from_pynsq.rst", 2)])
def test_the_programs_of_a_page_run_as_pasted(page: str, lines: int, tmp_path: Path) -> None:
    with Broker() as broker:
        worker, publisher = (local(source, broker) for _, source in blocks(DOCS / page))
        for name, source in (("worker.py", worker), ("publisher.py", publisher)):
            (tmp_path / name).write_text(source, encoding="utf-8")
        argv = [sys.executable, "-u", "worker.py"]
        running = subprocess.Popen(argv, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            subprocess.run([sys.executable, "publisher.py"], cwd=tmp_path, check=True, timeout=60)
            channel: list[Any] = []

            def is_done() -> bool:
                channel[:] = [c for t in broker.node.stats()["topics"] for c in t["channels"]]
                left = [sum(c[name] for c in channel) for name in ("in_flight_count", "deferred_count", "depth")]
                return bool(channel) and channel[0]["message_count"] >= lines and not any(left)

            wait_for(is_done)
            running.send_signal(signal.SIGTERM)
            out, err = running.communicate(timeout=60)
        finally:
            running.kill()
            running.communicate()
    assert (running.returncode, err, len(out.splitlines())) == (0, b"", lines)
