"""``gnsq-lite record``, ``replay`` and ``recording``, killed and stopped at any moment."""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import socket
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import ClassVar

import pytest

from gnsq_lite import Reader
from gnsq_lite.arrow import to_batch
from gnsq_lite.cli import replay
from gnsq_lite.cli.replay import MOST_BYTES, State, gather
from gnsq_lite.errors import NotSent
from gnsq_lite.recording import Recording, daemon
from gnsq_lite.units import parse_time
from tests import docblocks
from tests.cli.programs import exit_code, run_here
from tests.programs import ROOT, STARTING, running, wait_for
from tests.recording.fakes import FakeMessage
from tests.recording.places import in_folder
from tests.recording.publishing import publish
from tests.servers import ServerHandle

pytestmark = pytest.mark.timeout(300)


def received(address: str, topic: str, count: int) -> list[bytes]:
    found: list[bytes] = []
    with Reader(topic, "check", lambda m: found.append(m.body), nsqd_tcp_addresses=address, max_in_flight=500):
        wait_for(lambda: len(set(found)) >= count)
    return found


def record(server: ServerHandle, topic: str, *more: str) -> list[str]:
    where = ["--nsqd-tcp-address", server.tcp_address, "--msg-timeout", "2s"]
    return ["-m", "gnsq_lite", "record", topic, "c", "recording", *where, *more]


@pytest.mark.rule("PIPE-2")
def test_a_channel_is_recorded_and_replayed_though_recorder_and_replayer_are_killed(
    nsqd: ServerHandle, topic: str, tmp_path: Path
) -> None:
    nsqd.prepare(topic, "c")
    count, rng = 20_000, random.Random(3)
    feeder = threading.Thread(target=publish, args=(nsqd.tcp_address, topic, 0, count, 0.03))
    feeder.start()
    for number in range(3):
        with running(record(nsqd, topic), tmp_path, name=f"record-{number}") as program:
            time.sleep(rng.uniform(0.5, 2.0))
            program.signal(signal.SIGKILL)
    feeder.join()
    with running(record(nsqd, topic, "--until-empty"), tmp_path, name="last") as program:
        assert program.ends(120) == 0
    recording = Recording(str(tmp_path / "recording"))
    assert len(recording.names()) == 1, "a recorder that starts continues the free log"
    bodies = [body for batch in recording.batches() for body in batch["body"].to_pylist()]
    assert Counter(bodies) == Counter(b"%d" % n for n in range(count))
    stats = nsqd.stats(topic, "c")
    assert stats["depth"] == stats["in_flight_count"] == 0

    again = ["-m", "gnsq_lite", "replay", "recording", "--to", topic + "-again", "--state", "state"]
    again += ["--nsqd-tcp-address", nsqd.tcp_address]
    for number in range(3):
        with running([*again, "--rate", "8000"], tmp_path, name=f"replay-{number}") as program:
            wait_for(lambda: (tmp_path / "state").exists() or program.process.poll() is not None, STARTING)
            time.sleep(rng.uniform(0.0, 0.8))
            program.signal(signal.SIGKILL)
    with running(again, tmp_path, name="end") as program:
        assert program.ends(120) == 0
    found = received(nsqd.tcp_address, topic + "-again", count)
    assert set(found) == set(bodies)
    assert len(found) - count <= 3 * 2200, "only what was under way is there twice"


@pytest.mark.parametrize("count", [1000, 1001])
def test_a_recording_of_an_mpub_and_one_more_message_is_replayed_while_one_of_two_nsqds_is_gone(
    nsqd: ServerHandle, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.chdir(tmp_path)
    nsqd.prepare(topic, "c")
    nsqd.prepare(topic + "-again", "check")
    publish(nsqd.tcp_address, topic, 0, count)
    with running(record(nsqd, topic, "--until-empty"), tmp_path, name="record") as program:
        assert program.ends(120) == 0
    both = ("--nsqd-tcp-address", nsqd.tcp_address, "--nsqd-tcp-address", "127.0.0.1:1")
    done = run_here("replay", "recording", "--to", topic + "-again", *both)
    assert (done.returncode, done.stderr) == (0, f"{count} messages replayed\n".encode())
    assert nsqd.stats(topic + "-again", "check")["message_count"] == count


def test_a_recorder_that_is_stopped_leaves_no_message_in_flight_and_serves_metrics(
    nsqd: ServerHandle, topic: str, tmp_path: Path
) -> None:
    nsqd.prepare(topic, "c")
    publish(nsqd.tcp_address, topic, 0, 1000)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with running(record(nsqd, topic, "--metrics", address, "--retain", "7d"), tmp_path) as program:
        program.says("/metrics")
        url = f"http://{address}/metrics"

        def metrics() -> dict[str, float]:
            with urllib.request.urlopen(url, timeout=10) as reply:
                lines = [line.split() for line in reply.read().decode().splitlines() if not line.startswith("#")]
            return {line[0].partition("{")[0].removeprefix("gnsq_recorder_"): float(line[-1]) for line in lines}

        wait_for(lambda: metrics()["rows_total"] == 1000)
        for page in ("healthz", "readyz"):
            with urllib.request.urlopen(f"http://{address}/{page}", timeout=10) as reply:
                assert json.load(reply)["ok"]
        found = metrics()
        assert (found["oldest_row"], found["newest_row"], found["missing_nsqds"]) == (1, 1000, 0)
        assert found["log_bytes"] >= found["bytes_total"] > 1000
        publish(nsqd.tcp_address, topic, 1000, 2000)
        program.signal(signal.SIGTERM)
        assert program.ends() == 0
    stats = nsqd.stats(topic, "c")
    assert stats["in_flight_count"] == 0
    rows = sum(batch.num_rows for batch in Recording(str(tmp_path / "recording")).batches())
    assert rows + stats["depth"] == 3000


def test_two_recorders_share_a_channel_and_each_writes_a_log(nsqd: ServerHandle, topic: str, tmp_path: Path) -> None:
    nsqd.prepare(topic, "c")
    with (
        running(record(nsqd, topic), tmp_path, name="one") as one,
        running(record(nsqd, topic), tmp_path, name="two") as two,
    ):
        wait_for(lambda: len(nsqd.stats(topic, "c")["clients"]) == 2, STARTING)
        publish(nsqd.tcp_address, topic, 0, 4000)
        recording = Recording(str(tmp_path / "recording"))
        wait_for(lambda: sum(recording.end().values()) == 4000)
        for program in (one, two):
            program.signal(signal.SIGTERM)
            assert program.ends() == 0
    assert len(recording.end()) == 2
    bodies = {int(body) for batch in recording.batches() for body in batch["body"].to_pylist()}
    assert bodies == set(range(4000))


def test_logs_are_listed_verified_trimmed_and_retired(
    nsqd: ServerHandle, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = str(tmp_path / "recording")
    publish(nsqd.tcp_address, topic, 0, 100)
    where = ["--nsqd-tcp-address", nsqd.tcp_address]
    assert exit_code(["record", topic, "c", place, *where, "--until-empty"]) == 0
    assert exit_code(["recording", "ls", place, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (log,) = found["logs"]
    assert (found["topic"], log["rows"], log["retired"]) == (topic, 100, False)
    assert exit_code(["recording", "verify", place]) == 0
    assert exit_code(["recording", "trim", place, "--retain", "1d"]) == 0
    assert exit_code(["recording", "retire", place, log["log"]]) == 0
    assert exit_code(["recording", "ls", place]) == 0
    out = capsys.readouterr().out
    assert "rows 1 to 100\tok" in out
    assert "retired" in out
    assert exit_code(["replay", place, "--to", topic, *where]) == 2
    assert "--force" in capsys.readouterr().err
    assert exit_code(["replay", place, "--to", topic, *where, "--force", "--since", "1h"]) == 0
    assert exit_code(["replay", place, "--to", topic, *where, "--force", "--until", "1h"]) == 0
    assert "100 messages replayed" in (told := capsys.readouterr().err)
    assert "\n0 messages replayed" in told
    (pack,) = Path(place).glob("logs/*/pack-*")
    data = pack.read_bytes()
    pack.write_bytes(data[:-100] + bytes(100))
    assert exit_code(["recording", "verify", place]) == 1
    assert exit_code(["recording", "ls", place + "x"]) == 2
    assert exit_code(["recording", "trim", place]) == 2


def test_a_recorder_seldom_collects_garbage_and_restores_the_settings(
    nsqd: ServerHandle, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, seen, record = gc.get_threshold(), [], daemon.record
    monkeypatch.setattr(daemon, "record", lambda *a, **k: (seen.append(gc.get_threshold()[0]), record(*a, **k)))
    where = ["--nsqd-tcp-address", nsqd.tcp_address]
    publish(nsqd.tcp_address, topic, 0, 10)
    assert exit_code(["record", topic, "c", str(tmp_path / "recording"), *where, "--until-empty"]) == 0
    assert seen == [daemon.UNCOLLECTED]
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, 0)


def test_the_first_block_of_the_page_reads_a_recording(tmp_path: Path) -> None:
    place = str(tmp_path / "recording")
    recording = Recording(place)
    recording.create("clicks", "archive")
    writer = recording.take()
    writer.append([(-1, to_batch([FakeMessage(1, b"hello")]))])
    writer.close()
    text = next(source for _, source in docblocks.blocks(ROOT / "docs" / "recordings.rst"))
    (tmp_path / "page.py").write_text(text.replace("/var/lib/clicks", place), encoding="utf-8")
    with running(["page.py"], tmp_path) as page:
        assert page.ends() == 0
        assert "1 b'hello'" in page.output


def test_a_state_file_of_another_replay_is_refused(
    nsqd: ServerHandle, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place, state = str(tmp_path / "recording"), str(tmp_path / "state")
    Recording(place).create(topic, "c")
    writer = Recording(place).take()
    writer.close()
    Path(state).write_text(json.dumps({"recording": place, "to": "other", "position": {}, "since": None}))
    where = ["--nsqd-tcp-address", nsqd.tcp_address]
    assert exit_code(["replay", place, "--to", "another", "--state", state, *where]) == 2
    assert "to another replay" in capsys.readouterr().err


def test_a_metrics_port_that_is_taken_ends_the_recorder_with_the_reason_and_frees_its_log(
    nsqd: ServerHandle, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = str(tmp_path / "recording")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = ["--nsqd-tcp-address", nsqd.tcp_address, "--metrics", f"127.0.0.1:{taken.getsockname()[1]}"]
        assert exit_code(["record", topic, "c", place, *where]) == 1
    assert "cannot serve /metrics: Address already in use" in capsys.readouterr().err
    Recording(place).take().close()
    assert len(Recording(place).names()) == 1, "the log is free for the next recorder"


def test_a_state_file_is_synced_before_its_position_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def noted(name: str, real: Callable[..., None]) -> Callable[..., None]:
        def call(*given: object) -> None:
            calls.append(name)
            real(*given)

        return call

    for name in ("fdatasync", "rename", "fsync"):
        monkeypatch.setattr(os, name, noted(name, getattr(os, name)))
    state = State(str(tmp_path / "state"), None, "recording", "again")
    state.note({"log": 7})
    assert calls == ["fdatasync", "rename", "fsync"], "the content, then the name"
    assert State(str(tmp_path / "state"), None, "recording", "again").position == {"log": 7}


def test_times_are_durations_ago_or_iso_in_utc() -> None:
    assert parse_time("2h", 10_000.0) == 2_800.0
    assert parse_time("2026-11-21T04:00:00", 0.0) == parse_time("2026-11-21T06:00:00+02:00", 0.0) == 1795233600.0
    assert parse_time("2026-11-21T04:00:00Z", 0.0) == 1795233600.0
    assert parse_time("20261121", 0.0) == parse_time("2026-11-21", 0.0) == 1795219200.0
    with pytest.raises(ValueError, match="Invalid isoformat"):
        parse_time("soon", 0.0)


class MpubRecorder:
    """Stands in for the Writer: keeps the bodies of each MPUB, and fails after *limit* MPUBs."""

    mpubs: ClassVar[list[list[bytes]]] = []
    limit = 1000

    def __init__(self, **_: object) -> None:
        pass

    def __enter__(self) -> MpubRecorder:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def multipublish(self, topic: str, bodies: list[bytes]) -> None:
        if len(self.mpubs) >= self.limit:
            raise NotSent("the test's limit")
        self.mpubs.append(bodies)


def recorded(place: str, *messages: FakeMessage) -> None:
    """Store *messages* in one write."""
    recording = Recording(place)
    recording.create("clicks", "c")
    writer = recording.take()
    writer.append([(-1, to_batch(list(messages)))])
    writer.close()


def test_a_replay_notes_its_position_after_each_mpub_of_limited_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, state = str(tmp_path / "recording"), tmp_path / "state"
    sizes = [400_000, 400_000, 400_000, MOST_BYTES + 1, 1, 1]
    recorded(place, *(FakeMessage(n, b"x" * size) for n, size in enumerate(sizes)))
    monkeypatch.setattr(replay, "Writer", MpubRecorder)
    monkeypatch.setattr(MpubRecorder, "mpubs", [])
    positions = []
    for limit in (1, 2, 3, 4):
        monkeypatch.setattr(MpubRecorder, "limit", limit)
        exit_code(["replay", place, "--to", "again", "--nsqd-tcp-address", "127.0.0.1:1", "--state", str(state)])
        positions += json.loads(state.read_text())["position"].values()
    assert positions == [2, 3, 4, 6]
    assert [[len(body) for body in bodies] for bodies in MpubRecorder.mpubs] == [
        [400_000, 400_000],
        [400_000],
        [MOST_BYTES + 1],
        [1, 1],
    ]
    assert list(gather(iter(()))) == []


def test_a_replay_without_until_continues_where_a_replay_with_until_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = str(tmp_path / "recording")
    base = 1_700_000_000
    recorded(place, *(FakeMessage(n, b"%d" % n, timestamp_ns=(base + n) * 10**9) for n in range(10)))
    monkeypatch.setattr(replay, "Writer", MpubRecorder)
    monkeypatch.setattr(MpubRecorder, "mpubs", [])
    again = ["replay", place, "--to", "again", "--nsqd-tcp-address", "127.0.0.1:1", "--state", str(tmp_path / "state")]
    until = datetime.fromtimestamp(base + 4, timezone.utc).isoformat()
    assert exit_code([*again, "--until", until]) == exit_code([*again, "--until", until]) == 0
    assert exit_code(again) == exit_code([*again, "--until", until]) == exit_code(again) == 0
    assert MpubRecorder.mpubs == [[b"%d" % n for n in range(4)], [b"%d" % n for n in range(4, 10)]]


def test_a_second_sigterm_ends_a_recorder_that_cannot_stop(nsqd: ServerHandle, topic: str, tmp_path: Path) -> None:
    nsqd.prepare(topic, "c")
    code = (
        "import sys, time; from gnsq_lite.recording.recorder import Recorder; from gnsq_lite.cli.app import main\n"
        "Recorder.stop = lambda *_: (print('stopping', flush=True), time.sleep(100))\n"
        "main()\n"
    )
    (tmp_path / "slow.py").write_text(code)
    with running(["slow.py", *record(nsqd, topic)[2:]], tmp_path) as program:
        wait_for(lambda: nsqd.stats(topic, "c")["clients"] != [], STARTING)
        program.signal(signal.SIGTERM)
        program.says("stopping")
        program.signal(signal.SIGTERM)
        assert program.ends(60) == -signal.SIGTERM


def test_rows_of_a_killed_recorder_become_parquet_files_however_few(
    nsqd: ServerHandle, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = str(tmp_path / "recording")
    parquet = ("--parquet", "--seal-after", "1s")
    nsqd.prepare(topic, "c")
    publish(nsqd.tcp_address, topic, 0, 1000)
    recording = Recording(place)
    with running(record(nsqd, topic, *parquet), tmp_path, name="dies") as program:
        wait_for(lambda: recording.exists() and sum(recording.end().values()) == 1000, STARTING)
        assert in_folder(place) == [], "less than 1 MB waits"
        program.signal(signal.SIGKILL)
    (dead,) = recording.names()
    recording.retire(dead)  # so that the next recorder writes another log
    with running(record(nsqd, topic, *parquet), tmp_path, name="lives") as program:
        wait_for(lambda: sorted(in_folder(place)) == list(range(1000)), STARTING)
        publish(nsqd.tcp_address, topic, 1000, 10)
        wait_for(lambda: sum(recording.end().values()) == 1010)
        program.signal(signal.SIGTERM)
        assert program.ends() == 0
    assert sorted(in_folder(place)) == list(range(1010)), "a recorder that stops seals its rows"
    assert exit_code(["recording", "ls", place]) == 0
    assert f"{dead}\trows 1 to 1000\t" in (out := capsys.readouterr().out)
    assert "sealed up to 1000\tretired" in out
    assert exit_code(["recording", "verify", place]) == 0


def test_a_recording_is_sealed_by_a_command_and_not_while_a_recorder_writes(
    nsqd: ServerHandle, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = str(tmp_path / "recording")
    publish(nsqd.tcp_address, topic, 0, 100)
    where = ["--nsqd-tcp-address", nsqd.tcp_address]
    assert exit_code(["record", topic, "c", place, *where, "--until-empty"]) == 0
    (name,) = Recording(place).names()
    assert exit_code(["recording", "seal", place + "x"]) == 2
    writer = Recording(place).take()
    assert exit_code(["recording", "seal", place]) == 1
    assert f"{name}\ta recorder writes it" in capsys.readouterr().out
    writer.close()
    assert exit_code(["recording", "seal", place]) == 0
    assert f"{name}\tsealed" in capsys.readouterr().out
    assert in_folder(place) == list(range(100))
    publish(nsqd.tcp_address, topic, 100, 100)
    assert exit_code(["record", topic, "c", place, *where, "--until-empty"]) == 0
    assert in_folder(place) == list(range(200)), "the recorders of a sealed recording seal without --parquet"
    assert exit_code(["record", topic, "c", place, *where, "--until-empty", "--seal", "0"]) == 2
    assert "--seal" in capsys.readouterr().err
