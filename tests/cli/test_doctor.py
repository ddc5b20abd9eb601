"""Changes that the doctor lists for programs for pynsq and gnsq, and programs that need no change."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gnsq_lite.cli.doctor import examine
from tests.cli.programs import run as program
from tests.cli.programs import run_here

PYNSQ = """\
import nsq
import tornado.ioloop
import functools

class Mine(nsq.Reader):
    def giving_up(self, message):
        pass

def work(message):
    age = message.timestamp / 1e9
    if not message.has_responded():
        return False
    message.requeue(time_ms=500)
    return age > 3

async def later(message):
    return True

reader = nsq.Reader("orders", "billing", message_handler=work, max_tries=3, msg_timeout=1000,
                    tls_v1=True)
other = nsq.Reader("orders", "other", message_handler=later)
writer = nsq.Writer(["127.0.0.1:4150"])
writer.pub("orders", b"x", callback=functools.partial(print))
writer.dpub("orders", 500, b"x")
nsq.run()
"""

GNSQ = """\
from gnsq import Consumer, Producer
from gnsq.errors import NSQRequeueMessage

consumer = Consumer("orders", "billing", max_in_flight=3)

def handler(consumer, message):
    if consumer.is_starved:
        message.requeue(1000)
    raise NSQRequeueMessage()

consumer.on_message.connect(handler)
consumer.on_giving_up.connect(print)
consumer.start()
producer = Producer("localhost:4150")
producer.start()
producer.publish("orders", "text", defer=100)
"""


def found(source: str) -> dict[int, list[str]]:
    lines: dict[int, list[str]] = {}
    for each in examine(source, "program.py"):
        lines.setdefault(each.line, []).append(("[silent] " if each.silent else "") + each.text)
    return lines


def line_of(source: str, part: str) -> int:
    return next(number for number, line in enumerate(source.splitlines(), 1) if part in line)


@pytest.mark.parametrize(
    ("source", "at", "said"),
    [
        (PYNSQ, "import nsq", "from gnsq_lite import"),
        (PYNSQ, "import tornado", "Tornado"),
        (PYNSQ, "class Mine", "subclass"),
        (PYNSQ, "def giving_up", "on_give_up="),
        (PYNSQ, "message.timestamp", "[silent] message.timestamp"),
        (PYNSQ, "has_responded", "remove the parentheses"),
        (PYNSQ, "return False", "[silent] return False"),
        (PYNSQ, "time_ms", "[silent] requeue"),
        (PYNSQ, "return age", "[silent] the return value is ignored"),
        (PYNSQ, "reader = ", "[silent] several handlers run"),
        (PYNSQ, "reader = ", "max_attempts="),
        (PYNSQ, "msg_timeout", "[silent] msg_timeout="),
        (PYNSQ, "tls_v1", "tls=True"),
        (PYNSQ, "writer = ", "Writer()"),
        (PYNSQ, "writer.pub", "writer.publish"),
        (PYNSQ, "writer.dpub", "[silent] dpub"),
        (PYNSQ, "nsq.run()", "reader.start()"),
        (GNSQ, "from gnsq import", "from gnsq_lite import"),
        (GNSQ, "consumer = ", "[silent] gnsq requeues a failed message"),
        (GNSQ, "def handler", "def handler(message)"),
        (GNSQ, "is_starved", "[silent] is_starved"),
        (GNSQ, "requeue(1000)", "[silent] requeue"),
        (GNSQ, "raise NSQRequeueMessage", "raise Requeue("),
        (GNSQ, "on_message", "third argument"),
        (GNSQ, "on_giving_up", "on_give_up="),
        (GNSQ, "producer.start", "a Writer needs no start()"),
        (GNSQ, "producer.publish", "[silent] defer="),
        (GNSQ, "producer.publish", "bytes"),
    ],
)
def test_each_difference_is_found_at_its_line(source: str, at: str, said: str) -> None:
    assert any(said in text for text in found(source)[line_of(source, at)]), found(source)


def test_code_that_works_unchanged_is_not_listed() -> None:
    assert line_of(GNSQ, "consumer.start") not in found(GNSQ)
    assert found("import os\nfrom gnsq_lite import Reader\n\ndef handler(message):\n    return False\n") == {}


def test_an_alias_of_a_module_or_class_is_recognized() -> None:
    lines = found("import nsq as queue\nfrom gnsq import Producer as P\n\nqueue.run()\nP('x')\n")
    assert "reader.start()" in lines[4][0]
    assert "Writer" in lines[5][0]


def test_a_module_imported_by_a_call_is_recognized() -> None:
    lines = found('import importlib\nq = importlib.import_module("gnsq")\nr = q.Reader("t", "c", "h:1")\nr.conns\n')
    assert any("Reader(topic" in text for text in lines[3])
    assert lines[4] == ["conns: reader.stats()"]


def test_return_false_is_listed_only_for_pynsq() -> None:
    source = "import {}\n\ndef h(message):\n    return False\n\nr = {}.Reader('t', 'c', message_handler=h)\n"
    assert "[silent] return False" in found(source.format("nsq", "nsq"))[4][0]
    assert 4 not in found(source.format("gnsq", "gnsq"))  # gnsq finishes the message


def test_a_program_without_its_imports_is_examined() -> None:
    assert "Reader" in found('c = gnsq.Consumer("t", "c", "localhost:4150")\n')[1][0]


def test_a_program_for_python_2_is_examined_up_to_a_syntax_error() -> None:
    lines = found('import nsq\n\ndef h(m):\n    print "got", m\n    return True\n\nnsq.Reader(message_handler=h)\n')
    assert lines[4] == ["print is a function: print(...)"]
    assert 7 in lines
    assert list(found("import nsq\nexec 'x'\n")) == [2]


def test_doctor_exits_with_1_if_it_lists_lines_and_with_0_otherwise(tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text(PYNSQ)
    (tmp_path / "new.py").write_text("from gnsq_lite import Reader\n")
    done = program("doctor", str(tmp_path / "old.py"), str(tmp_path / "new.py"))
    assert done.returncode == 1
    assert done.stdout.decode().splitlines()[0].startswith(f"{tmp_path}/old.py:1: ")
    assert b"new.py" not in done.stdout
    done = run_here("doctor", "--json", str(tmp_path / "old.py"))
    assert {"file", "line", "text", "silent"} == set(json.loads(done.stdout)[0])
    done = run_here("doctor", str(tmp_path / "new.py"))
    assert (done.returncode, done.stdout) == (0, b"")
