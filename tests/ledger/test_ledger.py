"""Ten seeds of the loss ledger, and proof that its audit sees what it is there to see."""

from __future__ import annotations

import struct
import subprocess
import sys

import pytest
from gevent import monkey

from tests.ledger import book
from tests.ledger.__main__ import main
from tests.ledger.wire import Wire, Witness
from tests.rawclient import dpub, identify, mpub, pub, sub

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


def test_more_copies_than_were_sent_are_unexplained() -> None:
    two = [handled(1, 5.0, id="a"), handled(1, 6.0, id="b")]
    assert not audited(two).good
    assert not audited(two, sent=book.Sent(ok=1, not_sent=1)).good  # "not sent" was a lie
    assert audited(two, sent=book.Sent(ok=1, unknown=1)).good
    assert audited(two, sent=book.Sent(ok=1, resent=1)).copies == 1


def test_the_command_prints_a_line_for_each_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "77", "--messages", "20", "--seconds", "0.2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["seed", "server", "messages"]
    assert lines[1].split()[:2] == ["77", "embedded"]
    assert lines[-1].startswith("1 seeds, 20 messages")


NSQD = "127.0.0.1:2"


def frame(kind: int, data: bytes) -> bytes:
    return struct.pack(">II", 4 + len(data), kind) + data


OK, HEARTBEAT = frame(0, b"OK"), frame(0, b"_heartbeat_")


def wire(*passed: tuple[str, bytes], at_a_time: int = 1 << 16) -> Witness:
    """Return the witness of a connection over which that passed, "up" or "down"."""
    witness = Witness(9)
    one = Wire(witness, NSQD)
    for way, data in passed:
        for at in range(0, len(data), at_a_time):
            getattr(one, way)(data[at : at + at_a_time])
    return witness


@pytest.mark.parametrize("at_a_time", [1, 7, 65536])
def test_the_witness_matches_each_answer_with_its_command(at_a_time: int) -> None:
    witness = wire(
        ("up", b"  V2" + identify() + pub("t", b"9:1")),
        ("down", frame(0, b"{}") + HEARTBEAT),
        ("up", b"NOP\n" + mpub("t", b"9:2", b"9:3") + pub("t", b"9:4") + dpub("t", 5, b"9:5") + pub("t", b"9:6")),
        ("down", OK + frame(1, b"E_MPUB_FAILED") + OK + HEARTBEAT + OK),
        at_a_time=at_a_time,
    )
    assert sorted(witness.confirmed) == [1, 4, 5]
    assert {nsqd for oks in witness.confirmed.values() for nsqd, _ in oks} == {NSQD}


@pytest.mark.parametrize("at_a_time", [1, 7, 65536])
def test_the_witness_knows_what_was_given_and_finished(at_a_time: int) -> None:
    first, second = b"a" * 16, b"b" * 16
    witness = wire(
        ("up", b"  V2" + identify() + sub("t", "ch") + b"RDY 2\n"),
        ("down", frame(0, b"{}") + OK + frame(2, bytes(10) + first + b"9:1") + frame(2, bytes(10) + second + b"9:2")),
        ("up", b"REQ " + second + b" 0\nFIN " + first + b"\nFIN " + b"c" * 16 + b"\n"),
        ("down", frame(1, b"E_FIN_FAILED FIN " + b"c" * 16 + b" failed ID not in flight")),
        at_a_time=at_a_time,
    )
    assert (witness.given, witness.finished, dict(witness.confirmed)) == ({1, 2}, {1}, {})


def heard(notes: list[book.Handled], witness: Witness, *events: book.Event, server: str = "nsqd") -> book.Audit:
    """Return the audit of number 1, which the Writer says is confirmed."""
    result, sent = book.Audit(1, server, 1), {1: book.Sent(ok=1)}
    auditor = book.Auditor(events, {}, 2.0)
    auditor.audit(result, notes, sent)
    auditor.hear(result, notes, sent, witness)
    return result


def test_only_what_nsqd_confirmed_and_nobody_finished_can_be_its_own_loss() -> None:
    witness = wire(("up", b"  V2" + pub("t", b"9:1")), ("down", OK))
    ((_, at),) = witness.confirmed[1]
    killed = book.Event("", "down", NSQD, at + 60)
    theirs = heard([], witness, killed)
    assert (theirs.lost, theirs.lost_by_nsqd, theirs.lost_in_flight, theirs.good) == ([], [1], 0, True)
    assert heard([], witness).lost == [1]  # nsqd was not killed
    assert heard([], witness, book.Event("", "down", NSQD, at - 1)).lost == [1]  # before it said OK
    assert heard([], witness, book.Event("", "down", "127.0.0.1:3", at + 60)).lost == [1]  # another nsqd
    assert heard([], witness, killed, server="embedded").lost == [1]  # it keeps what it has
    witness.given.add(1)
    assert heard([], witness, killed).lost_in_flight == 1
    witness.finished.add(1)
    assert heard([], witness, killed).lost == [1]  # a client finished it


def test_an_ok_and_a_fin_that_the_wire_denies_are_unexplained() -> None:
    told = [handled(1, 5.0)]
    assert heard(told, wire(("up", b"  V2" + pub("t", b"9:1")), ("down", OK))).good
    assert heard(told, wire(("up", b"  V2" + pub("t", b"9:1")))).unexplained == ["1: the Writer says OK, no nsqd did"]
    finished = wire(("up", b"  V2" + pub("t", b"9:1")), ("down", OK))
    finished.finished.add(2)
    assert heard(told, finished).unexplained == ["2: FIN was sent, no handler was called"]
