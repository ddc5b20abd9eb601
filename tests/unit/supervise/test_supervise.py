"""Restart delays, slots, source files, log formats."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from pathlib import Path

import pytest

from gnsq_lite import Message, Worker
from gnsq_lite.errors import HTTPConnectError
from gnsq_lite.supervise.logs import BriefFormatter, JSONFormatter, TextFormatter, extra_of
from gnsq_lite.supervise.restarts import FIRST, LONGEST, WELL_AFTER, Restarts
from gnsq_lite.supervise.slots import VARIABLE, Slot, take_slot
from gnsq_lite.supervise.watch import SourceWatch, loaded_sources
from tests.fakes import FakeClock


def test_restart_delays_double_up_to_a_limit() -> None:
    clock = FakeClock()
    restarts = Restarts(clock)
    delays = []
    for _ in range(40):
        restarts.started()
        clock.advance(WELL_AFTER - 0.01)
        delays.append(restarts.ended())
    assert delays[:5] == [FIRST, 2 * FIRST, 4 * FIRST, 8 * FIRST, 16 * FIRST]
    assert delays[-1] == LONGEST


def test_a_minute_of_running_resets_the_restart_delay() -> None:
    clock = FakeClock()
    restarts = Restarts(clock)
    for _ in range(5):
        restarts.started()
        restarts.ended()
    restarts.started()
    clock.advance(WELL_AFTER)
    assert restarts.ended() == FIRST
    restarts.started()
    assert restarts.ended() == 2 * FIRST


def test_a_slot_is_taken_once_and_a_process_of_another_supervisor_exits() -> None:
    mine = Slot(os.getppid(), 3, "/tmp/a:b/3.sock")
    environ = {VARIABLE: mine.text(), "OTHER": "x"}
    assert take_slot(environ) == mine
    assert environ == {"OTHER": "x"}
    assert take_slot(environ) is None
    for wrong in ("x", "1:2", "1:x:/s", Slot(os.getppid() + 1, 3, "/s").text()):
        with pytest.raises(SystemExit, match=VARIABLE):
            take_slot({VARIABLE: wrong})
    assert not mine.is_orphaned()
    assert mine.is_orphaned(lambda: 1) == (os.getppid() != 1)


def test_a_changed_a_new_and_a_missing_source_are_detected(tmp_path: Path) -> None:
    one, other = tmp_path / "one.py", tmp_path / "other.py"
    one.write_text("x = 1\n")
    files = [str(one), str(other)]
    watch = SourceWatch(lambda: files)
    assert watch.changed() is None
    other.write_text("y = 1\n")
    assert watch.changed() == str(other)
    watch = SourceWatch(lambda: files)
    os.utime(one, ns=(1, 1))
    assert watch.changed() == str(one)
    watch = SourceWatch(lambda: files)
    one.unlink()
    assert watch.changed() == str(one)


def test_a_module_loaded_later_is_watched_from_then_on(tmp_path: Path) -> None:
    files: list[str] = []
    watch = SourceWatch(lambda: files)
    late = tmp_path / "late.py"
    late.write_text("x = 1\n")
    files.append(str(late))
    assert watch.changed() is None
    late.write_text("x = 10\n")
    assert watch.changed() == str(late)


def test_installed_packages_and_the_standard_library_are_not_watched() -> None:
    sources = loaded_sources()
    assert os.path.abspath(__file__) in sources
    assert not {logging.__file__, pytest.__file__, json.__file__} & sources
    assert all(path.endswith(".py") for path in sources)


def record(
    message: str = "one %s", *args: object, error: bool | Exception = False, **extra: object
) -> logging.LogRecord:
    info = None
    if error:
        try:
            raise error if isinstance(error, Exception) else ValueError("two\nlines")
        except Exception:
            info = sys.exc_info()
    made = logging.LogRecord("gnsq_lite.x", logging.WARNING, __file__, 1, message, args, info)
    made.__dict__.update(extra)
    return made


def test_a_json_record_is_one_line_with_the_extra_fields() -> None:
    line = JSONFormatter("0").format(record("a\nb %s", "c", error=True, topic="t", path=Path("/x")))
    assert "\n" not in line
    fields = json.loads(line)
    assert (fields["message"], fields["level"], fields["logger"]) == ("a\nb c", "warning", "gnsq_lite.x")
    assert (fields["topic"], fields["path"], fields["process"]) == ("t", "/x", "0")
    assert fields["exception"].endswith("ValueError: two\nlines")
    assert fields["time"].endswith("Z")


def test_an_extra_field_cannot_replace_a_standard_field() -> None:
    fields = json.loads(JSONFormatter("0").format(record("x", level="none", time="never")))
    assert fields["level"] == "warning"
    assert fields["time"] != "never"


def test_a_text_line_shows_the_extra_fields_and_the_traceback() -> None:
    text = TextFormatter("main").format(record("it %s", "failed", error=True, topic="t"))
    first = text.splitlines()[0]
    assert " WARNING gnsq_lite.x[main] it failed topic=t" in first
    assert "ValueError" in text
    assert extra_of(record("x")) == {}


def test_a_message_cannot_forge_a_text_line_or_control_the_terminal() -> None:
    evil = "quoted\n2026-01-01T00:00:00.000Z ERROR forged\r\x1b[2J\u202e"
    for made in (
        record(evil),
        record("x", field=evil),
        record("x", error=ValueError(evil)),
        record("x", stack_info=evil),
    ):
        first, *more = TextFormatter("0").format(made).split("\n")
        assert all(line.startswith("  ") and line.isprintable() for line in more)
        assert first.isprintable()
    brief = BriefFormatter("0").format(record("it failed", error=OSError(evil)))
    assert brief.isprintable()


@pytest.mark.parametrize("kind", [TextFormatter, BriefFormatter, JSONFormatter])
def test_a_huge_text_is_cut_in_the_log_with_a_note(kind: type[TextFormatter]) -> None:
    huge = "\n" * 500_000
    for made in (
        record(huge),
        record("x", field=huge),
        record("x", error=ValueError(huge)),
        record("x", stack_info=huge),
    ):
        line = kind("0").format(made)
        assert "[cut: " in line
        assert len(line) < 400_000
    assert len(kind("0").format(record("x", error=OSError(huge)))) < 400_000


@pytest.mark.parametrize("error", [HTTPConnectError("http://x", "gone"), OSError(28, "disk full")], ids=["nsq", "os"])
def test_a_brief_line_has_the_error_of_a_server_or_disk_without_traceback(error: Exception) -> None:
    line = BriefFormatter("main").format(record("it failed", error=error, topic="t"))
    assert line.endswith(f"it failed topic=t: {type(error).__name__}: {error}")
    line = BriefFormatter("main").format(record("it failed: %s", error, error=error, topic="t"))
    assert line.endswith(f"it failed: {error} topic=t")
    assert "Traceback" in BriefFormatter("main").format(record("it failed", error=True))
    assert BriefFormatter("main").format(record("fine")).endswith("fine")


def test_a_traceback_leaves_out_the_frames_of_the_library_in_each_cause() -> None:
    worker = Worker(nsqd_tcp_addresses="127.0.0.1:1")

    @worker.handler("t", "ch", decode=number_of)
    def handle(value: int, message: Message) -> None:
        raise KeyError("x")

    for body, frames in ((b"1", [" in handle"]), (b"x", [" in number_of"])):
        error = worker.deliver(handle, body, raises=False).error
        line = TextFormatter("0").format(logging.makeLogRecord({"exc_info": (type(error), error, None)}))
        found = re.findall(r'File "(.*)", line \d+( in .*|, in .*)', line)
        users = [name.removeprefix(",") for path, name in found if "gnsq_lite" not in Path(path).parts]
        assert [name for name in users if name in frames] == frames
        if body == b"1":
            assert "gnsq_lite/worker" not in line


def number_of(body: bytes) -> int:
    return int(body)
