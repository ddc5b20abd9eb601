"""The witness sees what passed, and what of it no honest client does."""

from __future__ import annotations

import struct
import threading
from math import inf

import pytest

from gnsq_lite import TLSOptions, Writer
from tests import servers
from tests.certs import Certificates
from tests.ledger import book
from tests.ledger.front import TLSFront
from tests.ledger.wire import Passed, Wire, Witness
from tests.ledger.worker import QUICK
from tests.programs import wait_for
from tests.proxy import Proxy
from tests.rawclient import dpub, identify, mpub, pub, sub

NSQD = "127.0.0.1:2"


def frame(kind: int, data: bytes) -> bytes:
    return struct.pack(">II", 4 + len(data), kind) + data


OK, HEARTBEAT = frame(0, b"OK"), frame(0, b"_heartbeat_")


def wire(*passed: tuple[str, bytes], at_a_time: int = 1 << 16) -> Witness:
    """Return the witness of a connection of "w" over which that passed, "up" or "down"; "lost" came from nsqd and went
    no further."""
    witness = Witness(9)
    one = Wire(witness, NSQD)
    for way, data in passed:
        for at in range(0, len(data), at_a_time):
            part = data[at : at + at_a_time]
            (one.up if way == "up" else one.down)(part)
            if way == "down":
                one.passed(len(part))
    return witness


HELLO = ("up", b"  V2" + identify(client_id="w")), ("down", frame(0, b"{}"))
FIRST, SECOND, STRANGER = b"a" * 16, b"b" * 16, b"c" * 16


def message(id: bytes, body: bytes) -> bytes:
    return frame(2, bytes(10) + id + body)


@pytest.mark.parametrize("at_a_time", [1, 7, 65536])
def test_the_witness_matches_each_answer_with_its_command(at_a_time: int) -> None:
    witness = wire(
        *HELLO,
        ("up", pub("t", b"9:1")),
        ("down", HEARTBEAT),
        ("up", b"NOP\n" + mpub("t", b"9:2", b"9:3") + pub("t", b"9:4") + dpub("t", 5, b"9:5") + pub("t", b"9:6")),
        ("down", OK + frame(1, b"E_MPUB_FAILED") + OK + HEARTBEAT + OK),
        at_a_time=at_a_time,
    )
    assert sorted(witness.confirmed) == [1, 4, 5]
    assert {nsqd for oks in witness.confirmed.values() for nsqd, _ in oks} == {NSQD}


@pytest.mark.parametrize("at_a_time", [1, 7, 65536])
def test_the_witness_knows_what_was_given_and_finished(at_a_time: int) -> None:
    witness = wire(
        *HELLO,
        ("up", sub("t", "ch") + b"RDY 2\n"),
        ("down", OK + message(FIRST, b"9:1") + message(SECOND, b"9:2")),
        ("up", b"REQ " + SECOND + b" 0\nFIN " + FIRST + b"\n"),
        ("down", frame(1, b"E_FIN_FAILED FIN " + FIRST + b" failed ID not in flight")),
        at_a_time=at_a_time,
    )
    assert (witness.given, witness.finished, dict(witness.confirmed), witness.lies) == ({1, 2}, {1}, {}, [])
    assert [(each.worker, each.number, each.id) for each in witness.deliveries] == [
        ("w", 1, "a" * 16),
        ("w", 2, "b" * 16),
    ]


def test_what_went_no_further_than_the_proxy_was_neither_said_nor_delivered() -> None:
    witness = wire(
        *HELLO,
        ("up", pub("t", b"9:1") + sub("t", "ch")),
        ("lost", OK + OK + message(FIRST, b"9:2")),
    )
    assert (witness.given, witness.deliveries, dict(witness.confirmed)) == ({2}, [], {})


@pytest.mark.parametrize("verb", ["FIN %s", "REQ %s 0"])
def test_an_answer_that_no_delivery_asks_for_is_a_lie(verb: str) -> None:
    def told(*ids: bytes) -> list[str]:
        answers = "".join(f"{verb % id.decode()}\n" for id in ids).encode()
        return wire(*HELLO, ("down", message(FIRST, b"9:1") + message(FIRST, b"9:1")), ("up", answers)).lies

    name = verb[:3]
    assert told(FIRST, FIRST) == []
    assert told(FIRST, FIRST, FIRST) == [f"{name} {'a' * 16} from w, which that connection has answered already (1)"]
    assert told(STRANGER) == [f"{name} {'c' * 16} from w, which that connection was never sent"]


def heard(
    notes: list[book.Handled], witness: Witness, *events: book.Event, server: str = "nsqd", began: float = 0.0
) -> book.Audit:
    """Return the audit of number 1, which the Writer says was confirmed since *began*."""
    result, sent = book.Audit(1, server, 1), {1: book.Sent(ok=1, claims=[(began, inf)])}
    auditor = book.Auditor(events, {}, 2.0)
    auditor.audit(result, notes, sent)
    auditor.hear(result, notes, sent, witness)
    return result


def handled(witness: Witness, later: float = 0.0, worker: str = "w", fate: str = "ok") -> book.Handled:
    """Return the note of a handling, so much later than the first delivery."""
    at = witness.deliveries[0].at + later
    return book.Handled(worker, 1, "a" * 16, NSQD, at, fate)


def test_only_what_nsqd_confirmed_and_nobody_finished_can_be_its_own_loss() -> None:
    witness = wire(*HELLO, ("up", pub("t", b"9:1")), ("down", OK))
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
    witness.fins.append(Passed("w", 1, "a", NSQD, at))
    assert heard([], witness, killed).lost == [1]  # a client finished it


PUBLISHED = *HELLO, ("up", pub("t", b"9:1")), ("down", OK)


def test_an_ok_that_no_nsqd_said_in_that_time_is_unexplained() -> None:
    invented = ["1: the Writer says OK, no nsqd did"]
    honest = wire(*PUBLISHED, ("down", message(FIRST, b"9:1")))
    note = handled(honest)
    assert heard([note], honest).good
    since = honest.confirmed[1][0][1] + 1  # that OK was another publish's
    assert heard([note], honest, began=since).unexplained == invented
    unsaid = wire(*HELLO, ("up", pub("t", b"9:1")), ("down", message(FIRST, b"9:1")), ("lost", OK))
    assert invented[0] in heard([note], unsaid).unexplained
    refused = wire(*HELLO, ("up", pub("t", b"9:1")), ("down", frame(1, b"E_PUB_FAILED") + message(FIRST, b"9:1")))
    assert invented[0] in heard([note], refused).unexplained


def test_more_handlings_than_deliveries_are_unexplained() -> None:
    once, twice = message(FIRST, b"9:1"), message(FIRST, b"9:1") * 2
    cut = book.Event("w", "cut", NSQD, 0.0)  # the redelivery has a fault: that does not explain a handling of nothing

    def told(sent: bytes, *notes: tuple[float, str]) -> list[str]:
        witness = wire(*PUBLISHED, ("down", sent))
        found = [handled(witness, later, worker) for later, worker in notes]
        return heard(found, witness, cut._replace(at=found[0].at)).unexplained

    assert told(once, (1.0, "w")) == []
    assert told(twice, (1.0, "w"), (1.1, "w")) == []
    assert len(told(once, (1.0, "w"), (1.1, "w"))) == 1
    assert len(told(once, (-0.1, "w"))) == 1  # before it was there
    assert len(told(once, (1.0, "v"))) == 1  # it went to another
    assert "2 handlings by w for 1 deliveries of aaaaaaaaaaaaaaaa" in told(once, (1.0, "w"), (1.1, "w"))[0]


@pytest.mark.parametrize(
    ("fate", "later", "good"),
    [("ok", 0.0, True), ("hang", 0.0, True), ("raise", 0.0, False), ("exit", 0.0, False), ("ok", 60.0, False)],
)
def test_a_fin_that_no_handler_had_earned_is_unexplained(fate: str, later: float, good: bool) -> None:
    witness = wire(*PUBLISHED, ("down", message(FIRST, b"9:1")), ("up", b"FIN " + FIRST + b"\n"))
    found = heard([handled(witness, later, fate=fate)], witness)
    assert found.good == good
    if not good:
        assert "1: FIN 1 by w of aaaaaaaaaaaaaaaa, which 0 handlers had done" in found.unexplained[0]
    assert len(heard([], witness).unexplained) == 1


def test_the_witness_sees_what_a_client_says_within_tls_and_how_far_its_handshake_is(certs: Certificates) -> None:
    witness, front = Witness(9), TLSFront(certs)
    front.stalling = True
    with servers.embedded_nsqd() as nsqd, Proxy(nsqd.tcp_address) as proxy:
        witness.listen(proxy, NSQD)
        proxy.front = front
        options = {**QUICK, "handshake_timeout": 30.0, "publish_timeout": 60.0}
        with Writer(proxy.address, tls=TLSOptions(ca_file=certs.ca), client_id="w", **options) as writer:
            publishing = threading.Thread(target=writer.publish, args=("t", b"9:1"))
            publishing.start()
            wait_for(lambda: front.stalled)
            assert not witness.confirmed
            front.let_go()
            publishing.join(60)
        assert [nsqd for nsqd, _ in witness.confirmed[1]] == [NSQD]
        assert nsqd.stats("t")["depth"] == 1
