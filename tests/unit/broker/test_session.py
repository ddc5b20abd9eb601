"""One client's session, without sockets: flushing, heartbeats, back-pressure, upgrades, faults."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnsq_lite.broker.faults import Rule
from gnsq_lite.broker.session import HIGH_WATER
from tests.profiles import repeats
from tests.unit.broker.helpers import FakeServer

OK = (0, b"OK")
HEARTBEAT = (0, b"_heartbeat_")


def sized(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def pub(body: bytes, topic: bytes = b"t") -> bytes:
    return b"PUB " + topic + b"\n" + sized(body)


def identify(**fields: Any) -> bytes:
    return b"IDENTIFY\n" + sized(json.dumps({"feature_negotiation": True, **fields}).encode())


def bodies(frames: list[tuple[int, bytes]]) -> list[bytes]:
    return [data[26:] for kind, data in frames if kind == 2]


# -- flushing -------------------------------------------------------------------------------------------------------


def test_the_flush_ticker_runs_from_identify_on_as_nsqds_does() -> None:
    server = FakeServer()
    (producer, _), (consumer, link) = server.connect(), server.connect()
    server.talk(consumer, identify(output_buffer_timeout=100), b"SUB t c\nRDY 5\n")
    server.advance(0.090)
    server.talk(producer, pub(b"x"))
    server.advance(0.010)
    assert bodies(link.frames()) == [b"x"]


# -- heartbeats -----------------------------------------------------------------------------------------------------


# -- back-pressure --------------------------------------------------------------------------------------------------


def test_a_client_that_takes_nothing_gets_no_more_messages_until_it_does() -> None:
    server = FakeServer()
    (producer, _), (consumer, link) = server.connect(), server.connect()
    server.talk(consumer, b"SUB t c\nRDY 100\n")
    link.backlog = HIGH_WATER + 1
    server.talk(producer, pub(b"x"))
    server.advance(1.0)
    assert link.frames() == []
    link.backlog = 0
    consumer.sent()
    server.end_turn()
    server.advance(1.0)
    assert bodies(link.frames()) == [b"x"]


def test_commands_of_a_client_that_reads_no_answers_wait_until_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    high_water = 100_000
    monkeypatch.setattr("gnsq_lite.broker.session.HIGH_WATER", high_water)
    server = FakeServer()
    session, link = server.connect()
    link.backlog = high_water + 1
    count = high_water // 10 + 100
    session.receive(pub(b"x") * count)
    assert link.waits == 1
    assert server.topics.get("t").message_count == count


def test_one_turn_hands_a_client_about_a_mebibyte_and_the_next_goes_on() -> None:
    server = FakeServer()
    (producer, _), (consumer, link) = server.connect(), server.connect()
    server.talk(producer, pub(b"x" * 500_000) * 6)
    consumer.receive(b"SUB t c\nRDY 100\n")
    server.pump()
    assert consumer.in_flight_count == 3
    server.end_turn()
    assert len(bodies(link.frames())) == 6


# -- the end --------------------------------------------------------------------------------------------------------


# -- upgrades -------------------------------------------------------------------------------------------------------


# -- faults ---------------------------------------------------------------------------------------------------------


def test_a_fault_strikes_as_often_as_it_was_told() -> None:
    server = FakeServer()
    server.faults.rules.append(Rule(b"PUB", times=1, reply=(1, b"E_PUB_FAILED no")))
    server.faults.active = True
    session, _ = server.connect()
    assert server.talk(session, pub(b"x")) == [(1, b"E_PUB_FAILED no")]
    assert server.talk(session, pub(b"x")) == [OK]
    assert server.topics.get("t").message_count == 1


def test_a_delayed_command_holds_up_those_after_it_and_no_heartbeat() -> None:
    server = FakeServer()
    session, _ = server.connect()
    server.talk(session, identify(heartbeat_interval=1000))
    start = server.clock.now()
    server.faults.rules.append(Rule(b"PUB", times=1, delay=1.5, carry_out=True))
    server.faults.active = True
    assert server.talk(session, pub(b"1"), pub(b"2")) == [HEARTBEAT, OK, OK]
    assert server.clock.now() - start == pytest.approx(1.5)


def test_a_cut_comes_after_exactly_so_many_bytes() -> None:
    server = FakeServer()
    server.faults.cut_after_bytes, server.faults.cuts_left, server.faults.active = 13, 1, True
    session, link = server.connect()
    session.receive(pub(b"1") + pub(b"2"))
    server.end_turn()
    assert len(link.data) == 13
    assert link.closed


@pytest.mark.parametrize("piece", [1, 3, 100])
def test_a_dribble_sends_everything_in_order(piece: int) -> None:
    server = FakeServer()
    server.faults.piece, server.faults.active = piece, True
    session, link = server.connect()
    assert server.talk(session, pub(b"1") + b"FOO\n") == [OK, (1, b"E_INVALID invalid command FOO")]
    assert link.closed


# -- bounds ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("delay_ms", "good"), [(0, True), (5000, True), (5001, False)])
def test_a_publish_is_deferred_up_to_max_req_timeout_and_a_requeue_is_clamped_to_it(delay_ms: int, good: bool) -> None:
    server = FakeServer(max_req_timeout=5.0)
    (session, _), (consumer, link) = server.connect(), server.connect()
    frames = server.talk(session, b"DPUB t %d\n" % delay_ms + sized(b"x"))
    assert frames == [OK if good else (1, b"E_INVALID DPUB timeout %d out of range 0-5000" % delay_ms)]
    server.talk(consumer, b"SUB u c\nRDY 1\n")
    server.topics.publish(server.topics.get("u"), [b"y"])
    server.end_turn()
    (message,) = [data for kind, data in link.frames() if kind == 2]
    server.talk(consumer, b"REQ " + message[10:26] + b" %d\n" % delay_ms)
    server.advance(min(delay_ms / 1000, 5.0))
    assert bodies(link.frames()) == ([b"y"] if delay_ms else [])


# -- anything -------------------------------------------------------------------------------------------------------


_words = st.sampled_from([b"t", b"c", b"0", b"1", b"2501", b"-1", b"x", b"", b"0123456789abcdef", b"t!", b"\xff"])
_verbs = st.sampled_from(
    [b"IDENTIFY", b"AUTH", b"SUB", b"RDY", b"FIN", b"REQ", b"TOUCH", b"CLS", b"NOP", b"PUB", b"MPUB", b"DPUB", b"X"]
)
_json = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["heartbeat_interval", "snappy", "sample_rate", "client_id", "x"]), inner),
    ),
    max_leaves=5,
)
_payload = st.one_of(
    st.just(b""),
    st.binary(max_size=20),
    st.binary(max_size=20).map(sized),
    _json.map(lambda value: sized(json.dumps(value).encode())),
)


@settings(max_examples=repeats(300))
@given(st.lists(st.tuples(_verbs, st.lists(_words, max_size=3), _payload), max_size=8))
def test_no_command_sequence_breaks_a_session(commands: list[tuple[bytes, list[bytes], bytes]]) -> None:
    server = FakeServer()
    session, link = server.connect()
    for verb, words, payload in commands:
        session.receive(b" ".join([verb, *words]) + b"\n" + payload)
        server.end_turn()
    server.advance(200.0)
    if not any(upgrade[0] in ("snappy", "deflate") for upgrade in link.upgrades):
        errors = [data for kind, data in link.frames() if kind == 1]
        fatal = [e for e in errors if not e.startswith((b"E_FIN_FAILED", b"E_REQ_FAILED", b"E_TOUCH_FAILED"))]
        assert len(fatal) <= 1
        assert all(e.startswith(b"E_") for e in errors)
