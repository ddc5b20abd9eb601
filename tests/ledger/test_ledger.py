"""Ten seeds of the loss ledger, and proof that its audit sees what it is there to see."""

from __future__ import annotations

import subprocess
import sys

import pytest
from gevent import monkey

from tests.ledger import book
from tests.ledger.__main__ import main

pytestmark = pytest.mark.slow

# Any ten would do: each run begins with publishes that are lost on their way (run.SURE), so that a Writer that took
# a lost connection for an OK lost 10 to 120 messages of 300 in each of these seeds.
SEEDS = range(1, 11)
#: A run is a process: its wall clock jumps, and it is monkey-patched where this one is.
LEDGER = [sys.executable, *(["-m", "gevent.monkey", "--module"] if monkey.is_module_patched("socket") else ["-m"])]


@pytest.mark.slow
@pytest.mark.rule("CONN-3")
@pytest.mark.rule("PUB-2")
@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_lost_and_every_duplicate_has_its_fault(seed: int) -> None:
    command = [*LEDGER, "tests.ledger", "--seeds", str(seed), "--messages", "200", "--seconds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "1 seeds, 200 messages" in done.stdout


def handled(number: int, at: float, id: str = "a", fate: str = "ok", worker: str = "w") -> book.Handled:
    return book.Handled(worker, number, id, "127.0.0.1:1", at, fate)


def audited(notes: list[book.Handled], *events: book.Event, **sent: book.Sent) -> book.Audit:
    result = book.Audit(1, "embedded", 1)
    auditor = book.Auditor(events, {"127.0.0.1:1": "127.0.0.1:2"}, 2.0)
    auditor.audit(result, notes, {1: sent.get("sent", book.Sent(ok=1))})
    return result


def test_a_confirmed_message_that_no_handler_saw_is_lost() -> None:
    assert audited([]).lost == [1]
    assert audited([], sent=book.Sent(not_sent=1)).lost == []
    assert audited([handled(1, 5.0)]).good


def test_a_redelivery_without_a_fault_is_unexplained() -> None:
    assert len(audited([handled(1, 5.0), handled(1, 8.0)]).unexplained) == 1
    assert audited([handled(1, 5.0, fate="raise"), handled(1, 8.0)]).redelivered == {"handler raise": 1}


def test_only_a_fault_of_that_worker_at_that_nsqd_and_time_explains_a_redelivery() -> None:
    twice = [handled(1, 100.0), handled(1, 102.0)]
    assert audited(twice, book.Event("w", "cut", "127.0.0.1:1", 100.5)).redelivered == {"connection lost": 1}
    assert audited(twice, book.Event("w", "cut", "127.0.0.1:2", 100.5)).good  # the same nsqd by its other name
    assert not audited(twice, book.Event("v", "cut", "127.0.0.1:1", 100.5)).good
    assert not audited(twice, book.Event("w", "cut", "127.0.0.1:3", 100.5)).good
    assert not audited(twice, book.Event("w", "cut", "127.0.0.1:1", 90.0)).good
    assert not audited(twice, book.Event("w", "cut", "127.0.0.1:1", 110.0)).good
    assert audited(twice, book.Event("w", "killed", "w", 100.1)).redelivered == {"worker killed": 1}
    assert audited(twice, book.Event("", "down", "127.0.0.1:2", 101.0)).redelivered == {"nsqd killed": 1}
    assert audited(twice, book.Event("w", "late", "a", 102.1)).redelivered == {"late answer": 1}
    elsewhere = [twice[0], twice[1]._replace(worker="v")]
    assert audited(elsewhere, book.Event("v", "late", "a", 102.1)).redelivered == {"late answer": 1}
    assert not audited(elsewhere, book.Event("v", "late", "a", 100.1)).good
    for stopped in ("w", "127.0.0.1:1"):
        for kind in ("frozen", "thawed"):
            assert audited(twice, book.Event("", kind, stopped, 101.0)).redelivered == {"stopped for a while": 1}
    assert not audited(twice, book.Event("", "thawed", "v", 101.0)).good


def test_a_reader_that_ends_by_itself_is_unexplained() -> None:
    ended = audited([handled(1, 5.0)], book.Event("w", "ended", "ConnectionFailed()", 6.0))
    assert ended.unexplained == ["w ended by itself: ConnectionFailed()"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lie", "found"),
    [
        ("fin", "which 0 handlers had done"),
        ("ok", "the Writer says OK, no nsqd did"),
        ("twice", "2 handlings by here for 1 deliveries"),
    ],
)
def test_a_client_that_lies_fails_the_run(lie: str, found: str, capsys: pytest.CaptureFixture[str]) -> None:
    # Seed 3 speaks TLS: the witness sees into that too.
    assert main(["--seeds", "3", "--messages", "100", "--seconds", "0.5", "--lie", lie]) == 1
    assert found in capsys.readouterr().out


def test_the_command_prints_a_line_for_each_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "77", "--messages", "20", "--seconds", "0.2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["seed", "server", "messages"]
    assert lines[1].split()[:2] == ["77", "embedded"]
    assert lines[-1].startswith("1 seeds, 20 messages")
