"""nsqlookupd's database: who is listed, for how long."""

from __future__ import annotations

from gnsq_lite.broker.registrations import Peer, Registration, RegistrationDB
from tests.fakes import FakeClock


def peer(name: str) -> Peer:
    return Peer(name, "192.0.2.1:1", "host", name, 4150, 4151, "1.3.0")


def names(db: RegistrationDB, topic: str) -> list[str]:
    return [p.peer.id for p in db.active(db.producers("topic", topic))]


def test_a_channel_registers_its_topic_too() -> None:
    db, one = RegistrationDB(FakeClock()), peer("one")
    db.introduce(one)
    db.register(one, "t", "c")
    assert names(db, "t") == ["one"]
    assert [key.subkey for key in db.find("channel", "t", "*")] == ["c"]


def test_a_topic_stays_known_when_its_last_producer_leaves_and_an_ephemeral_one_does_not() -> None:
    db, one = RegistrationDB(FakeClock()), peer("one")
    for topic in ("t", "e#ephemeral"):
        db.register(one, topic)
        db.unregister(one, topic)
    assert [key.key for key in db.find("topic", "*")] == ["t"]
    db.register(one, "t", "c#ephemeral")
    db.unregister(one, "t", "c#ephemeral")
    assert db.find("channel", "t", "*") == []


def test_a_producer_that_is_not_heard_of_is_left_out_after_the_timeout() -> None:
    clock = FakeClock()
    db, one = RegistrationDB(clock, inactive_producer_timeout=10.0), peer("one")
    db.introduce(one)
    db.register(one, "t")
    clock.advance(10.0)
    assert names(db, "t") == ["one"]
    clock.advance(0.1)
    assert names(db, "t") == []
    one.last_update = clock.now()
    assert names(db, "t") == ["one"]


def test_a_tombstone_hides_a_producer_of_one_topic_for_its_lifetime() -> None:
    clock = FakeClock()
    db, one = RegistrationDB(clock, tombstone_lifetime=5.0), peer("one")
    db.introduce(one)
    for topic in ("t", "u"):
        db.register(one, topic)
    db.producers("topic", "t")[0].tombstoned_at = clock.now()
    assert (names(db, "t"), names(db, "u")) == ([], ["one"])
    assert [p.peer.id for p in db.active(db.producers("client"), tombstones=False)] == ["one"]
    clock.advance(4.9)
    assert names(db, "t") == []
    clock.advance(0.1)
    assert names(db, "t") == ["one"]


def test_a_peer_that_is_gone_is_under_nothing() -> None:
    db, one, two = RegistrationDB(FakeClock()), peer("one"), peer("two")
    for each in (one, two):
        db.introduce(each)
        db.register(each, "t", "c")
    db.forget(one)
    assert names(db, "t") == ["two"]
    assert db.of_peer("one") == []
    assert Registration("client") in db.of_peer("two")
