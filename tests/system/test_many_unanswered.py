"""A Writer with many unanswered publishes handles single answers and heartbeats at once."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from gnsq_lite import Writer
from tests.frames import HEARTBEAT, OK
from tests.programs import wait_for
from tests.stub_nsqd import drain, read_command, shake_hands, steps
from tests.system.http_stub import scripted

COUNT = 40


def test_answers_of_an_nsqd_that_then_stops_reach_the_callers() -> None:
    answer_five = steps(shake_hands, *[read_command] * COUNT, OK * 5, drain)
    with scripted(answer_five) as server, Writer(server, publish_timeout=30.0) as writer:
        sent = [writer.publish_nowait("t", b"x") for _ in range(COUNT)]
        began = time.monotonic()
        assert [publication.result(20.0) for publication in sent[:5]] == [None] * 5
        assert time.monotonic() - began < 20.0
        assert not any(publication.done() for publication in sent[5:])
        writer.close(timeout=0.1)


@pytest.mark.rule("HB-1")
def test_a_heartbeat_is_answered_without_other_traffic() -> None:
    answered: list[bytes] = []

    def keep(connection: socket.socket) -> None:
        answered.append(read_command(connection))

    with (
        scripted(steps(shake_hands, *[read_command] * COUNT, HEARTBEAT, keep, drain)) as server,
        Writer(server, publish_timeout=30.0) as writer,
    ):
        for _ in range(COUNT):
            writer.publish_nowait("t", b"x")
        wait_for(lambda: answered)
        writer.close(timeout=0.1)
    assert answered[0].endswith(b"NOP\n")  # the rest of the last PUB may precede it


@pytest.mark.rule("PUB-1")
def test_all_publishes_are_sent_once_nsqd_accepts_bytes_again() -> None:
    body, count = bytes(100_000), 300
    go_on = threading.Event()

    def take_them_later(connection: socket.socket) -> None:
        go_on.wait(10.0)
        left = count * len(b"PUB t\n" + bytes(4) + body)
        while left:
            left -= len(connection.recv(min(left, 1_000_000)))

    with (
        scripted(steps(shake_hands, take_them_later, OK * count, drain)) as server,
        Writer(server, publish_timeout=30.0) as writer,
    ):
        sent = []
        for _ in range(count):
            sent.append(writer.publish_nowait("t", body))
            time.sleep(0.0)
        go_on.set()
        assert [publication.result(30.0) for publication in sent] == [None] * count
