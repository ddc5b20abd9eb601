"""Running handler calls: current_message(), Reader.running(), the log, /api/running and ``gnsq-lite running``."""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gnsq_lite import Message, Reader, current_message
from gnsq_lite.consume.calls import RunningCall
from gnsq_lite.stats import HUNG, ReaderStats
from gnsq_lite.supervise.logs import JSONFormatter, MessageFilter, TextFormatter
from gnsq_lite.worker.hung import HungCalls
from tests.programs import STARTING, running, wait_for
from tests.servers import ServerHandle
from tests.system.worker_programs import get, pages_at, worker

#: In a monkey-patched process a thread that a handler starts is a greenlet of the handler's own thread.
THREAD = pytest.param("thread", marks=pytest.mark.unpatched)


@pytest.mark.parametrize("pool", [THREAD, "greenlet", "inline"])
def test_the_calling_threads_or_greenlets_message_is_known(broker: ServerHandle, topic: str, pool: Any) -> None:
    seen: list[tuple[Message | None, Message]] = []
    in_thread: list[Message | None] = []

    def handle(message: Message) -> None:
        if pool == "thread":
            other = threading.Thread(target=lambda: in_thread.append(current_message()))
            other.start()
            other.join()
        seen.append((current_message(), message))

    broker.prepare(topic, "ch")
    broker.publish(topic, b"1", b"2", b"3")
    with Reader(topic, "ch", handle, nsqd_tcp_addresses=broker.tcp_address, max_in_flight=3, handler_pool=pool):
        wait_for(lambda: len(seen) == 3)
    assert all(current is message for current, message in seen)
    assert current_message() is None
    assert not any(in_thread)


def test_the_first_message_of_a_list_is_the_current_one(broker: ServerHandle, topic: str) -> None:
    seen: list[bool] = []
    broker.prepare(topic, "ch")
    broker.publish(topic, b"1", b"2")
    with Reader(
        topic,
        "ch",
        lambda messages: seen.append(current_message() is messages[0]),
        nsqd_tcp_addresses=broker.tcp_address,
        max_in_flight=2,
        batch_size=2,
    ):
        wait_for(lambda: seen)
    assert seen[0]


@pytest.mark.parametrize("pool", [THREAD, "greenlet"])
def test_running_calls_have_their_message_age_and_stack(broker: ServerHandle, topic: str, pool: Any) -> None:
    broker.prepare(topic, "ch")
    broker.publish(topic, b"1", b"2")
    release = threading.Event()

    def handle(message: Message) -> None:
        while not release.is_set():
            import gevent

            (time.sleep if pool == "thread" else gevent.sleep)(0.01)

    with Reader(
        topic, "ch", handle, nsqd_tcp_addresses=broker.tcp_address, max_in_flight=2, concurrency=2, handler_pool=pool
    ) as reader:
        calls = wait_for(lambda: found if len(found := reader.running()) == 2 and found[1].seconds else None)
        assert {(call.topic, call.channel, call.attempt, call.messages) for call in calls} == {(topic, "ch", 1, 1)}
        assert calls[0].seconds >= calls[1].seconds
        assert len({call.id for call in calls}) == 2
        assert all(call.thread.startswith(pool) for call in calls)
        for call in calls:
            assert re.match(r"system/test_running_calls.py:\d+ handle", call.stack), call.stack
        release.set()
        wait_for(lambda: not reader.running())


def record(text: str) -> logging.LogRecord:
    return logging.makeLogRecord({"name": "shop", "levelname": "INFO", "msg": text, "topic": "its own"})


def test_log_records_of_a_handlers_code_have_its_message(broker: ServerHandle, topic: str) -> None:
    lines: list[str] = []
    ids: list[str] = []

    def handle(message: Message) -> None:
        ids.append(message.id.decode())
        for formatter in (TextFormatter("0"), JSONFormatter("0")):
            made = record("working")
            assert MessageFilter().filter(made)
            lines.append(formatter.format(made))

    broker.prepare(topic, "ch")
    broker.publish(topic, b"1")
    with Reader(topic, "ch", handle, nsqd_tcp_addresses=broker.tcp_address, handler_pool="thread"):
        wait_for(lambda: len(lines) == 2)
    assert lines[0].endswith(f"working topic=its own channel=ch message_id={ids[0]} attempt=1")
    found = json.loads(lines[1])
    assert (found["channel"], found["message_id"], found["attempt"]) == ("ch", ids[0], 1)
    outside = record("x")
    MessageFilter().filter(outside)
    assert not hasattr(outside, "message_id")


class HungWorker:
    """A Worker with one Reader, whose calls and state the test sets."""

    def __init__(self) -> None:
        self.calls: list[RunningCall] = []
        self.state: dict[str, Any] = {}
        self.readers = [SimpleNamespace(running=self.running)]

    def running(self, at_least: float) -> list[RunningCall]:
        return [call for call in self.calls if call.seconds >= at_least]

    def stats(self, timeout: float) -> tuple[ReaderStats, ...]:
        return (ReaderStats(topic="t", channel="ch", **self.state),)


@pytest.mark.parametrize(
    ("seconds", "state", "depth", "waits"),
    [
        (HUNG, {"queued": 2}, None, "2 messages wait"),
        (HUNG, {"queued": 2}, 5, "7 messages wait"),
        (HUNG, {}, 5, "5 messages wait"),
        (HUNG, {"starved": True}, None, "further messages may wait"),
        (HUNG, {"starved": True}, 0, ""),
        (HUNG, {}, None, ""),
        (HUNG - 0.1, {"queued": 2}, 5, ""),
    ],
)
def test_a_call_that_runs_for_30_s_while_messages_wait_is_logged_once(
    caplog: pytest.LogCaptureFixture, seconds: float, state: dict[str, Any], depth: int | None, waits: str
) -> None:
    made: Any = HungWorker()
    made.state = state
    values: dict[str, Any] = {"topic": "t", "channel": "ch", "id": "a" * 16, "attempt": 2, "messages": 1}
    made.calls = [RunningCall(seconds=seconds, thread="thread 1", stack="shop/tasks.py:12 charge", **values)]
    hung = HungCalls(made, lambda stats: {} if depth is None else {("n:4150", "t", "ch"): depth}, 2.0)
    assert not any([hung.check(), hung.check()])
    said = f"t/ch: the call for message {'a' * 16}, attempt 2, has run for 30 s, and {waits}; it is at shop/tasks.py:12"
    assert [said in line for line in caplog.messages] == ([True] if waits else [])
    made.calls = []
    hung.check()


def test_a_check_for_hung_calls_that_fails_does_not_end_the_worker(caplog: pytest.LogCaptureFixture) -> None:
    made: Any = HungWorker()
    values: dict[str, Any] = {"topic": "t", "channel": "ch", "id": "a" * 16, "attempt": 2, "messages": 1}
    made.calls = [RunningCall(seconds=HUNG, thread="thread 1", stack="", **values)]

    def no_thread(stats: Any) -> Any:
        raise RuntimeError("can't start new thread")

    assert not HungCalls(made, no_thread, 2.0).check()
    assert "the check for hung calls failed" in caplog.messages


APP = """
import ctypes, os, time
from gnsq_lite import Worker
import gnsq_lite.worker.hung

gnsq_lite.worker.hung.HUNG = 0.5
worker = Worker(max_attempts=2, backoff=False, reconnect_delay=0.1, hang_timeout=15.0, concurrency=2)

@worker.handler("t", "ch")
def handle(message):
    os.write(1, b"begins\\n")
    if message.body == b"hold":
        ctypes.PyDLL(None).sleep(600)  # in C with the GIL, as a regular expression that takes forever
    time.sleep(600)
"""


@pytest.mark.program
@pytest.mark.timeout(180)
def test_the_command_and_the_live_page_list_running_calls(broker: ServerHandle, tmp_path: Path) -> None:
    broker.prepare("t", "ch")
    with worker(tmp_path, broker.tcp_address, "--metrics-port", "0", app=APP) as program:
        program.says("connected")
        broker.publish("t", b"wait", b"wait", b"wait")
        program.says("begins", times=2)
        address = pages_at(program)
        program.says("has run for")
        listed = ["-m", "gnsq_lite", "running", address, "--stack"]
        with running(listed, tmp_path) as command:
            assert command.ends() == 0, command.output
            assert len(re.findall(r"s  t/ch  \w{16}  attempt 1  process 0, pid \d+, thread", command.output)) == 2
            assert len(re.findall(r"^    .*app.py:\d+ handle$", command.output, re.M)) == 2
        card = json.loads(get(address, "/api/status")[1])["handlers"][0]
        assert [call["process"] for call in card["running"]] == [0, 0]


@pytest.mark.program
@pytest.mark.timeout(180)
def test_the_supervisor_shows_the_stacks_of_a_process_that_does_not_answer(
    broker: ServerHandle, tmp_path: Path
) -> None:
    broker.prepare("t", "ch")
    with worker(tmp_path, broker.tcp_address, "--metrics-port", "0", app=APP) as program:
        program.says("connected")
        broker.publish("t", b"hold")
        program.says("begins")
        address = pages_at(program)
        with running(["-m", "gnsq_lite", "running", address], tmp_path) as command:
            assert command.ends() == 0, command.output
            assert "process 0, pid" in command.output
            assert re.search(r"does not answer; last message begun: t/ch \w{16}$", command.output, re.M)
            assert re.search(r'File ".*app.py", line \d+ in handle', command.output)
        assert "hangs" not in program.output  # to print the stacks did not end the process
        program.says("hangs: its I/O loop has not run for", timeout=STARTING + 20)
        assert "does not end in time" not in program.output
