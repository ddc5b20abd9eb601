"""Memory that a supervisor shares with its processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnsq_lite.supervise.shared_memory import SECOND_LOOK, GroupMemory, ProcessMemory


@pytest.fixture
def pair(tmp_path: Path) -> tuple[ProcessMemory, ProcessMemory]:
    """The memory of one process, mapped by its supervisor and by the process itself."""
    socket = str(tmp_path / "1.sock")
    return ProcessMemory(socket), ProcessMemory(socket)


def test_a_process_hangs_if_the_second_check_finds_no_tick_either(pair: tuple[ProcessMemory, ProcessMemory]) -> None:
    supervisors, own = pair
    own.hang_timeout = 10.0
    own.ticks += 1
    assert supervisors.hangs_for(100.0) == 0.0
    assert supervisors.hangs_for(109.9) == 0.0
    assert supervisors.hangs_for(110.0) == 0.0
    assert supervisors.hangs_for(110.0 + SECOND_LOOK - 0.1) == 0.0
    assert supervisors.hangs_for(110.0 + SECOND_LOOK) == 10.0 + SECOND_LOOK


def test_a_process_that_ticks_before_the_second_check_does_not_hang(pair: tuple[ProcessMemory, ProcessMemory]) -> None:
    supervisors, own = pair
    own.hang_timeout = 10.0
    own.ticks += 1
    supervisors.hangs_for(100.0)
    assert supervisors.hangs_for(500.0) == 0.0  # the supervisor was stopped, and the process with it
    own.ticks += 1
    assert supervisors.hangs_for(500.0 + SECOND_LOOK) == 0.0
    assert supervisors.hangs_for(509.0 + SECOND_LOOK) == 0.0


def test_a_process_that_loads_or_has_no_hang_timeout_never_hangs(pair: tuple[ProcessMemory, ProcessMemory]) -> None:
    supervisors, own = pair
    own.hang_timeout = 10.0
    assert [supervisors.hangs_for(now) for now in (0.0, 100.0, 200.0)] == [0.0] * 3
    own.hang_timeout = 0.0
    own.ticks += 1
    assert [supervisors.hangs_for(now) for now in (0.0, 100.0, 200.0)] == [0.0] * 3


def test_the_supervisor_reads_the_last_message_begun_and_the_reason(pair: tuple[ProcessMemory, ProcessMemory]) -> None:
    supervisors, own = pair
    assert supervisors.begun == ""
    own.begin(b"a-long-topic/channel 0123456789abcdef")
    own.begin(b"t/ch \xff123")
    assert supervisors.begun == "t/ch \\xff123"
    own.begin(b"x" * 1000)
    assert supervisors.begun.startswith("xxx")
    assert supervisors.reason == ""
    own.ask_to_be_replaced("it uses 100 MiB")
    assert supervisors.reason == "it uses 100 MiB"


def test_processes_share_counts_between_0_and_255_and_the_pause(tmp_path: Path) -> None:
    one, other = GroupMemory(str(tmp_path)), GroupMemory(str(tmp_path))
    message = 0x123456789ABCDEF0
    assert one.count(message) == 0
    one.add(message, 1)
    other.add(message, 1)
    assert one.count(message) == other.count(message) == 2
    assert other.count(message ^ 1 << 40) == other.count(message ^ 1 << 9) == 0
    one.add(message, -5)
    assert other.count(message) == 0
    one.add(message, 1000)
    assert other.count(message) == 255
    one.process_ended()
    assert other.ended == 1
    assert not other.is_paused
    one.pause(True)
    assert other.is_paused
    one.pause(False)
    assert not other.is_paused
