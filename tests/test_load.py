"""The load in its smallest form, and proof that it sees what it watches for."""

from __future__ import annotations

import socket

import pytest

from tests.flow import Sample
from tests.heartbeats import HEARTBEAT, NOP, Counter, Gaps, Watch
from tests.load import Result, main


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["--minutes", "0.08", "--connections", "2"],
        ["--minutes", "0.08", "--connections", "2", "--body", "1048576"],
        ["--minutes", "1", "--messages", "20000", "--body", "16"],
        ["--minutes", "0.08", "--connections", "2", "--topics", "200"],
    ],
    ids=["connections", "large", "small", "topics"],
)
@pytest.mark.rule("HB-1")
def test_a_short_load_loses_nothing_and_answers_heartbeats(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    busy = ["--heartbeat", "2", "--patience", "10"]  # nsqd hangs up after two; the machine may do other things
    code = main([*arguments, *busy, "--every", "0.5", "--server", "embedded"])
    output = capsys.readouterr().out
    assert code == 0, output
    assert " 0 lost" in output
    assert " heartbeats answered" in output or "20000" in arguments


def grown(heartbeats: list[float], disconnected: int = 0, **last: int) -> list[str]:
    usual = {"at": 0.0, "handled": 1, "rss": 50_000, "descriptors": 20, "threads": 5, "greenlets": 5, "blocks": 9}
    samples = [Sample(**usual)] * 3 + [Sample(**{**usual, "at": 60.0, **last})]  # type: ignore[arg-type]
    return Result(samples, seconds=60.0, heartbeats=heartbeats, disconnected=disconnected).faults()


def test_a_slow_heartbeat_no_heartbeat_and_a_lost_connection_are_faults() -> None:
    assert grown([0.001, 0.999]) == []
    assert grown([0.001, 1.0]) == ["1 heartbeats waited 1 s or longer"]
    assert grown([]) == ["no heartbeat was seen"]
    assert grown([0.1], disconnected=1) == ["1 connections were lost"]
    assert "descriptors" in grown([0.1], descriptors=31)[0]


def test_a_pattern_is_counted_however_the_stream_is_cut() -> None:
    stream = b"x" + HEARTBEAT + b"_heart" + HEARTBEAT * 2 + b"y"
    for size in range(1, len(stream) + 1):
        counter = Counter(HEARTBEAT)
        assert sum(counter.count(stream[at : at + size]) for at in range(0, len(stream), size)) == 3


def test_a_heartbeat_that_is_never_answered_is_as_slow_as_it_is_old() -> None:
    gaps = Gaps()
    gaps.connection().extend([10.0, 19.9])
    gaps.seconds.append(0.25)
    assert gaps.close(20.0) == [0.25, 10.0]


def test_the_proxy_times_each_heartbeat_until_its_nop() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        watch = Watch(f"127.0.0.1:{listener.getsockname()[1]}")
        host, _, port = watch.address.rpartition(":")
        with socket.create_connection((host, int(port)), 20.0) as client:
            nsqd, _ = listener.accept()
            with nsqd:
                for _ in range(3):
                    nsqd.sendall(HEARTBEAT)
                    assert client.recv(len(HEARTBEAT), socket.MSG_WAITALL) == HEARTBEAT
                    client.sendall(NOP)
                    assert nsqd.recv(len(NOP), socket.MSG_WAITALL) == NOP
    found = watch.end()
    assert len(found) == 3
    assert all(0.0 <= each < 20.0 for each in found)
