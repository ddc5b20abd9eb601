"""An nsqd that means harm cannot crash, hang or fill a Reader or Writer, nor write raw bytes into a log."""

from __future__ import annotations

import itertools
import json
import logging
import socket
import struct
import time
import zlib
from contextlib import closing
from typing import Any

import pytest

from gnsq_lite import Message, Reader, Writer, errors
from tests.frames import HEARTBEAT, OK, frame, message
from tests.programs import wait_for
from tests.resource_watch import bystander, healthy  # noqa: F401 - fixtures
from tests.stub_nsqd import (
    Speak,
    drain,
    granting,
    hostile,
    read_command,
    shake_hands,
    small_buffer,
    steps,
    subscribed,
)
from tests.system.http_stub import scripted

#: A client that waits a little, and takes frames of 64 KiB at most.
WARY: dict[str, Any] = {
    "handshake_timeout": 0.5,
    "connect_timeout": 1.0,
    "heartbeat_interval": 1.0,
    "reconnect_delay": 0.05,
    "max_reconnect_delay": 0.2,
    "max_frame_size": 65536,
}


def dripping(connection: socket.socket) -> None:
    shake = frame(0, b"{" + b" " * 60000)
    for byte in shake:
        connection.sendall(bytes([byte]))
        time.sleep(0.02)


def endless_handshake(connection: socket.socket) -> None:
    read_command(connection)
    while True:
        connection.sendall(HEARTBEAT * 100)
        time.sleep(0.01)


def compressed(kind: str) -> bytes:
    """Return a frame of 256 MiB as a small compressed stream."""
    plain = OK + struct.pack(">iI", 1 << 28, 2)
    if kind == "deflate":
        stream = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
        # After a full flush nothing refers to what was before: a MiB that is compressed once may come again and again.
        # 64 of them, compressed here, would keep a patched process's one thread from the bystander for as long.
        start = stream.compress(plain) + stream.flush(zlib.Z_FULL_FLUSH)
        return start + (stream.compress(bytes(1 << 20)) + stream.flush(zlib.Z_FULL_FLUSH)) * 64 + stream.flush()
    # One chunk that claims to hold 2 GiB.
    return b"\xff\x06\x00\x00sNaPpY" + b"\x00" + (11).to_bytes(3, "little") + bytes(4) + b"\xff\xff\xff\xff\x07ab"


E_FIN_FAILED = frame(1, b"E_FIN_FAILED FIN 0123456789abcdef x")
NOISE = [
    pytest.param(steps(struct.pack(">iI", 2**31 - 1, 0), drain), id="an oversized frame"),
    pytest.param(steps(struct.pack(">iI", -5, 0), drain), id="a negative size"),
    pytest.param(steps(frame(7, b"x"), drain), id="an unknown type"),
    pytest.param(steps(bytes(range(256)) * 40, drain), id="garbage"),
    pytest.param(steps(b"HTTP/1.1 400 Bad Request\r\n\r\n", drain), id="http"),
    pytest.param(steps(b"", drain), id="silence"),
    pytest.param(steps(frame(0, b"[" * 60000), drain), id="deep json"),
    pytest.param(steps(frame(0, b'{"max_rdy_count": 1e999, "msg_timeout": -1}'), drain), id="absurd numbers"),
    pytest.param(steps(frame(0, b'{"auth_required": true, "tls_v1": "yes"}'), drain), id="wrong types"),
    pytest.param(dripping, id="a slow drip"),
    pytest.param(endless_handshake, id="an endless handshake"),
    pytest.param(subscribed(frame(2, b"short"), drain), id="a message too short"),
    pytest.param(subscribed(struct.pack(">iI", 1 << 30, 2), drain), id="a message too long"),
    pytest.param(subscribed(frame(1, b"E_INVALID \x1b[2J\r\nroot: all is well"), drain), id="a fatal error"),
    pytest.param(subscribed(OK * 10000, drain), id="answers nobody asked for"),
    pytest.param(
        subscribed(frame(1, b"E_FIN_FAILED FIN 0123456789abcdef x") * 1000, drain), id="errors nobody asked for"
    ),
]


@pytest.mark.rule("WIRE-4")
@pytest.mark.rule("ERR-1")
@pytest.mark.parametrize("speak", NOISE)
def test_a_reader_survives_it_stays_responsive_and_closes_in_time(speak: Speak) -> None:
    handled: list[Message] = []
    with hostile(speak) as (address, seen):
        reader = Reader("t", "ch", handled.append, nsqd_tcp_addresses=address, backoff=False, **WARY)
        reader.start(block=False)
        wait_for(lambda: seen)
        time.sleep(0.2)
        began = time.monotonic()
        assert len(reader.stats().connections) <= 1
        reader.close(timeout=0.2)
        assert time.monotonic() - began < 20.0
        assert handled == []
        assert len(seen) < 20  # it does not connect in a circle


@pytest.mark.rule("PUB-2")
@pytest.mark.parametrize("speak", [one for one in NOISE if "message" not in str(one.id)])
def test_a_publish_to_it_ends_in_time_with_a_typed_error(speak: Speak) -> None:
    with hostile(speak) as (address, _), Writer(address, publish_timeout=0.4, **WARY) as writer:
        began = time.monotonic()
        try:
            writer.publish("t", b"x")
        except errors.NSQError:
            pass
        assert time.monotonic() - began < 20.0


@pytest.mark.rule("WIRE-4")
@pytest.mark.parametrize("kind", ["deflate", "snappy"])
def test_a_bomb_is_refused_and_takes_no_memory(kind: str) -> None:
    before = peak_kib()
    failures: list[Any] = []
    options = {**WARY, "compression": kind, "reconnect_delay": 5.0, "max_reconnect_delay": 5.0}
    with (
        hostile(steps(granting(**{kind: True}), compressed(kind), drain)) as (address, _),
        Reader("t", "ch", print, nsqd_tcp_addresses=address, on_error=failures.append, **options),
    ):
        wait_for(lambda: failures)
    assert isinstance(failures[0], errors.NSQError)
    assert peak_kib() - before < 40 * 1024


@pytest.mark.rule("SEC-2")
@pytest.mark.parametrize("kind", ["deflate", "snappy"])
def test_plain_bytes_where_compressed_ones_are_due_name_the_nsqd(kind: str) -> None:
    granted = frame(0, json.dumps({"max_rdy_count": 2500, kind: True}).encode())
    with (
        hostile(steps(read_command, granted + OK, drain)) as (address, _),
        Writer(address, compression=kind, **WARY) as writer,
    ):  # type: ignore[arg-type]
        with pytest.raises(errors.NotSent, match=r"DEFLATE|snappy") as caught:
            writer.publish("t", b"x", timeout=3.0)
        assert str(caught.value.__cause__).startswith(f"{address}: ")


def peak_kib() -> int:
    """Highest resident size of this process so far, KiB."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


@pytest.mark.rule("ERR-1")
def test_an_id_that_looks_like_a_command_goes_back_as_it_came_to_its_nsqd_alone() -> None:
    """An nsqd that makes ids with line feeds in them deceives only itself."""
    lines: list[bytes] = []
    evil = message(b"body", id=b"x\nPUB other\n\0\0\0\1")

    def keep(connection: socket.socket) -> None:
        while data := connection.recv(65536):
            lines.append(data)

    got: list[Message] = []
    with (
        hostile(subscribed(evil, keep)) as (address, _),
        Reader("t", "ch", got.append, nsqd_tcp_addresses=address, **WARY),
    ):
        wait_for(lambda: got)
        wait_for(lambda: b"FIN " in b"".join(lines))
    assert b"FIN x\nPUB other\n\0\0\0\1\n" in b"".join(lines)


@pytest.mark.rule("ERR-2")
def test_a_long_error_text_is_cut_where_it_reaches_users(caplog: pytest.LogCaptureFixture) -> None:
    long = subscribed(frame(1, b"E_INVALID \x1b[2J" + b"x" * 60_000), drain)
    failures: list[errors.NSQError] = []
    options = {**WARY, "reconnect_delay": 5.0, "max_reconnect_delay": 5.0}
    with (
        hostile(long) as (address, _),
        Reader("t", "ch", print, nsqd_tcp_addresses=address, on_error=failures.append, **options) as reader,
    ):
        wait_for(lambda: failures)
        stats = repr(reader.stats())
    assert isinstance(failures[0], errors.InvalidError)
    assert "[cut: 4096 of 60014]" in str(failures[0])
    for text in (*map(str, failures), *caplog.messages, stats):
        assert len(text) < 6_000
        assert "\x1b" not in text


@pytest.mark.rule("PUB-2")
def test_a_message_that_comes_to_a_writer_ends_the_connection() -> None:
    speak = steps(shake_hands, read_command, message(b"x") + OK, drain)
    with hostile(speak) as (address, seen), closing(Writer(address, **WARY)) as writer:
        publication = writer.publish_nowait("t", b"x", timeout=20.0)
        with pytest.raises(errors.OutcomeUnknown, match="without a subscription"):
            publication.result(10.0)
        wait_for(lambda: len(seen) > 1)


@pytest.mark.rule("RDY-1")
def test_an_nsqd_that_ignores_rdy_is_disconnected() -> None:
    """A correct nsqd may exceed RDY for a moment: 900 messages are handled, but not 5,000."""
    counts = iter([900, 5000])
    handled, lost = list[Any](), list[errors.NSQError]()

    def flood(connection: socket.socket) -> None:
        connection.sendall(message(b"x") * next(counts, 0))

    def read(limit: float) -> None:
        options: Any = {**WARY, "max_in_flight": 2, "on_disconnected": lambda address, error: lost.append(error)}
        with (
            hostile(subscribed(flood, drain)) as (address, _),
            Reader("t", "ch", handled.append, nsqd_tcp_addresses=address, **options),
        ):
            wait_for(lambda: len(handled) >= limit or lost)

    read(900)
    assert not lost
    handled.clear()
    read(5000)
    assert "ignores RDY" in str(lost[0])


@pytest.mark.rule("MSG-1")
def test_a_requeue_delay_that_an_old_nsqd_refuses_is_shortened_from_then_on() -> None:
    """nsqd up to 1.0.0 closes the connection if a delay exceeds --max-req-timeout, here 5 s."""
    delays: list[int] = []

    def refuse(connection: socket.socket) -> None:
        while len(delays) < 4:
            command = read_command(connection)
            if command.startswith(b"REQ "):
                delays.append(int(command.split()[2]))
                if delays[-1] > 5000:
                    why = b"E_INVALID REQ timeout %d out of range 0-5000000000" % (delays[-1] * 1_000_000)
                    connection.sendall(frame(1, why))
                    return
                connection.sendall(message(b"x"))

    def fail(message: Any) -> None:
        raise ValueError

    options: Any = {**WARY, "requeue_delay": 20.0, "max_attempts": 0, "backoff": False}
    with (
        hostile(subscribed(message(b"x"), refuse)) as (address, seen),
        Reader("t", "ch", fail, nsqd_tcp_addresses=address, **options),
    ):
        wait_for(lambda: len(delays) >= 4)
    assert delays[:4] == [20_000, 5000, 5000, 5000]
    assert len(seen) == 2


@pytest.mark.parametrize("where", ["handshake", "running"])
def test_no_control_character_of_the_network_reaches_a_log_raw(caplog: pytest.LogCaptureFixture, where: str) -> None:
    evil = b"E_INVALID \x1b[31mpwned\x07\r\n2026-01-01 root: forged line \xe2\x80\xae\x9b"
    begin = steps if where == "handshake" else subscribed
    caplog.set_level(logging.DEBUG, "gnsq_lite")
    failures: list[Any] = []
    with (
        hostile(begin(frame(1, evil), drain)) as (address, _),
        Reader("t", "ch", print, nsqd_tcp_addresses=address, on_error=failures.append, **WARY),
    ):
        wait_for(lambda: failures)
    text = "".join(record.getMessage() for record in caplog.records) + str(failures[0])
    assert "pwned" in text
    assert [c for c in text if not c.isprintable()] == []


def test_an_nsqd_that_takes_no_bytes_stops_neither_close_nor_others() -> None:
    speak = steps(small_buffer, shake_hands, lambda connection: time.sleep(30))
    with hostile(speak) as (address, _), closing(Writer(address, publish_timeout=1.0, **WARY)) as writer:
        pending = [writer.publish_nowait("t", bytes(500_000)) for _ in range(20)]
        began = time.monotonic()
        with pytest.raises(errors.OutcomeUnknown):
            pending[0].result()
        for publication in pending:
            with pytest.raises((errors.OutcomeUnknown, errors.NotSent)):  # what had not begun to go out is not sent
                publication.result()
        assert time.monotonic() - began < 15.0  # one time limit of 1 s; one for each publish would be 20 s


@pytest.mark.rule("PUB-2")
@pytest.mark.parametrize("dialect", ["nsq", "youzan"])
def test_a_publish_whose_answer_nobody_understands_has_an_unknown_outcome(dialect: str) -> None:
    speak = steps(shake_hands, read_command, frame(0, b"JUNK"), drain)
    with hostile(speak) as (address, _), closing(Writer(address, dialect=dialect, **WARY)) as writer:  # type: ignore[arg-type]
        publication = writer.publish_nowait("t", b"x", timeout=20.0)
        with pytest.raises(errors.OutcomeUnknown, match="JUNK"):
            publication.result(10.0)


@pytest.mark.rule("CONN-3")
@pytest.mark.parametrize("writes", [False, True], ids=["reader", "writer"])
def test_one_that_breaks_the_protocol_after_each_handshake_is_asked_ever_more_seldom(writes: bool) -> None:
    asked: list[float] = []

    begin = [shake_hands] if writes else [shake_hands, read_command]
    speak = steps(lambda connection: asked.append(time.monotonic()), *begin, OK + frame(9, b"unknown"), drain)
    with scripted(speak) as address:
        options = {"nsqd_tcp_addresses": address, "reconnect_delay": 0.1, "reconnect_jitter": 0.0}
        if writes:
            client: Any = Writer(**options)
            client.publish_nowait("t", b"x")
        else:
            client = Reader("t", "ch", print, **options)
            client.start(block=False)
        wait_for(lambda: len(asked) >= 5)
        client.close()
    gaps = [after - before for before, after in itertools.pairwise(asked)]
    assert [gap >= 0.1 * 2**n for n, gap in enumerate(gaps[:4])] == [True] * 4, gaps
