"""An nsqd that floods a client delays no other client of the process and fills no memory."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import cramjam
import pytest

from tests.frames import HEARTBEAT, OK, frame, message
from tests.programs import ROOT
from tests.stub_nsqd import granting, read_command, shake_hands, steps, subscribed
from tests.system.http_stub import scripted

pytestmark = pytest.mark.slow

#: Seconds each flood lasts, and what its victim may grow by, MiB.  It is the machine's speed that fills memory.
SECONDS, GROWTH = 2.0, 50
#: Most log lines of a flood: 100 warnings, one line about this limit, and a few about the connection.
LINES = 105
#: Seconds a publish elsewhere, or the answer to a heartbeat, may take meanwhile: 0.05 on a machine with nothing else.
SLOWEST = 1.0

Pack = Callable[[bytes, bool], tuple[bytes, bytes]]
HEARTBEATS = HEARTBEAT * 55_000


def plain(data: bytes, subscribes: bool) -> tuple[bytes, bytes]:
    return OK * subscribes, data


def deflated(data: bytes, subscribes: bool) -> tuple[bytes, bytes]:
    """Return the beginning of a stream, and what can follow it for ever."""
    stream = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    start = stream.compress(OK * (1 + subscribes)) + stream.flush(zlib.Z_FULL_FLUSH)
    return start, stream.compress(data) + stream.flush(zlib.Z_FULL_FLUSH)


def snapped(data: bytes, subscribes: bool) -> tuple[bytes, bytes]:
    start = bytes(cramjam.snappy.compress(OK * (1 + subscribes)))
    return start, bytes(cramjam.snappy.compress(data))


@contextmanager
def flooding(data: bytes, pack: Pack, subscribes: bool) -> Iterator[str]:
    start, unit = pack(data, subscribes)
    unit *= max(1, 65536 // len(unit))

    def flood(connection: socket.socket) -> None:
        time.sleep(0.3)  # what comes with the handshake is refused with it
        while True:
            connection.sendall(unit)
            time.sleep(0)

    begin = granting(deflate=pack is deflated, snappy=pack is snapped)
    reads = [read_command] if subscribes and pack is plain else []
    with scripted(steps(begin, *reads, start, flood)) as address:
        yield address


def healthy(connection: socket.socket) -> None:
    """Answer each publish."""
    shake_hands(connection)
    while read_command(connection):
        connection.sendall(OK)


@contextmanager
def beating() -> Iterator[tuple[str, list[float]]]:
    """Send a heartbeat every moment; note the seconds each answer takes."""
    took: list[float] = []

    def beat(connection: socket.socket) -> None:
        while True:
            began = time.monotonic()
            connection.sendall(HEARTBEAT)
            while read_command(connection) != b"NOP\n":
                pass
            took.append(time.monotonic() - began)
            time.sleep(0.05)

    with scripted(subscribed(beat)) as address:
        yield address, took


def felt(data: bytes, pack: Pack = plain, writes: bool = False, **options: Any) -> dict[str, Any]:
    """Have a client flooded with *data*, packed; return what it felt."""
    if pack is not plain:
        options["compression"] = "deflate" if pack is deflated else "snappy"
    with (
        flooding(data, pack, subscribes=not writes) as hostile,
        scripted(healthy) as good,
        beating() as (beats, took),
    ):
        job = {
            "hostile": hostile,
            "healthy": good,
            "beating": beats,
            "seconds": SECONDS,
            "writes": writes,
            "options": options,
        }
        run = subprocess.run(
            [sys.executable, "-m", "tests.floods", json.dumps(job)],
            cwd=ROOT,
            capture_output=True,
            timeout=40,
            check=False,
        )
        assert run.returncode == 0, run.stderr.decode()
        found: dict[str, Any] = json.loads(run.stdout)
        return {**found, "slowest_beat": max(took)}


def check(found: dict[str, Any]) -> None:
    assert found["grown_mib"] < GROWTH, found
    slowest = SLOWEST * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))  # as in wait_for()
    assert found["slowest"] < slowest, found
    assert found["slowest_beat"] < slowest, found


MESSAGES = message(b"x" * 8) * 1500
FLOODS = [
    pytest.param(MESSAGES, plain, id="messages"),
    pytest.param(message(bytes(60_000)), plain, id="large messages"),
    pytest.param(HEARTBEATS, plain, id="heartbeats"),
    pytest.param(OK * 6000, plain, id="answers"),
    pytest.param(frame(0, b"") * 8000, plain, id="empty answers"),
    pytest.param(frame(0, b"CLOSE_WAIT") * 4000, plain, id="CLOSE_WAIT"),
    pytest.param(frame(1, b"E_FIN_FAILED FIN 0123456789abcdef x") * 1500, plain, id="errors"),
    pytest.param(frame(0, bytes(1_000_000)), plain, id="huge answers"),
    pytest.param(frame(1, b"E_INVALID " + b"\x1b" * 60_000_000), plain, id="a huge error"),
    pytest.param(HEARTBEATS, deflated, id="heartbeats, deflated"),
    pytest.param(HEARTBEATS, snapped, id="heartbeats, snappy"),
    pytest.param(MESSAGES * 20, deflated, id="messages, deflated"),
    pytest.param(MESSAGES * 20, snapped, id="messages, snappy"),
    pytest.param(frame(0, b"") * 130_000, deflated, id="empty answers, deflated"),
    pytest.param(frame(1, b"E_FIN_FAILED FIN 0123456789abcdef x") * 20_000, deflated, id="errors, deflated"),
]


@pytest.mark.rule("WIRE-4")
@pytest.mark.rule("HB-1")
@pytest.mark.parametrize(("data", "pack"), FLOODS)
def test_a_flood_takes_neither_memory_nor_the_loop_from_a_reader(data: bytes, pack: Pack) -> None:
    found = felt(data, pack)
    check(found)
    assert len(found["lines"]) <= LINES, found


@pytest.mark.rule("WIRE-4")
@pytest.mark.parametrize(
    ("data", "pack"), [each for each in FLOODS if "messages" not in str(each.id) or "large" in str(each.id)]
)
def test_nor_from_a_writer(data: bytes, pack: Pack) -> None:
    check(felt(data, pack, writes=True))


@pytest.mark.rule("RDY-1")
def test_messages_beyond_rdy_are_not_read_while_the_handlers_have_not_caught_up() -> None:
    found = felt(message(bytes(100)) * 500, handler_pool="thread", concurrency=1)
    check(found)
    assert found["received"] - found["handled"] < 3000


@pytest.mark.rule("ERR-1")
@pytest.mark.parametrize("writes", [False, True])
def test_a_flood_of_errors_logs_a_hundred_warnings_a_minute_and_one_line_about_the_limit(writes: bool) -> None:
    found = felt(frame(1, b"E_FIN_FAILED FIN 0123456789abcdef x") * 1500, writes=writes)
    check(found)
    assert len(found["lines"]) <= LINES, found
    assert "more than 100 errors of nsqds in this minute" in found["lines"][-1]
