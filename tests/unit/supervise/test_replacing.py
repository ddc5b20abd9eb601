"""When a process is replaced, what the service manager is told and when, what is removed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gnsq_lite.stats import ReaderStats
from gnsq_lite.supervise.children import NEVER, Child
from gnsq_lite.supervise.folders import clean, folder_for_sockets
from gnsq_lite.supervise.notify import Notifier
from gnsq_lite.supervise.report_files import Report, Slot, read_report, remove_reports, reported_limit, reported_ready
from gnsq_lite.supervise.restarts import LONGEST, WELL_AFTER, Restarts
from gnsq_lite.supervise.rolling import Rolling
from gnsq_lite.worker.supervised import Wear, resident
from tests.fakes import FakeClock


def child(folder: Path, number: int, clock: FakeClock, name: str = "") -> Child:
    made = Child(number, Restarts(clock), str(folder / f"{number}{name}.sock"), pid=os.getpid())
    Path(made.socket).touch()
    return made


def tell(child: Child, word: Report, text: str) -> None:
    Slot(os.getpid(), child.number, child.socket).report(word, text)


def test_what_is_told_is_read_and_can_be_taken_back_and_nobody_minds_a_supervisor_that_is_gone(tmp_path: Path) -> None:
    slot = Slot(1, 0, str(tmp_path / "0.sock"))
    assert (reported_limit(slot.socket), reported_ready(slot.socket)) == (None, (0, 0))
    slot.report(Report.LIMIT, "2.5")
    slot.report(Report.READY, "1/2")
    assert (reported_limit(slot.socket), reported_ready(slot.socket)) == (2.5, (1, 2))
    remove_reports(slot.socket, *Report)
    assert list(tmp_path.iterdir()) == []
    Slot(1, 0, str(tmp_path / "gone" / "0.sock")).report(Report.READY, "1/1")


@pytest.mark.parametrize(
    ("old", "new", "takes_over"),
    [
        ("2/2", "2/2", True),
        ("2/2", "1/2", False),
        ("2/2", None, False),
        ("1/2", "1/2", True),  # a topic that no nsqd has yet
        ("3/3", "2/2", True),  # the new code has fewer handlers
        ("0/1", "0/1", True),
        (None, None, False),
    ],
)
def test_a_new_process_takes_over_when_it_is_ready_or_as_ready_as_the_old_one(
    tmp_path: Path, old: str | None, new: str | None, takes_over: bool
) -> None:
    clock = FakeClock()
    rolling, children = Rolling(60.0), [child(tmp_path, 0, clock)]
    first = children[0]
    first.stale_at = clock.now()
    assert rolling.begin(children, clock.now())
    rolling.newcomer = child(tmp_path, 0, clock, "new")
    for each, text in ((first, old), (rolling.newcomer, new)):
        if text is not None:
            tell(each, Report.READY, text)
    assert (rolling.take_over(children) is first) == takes_over
    assert (rolling.newcomer is None) == takes_over == (children[0] is not first)


def test_a_new_process_has_its_time_and_then_all_go_on_until_they_are_asked_again(tmp_path: Path) -> None:
    clock = FakeClock()
    rolling, children = Rolling(60.0), [child(tmp_path, n, clock) for n in range(2)]
    for each in children:
        tell(each, Report.CHANGED, "")
    assert rolling.begin(children, clock.now())
    clock.advance(59.9)
    assert not rolling.is_late(clock.now())
    clock.advance(0.1)
    assert rolling.is_late(clock.now())
    rolling.give_up(children, "was late")
    assert rolling.newcomer is None
    assert not rolling.is_late(clock.now())
    assert not rolling.begin(children, clock.now())
    tell(children[1], Report.CHANGED, "")
    assert rolling.begin(children, clock.now())
    assert rolling.newcomer.number == 1


def test_a_process_that_is_worn_soon_after_its_start_waits_ever_longer_and_after_a_good_run_it_does_not(
    tmp_path: Path,
) -> None:
    clock = FakeClock()
    rolling, children = Rolling(60.0), [child(tmp_path, 0, clock)]
    delays = []
    for _ in range(8):
        tell(children[0], Report.WORN, "it uses 2 MiB")
        assert not rolling.begin(children, clock.now())
        delays.append(children[0].stale_at - clock.now())
        clock.advance(delays[-1])
        assert rolling.begin(children, clock.now())
        rolling.give_up(children, "did not load")
        children[0].restarts.started()
    assert delays[:4] == [0.5, 1.0, 2.0, 4.0]
    assert delays[-1] == LONGEST
    clock.advance(WELL_AFTER)
    assert not rolling.begin(children, clock.now())
    assert children[0].stale_at - clock.now() == 0.5


def test_a_process_that_does_not_run_is_not_replaced(tmp_path: Path) -> None:
    clock = FakeClock()
    children = [child(tmp_path, 0, clock)]
    tell(children[0], Report.CHANGED, "")
    children[0].ended(0)
    assert read_report(children[0].socket, Report.CHANGED) is None
    children[0].stale_at = clock.now()
    assert not Rolling(60.0).begin(children, clock.now())
    assert children[0].start_at == NEVER


def stats(finished: int, requeued: int) -> ReaderStats:
    return ReaderStats(finished=finished, requeued=requeued)


def test_what_wears_a_process_out_is_said() -> None:
    both = [stats(5, 1), stats(3, 0)]
    assert Wear().why(both) is None
    assert Wear(max_messages=10).why(both) is None
    assert Wear(max_messages=9).why(both) == "it has handled 9 messages"
    assert Wear(max_memory=100).why(both, lambda: 99.9) is None
    assert Wear(max_memory=100).why(both, lambda: 100.2) == "it uses 100 MiB"
    assert 5.0 < resident() < 5000.0


def test_signs_of_life_come_at_half_the_time_and_a_status_only_when_it_is_new() -> None:
    clock, heard = FakeClock(), []
    environ = {"NOTIFY_SOCKET": "@n", "WATCHDOG_USEC": "10000000", "WATCHDOG_PID": str(os.getpid()), "X": "x"}
    notifier = Notifier(environ, clock, lambda text, address: heard.append((text, address)))
    assert environ == {"X": "x"}
    notifier.alive()
    clock.advance(4.9)
    notifier.alive()
    assert heard == [(b"WATCHDOG=1", "\0n")]
    clock.advance(0.1)
    notifier.alive()
    notifier.status("1 of 2")
    notifier.status("1 of 2")
    notifier.ready()
    assert [text for text, _ in heard[1:]] == [b"WATCHDOG=1", b"STATUS=1 of 2", b"READY=1"]
    for other in ({"WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "x"}, {"NOTIFY_SOCKET": ""}):
        assert Notifier({"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "1000000", **other}, clock).due == NEVER, other


def test_only_folders_whose_supervisor_is_gone_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    others = tmp_path / "gnsq-other"
    others.mkdir()
    (others / "0.sock").touch()
    left = tmp_path / "gnsq-left"
    left.mkdir()
    (left / "supervisor.lock").touch()
    (tmp_path / "gnsq-link").symlink_to(left)
    with folder_for_sockets() as mine:
        clean(str(tmp_path))
        assert {entry.name for entry in tmp_path.iterdir()} == {"gnsq-other", "gnsq-link", os.path.basename(mine)}
    assert not os.path.exists(mine)
    clean(str(tmp_path / "missing"))
