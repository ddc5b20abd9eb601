"""What a real nsqd sends again is dropped: after its own kill, and after the source's between sync and FIN."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gnsq_lite.recording.files import Files
from gnsq_lite.spark.options import SourceOptions, parse
from gnsq_lite.spark.stream import NsqStreamReader
from tests.servers import RealNsqd, ServerHandle
from tests.spark import queries
from tests.spark.queries import Query, publish, settled

server = queries.server

ROOT = Path(__file__).parent.parent.parent
pytestmark = pytest.mark.timeout(400)


class Dying(Files):
    """Dies after a sync of a pack, before its FINs."""

    left = 0

    def sync(self, fd: int) -> None:
        super().sync(fd)
        if "/pack-" in os.readlink(f"/proc/self/fd/{fd}"):
            Dying.left -= 1
            if Dying.left == 0:
                os._exit(9)


class DyingReader(NsqStreamReader):
    files = Dying


def given(server: ServerHandle, directory: Path, **more: str) -> SourceOptions:
    base = {"topic": "t", "channel": "c", "recording": str(directory / "spool"), "nsqdTCPAddresses": server.tcp_address}
    return parse(SourceOptions, {**base, **more})


@pytest.mark.rule("PIPE-3")
def test_what_a_killed_nsqd_sends_again_from_its_disk_is_dropped(server: ServerHandle, tmp_path: Path) -> None:
    publish(server, 6000)
    query = Query(NsqStreamReader(given(server, tmp_path)))
    query.run(lambda: len(query.rows) >= 6000)
    query.run(settled(server))
    server.kill()
    server.restart()
    server.prepare("t", "c")
    publish(server, 500)  # bodies 0 to 499 once more, as new messages
    query.run(lambda: len(query.rows) >= 6500)
    query.run(settled(server))
    again = query.dropped
    query.reader.stop()
    assert sorted(query.rows) == sorted([*range(6000), *range(500)])
    if isinstance(server, RealNsqd):
        assert again > 0, "nsqd sent nothing again: the trial shows nothing"


def die(options: SourceOptions, syncs: int) -> None:
    Dying.left = syncs
    reader = DyingReader(options)
    reader.initialOffset()
    time.sleep(60)


@pytest.mark.rule("PIPE-3")
def test_what_comes_again_after_a_kill_between_sync_and_fin_is_dropped_behind_a_backlog(
    server: ServerHandle, tmp_path: Path
) -> None:
    """With a backlog before them the copies come long after their time-out; many kills, one query."""
    publish(server, 20_000)
    options = given(server, tmp_path, maxInFlight="400", maxOffsetsPerTrigger="2000")
    code = (
        "import pickle, sys; from tests.spark import test_again as t; t.die(*pickle.loads(bytes.fromhex(sys.argv[1])))"
    )
    for syncs in (1, 2, 3):
        command = [sys.executable, "-c", code, pickle.dumps((options, syncs)).hex()]
        assert subprocess.run(command, cwd=ROOT, timeout=150, check=False).returncode == 9
    query = Query(NsqStreamReader(options))
    query.run(lambda: len(query.rows) >= 20_000)
    query.run(settled(server))
    query.step()
    again = query.dropped
    query.reader.stop()
    assert sorted(query.rows) == list(range(20_000))
    if isinstance(server, RealNsqd):
        assert again > 0
