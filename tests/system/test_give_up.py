"""The on_give_up functions of the library."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gnsq_lite import GiveUp, Message, Reader, Requeue, Worker, Writer, errors
from gnsq_lite.contrib import give_up
from gnsq_lite.worker.dead import Topic, open_stores, to_stores
from tests.programs import wait_for
from tests.servers import ServerHandle


def poisoned(broker: ServerHandle, topic: str, on_give_up: Any, **options: Any) -> Reader:
    def handler(message: Message) -> None:
        raise Requeue(0.0, backoff=False)

    return Reader(
        topic,
        "ch",
        handler,
        nsqd_tcp_addresses=broker.tcp_address,
        max_attempts=1,
        requeue_delay=0.0,
        backoff=False,
        on_give_up=on_give_up,
        **options,
    )


@pytest.mark.rule("MSG-4")
def test_a_directory_gets_one_file_for_each_message_with_its_metadata(
    broker: ServerHandle, topic: str, tmp_path: Path
) -> None:
    broker.prepare(topic, "ch")
    broker.publish(topic, b"one\n\x00", b"two")
    folder = tmp_path / "dead"
    umask = os.umask(0)
    try:
        on_give_up = give_up.to_directory(folder)
    finally:
        os.umask(umask)
    with poisoned(broker, topic, on_give_up) as reader:
        wait_for(lambda: reader.stats().given_up == 2)
        wait_for(lambda: reader.stats().finished == 2)
    kept = list(give_up.read(folder))
    assert sorted(k.body for k in kept) == [b"one\n\x00", b"two"]
    assert {(k.topic, k.channel, k.attempts, k.nsqd_address) for k in kept} == {(topic, "ch", 2, broker.tcp_address)}
    assert all(name.endswith(".json") for name in os.listdir(folder))
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o600}


@pytest.mark.rule("MSG-4")
def test_when_the_directory_cannot_be_written_the_message_is_requeued(
    broker: ServerHandle, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.prepare(topic, "ch")
    broker.publish(topic, b"one")
    failures: list[BaseException] = []
    folder = tmp_path / "dead"
    keep = give_up.to_directory(folder)

    def fail_once(source: str, target: str) -> None:
        monkeypatch.undo()
        raise OSError("no space left")

    monkeypatch.setattr(os, "rename", fail_once)
    with poisoned(broker, topic, keep, on_failure=lambda m, e: failures.append(e)) as reader:
        wait_for(lambda: reader.stats().given_up == 1)
        wait_for(lambda: reader.stats().finished == 1)
    assert [str(e) for e in failures] == ["no space left"]
    assert len(list(give_up.read(folder))) == 1
    assert len(os.listdir(folder)) == 1  # no incomplete file remains


@pytest.mark.rule("MSG-4")
def test_a_dead_letter_topic_gets_the_body_and_fin_follows_its_ok(broker: ServerHandle, topic: str) -> None:
    broker.prepare(topic, "ch")
    broker.publish(topic, b"one")
    with Writer(broker.tcp_address) as writer, poisoned(broker, topic, give_up.to_topic(topic + "_dead", writer)) as r:
        wait_for(lambda: r.stats().finished == 1)
    assert broker.stats(topic + "_dead")["depth"] == 1
    store = Topic(topic + "_dead", no_writer, reader={"nsqd_tcp_addresses": broker.tcp_address})
    (letter,) = store.letters()
    assert (letter.body, letter.topic, letter.channel, letter.attempts) == (b"one", topic, "ch", 2)
    for letter in store.letters():  # a dead letter that was read and not removed stays
        store.remove(letter)
    assert list(store.letters()) == []


@pytest.mark.rule("MSG-4")
def test_a_dead_letter_topic_with_body_only_gets_the_body(broker: ServerHandle, topic: str) -> None:
    broker.prepare(topic, "ch")
    broker.publish(topic, b"one")
    with Writer(broker.tcp_address) as writer:
        keep = give_up.to_topic(topic + "_dead", writer, bare=True)
        with poisoned(broker, topic, keep) as reader:
            wait_for(lambda: reader.stats().finished == 1)
    store = Topic(topic + "_dead", no_writer, bare=True, reader={"nsqd_tcp_addresses": broker.tcp_address})
    (letter,) = store.letters()
    assert (letter.body, letter.topic, letter.channel) == (b"one", topic + "_dead", "")


@pytest.mark.rule("MSG-4")
def test_a_dead_letter_that_is_too_large_for_the_topic_goes_to_the_directory(
    broker: ServerHandle, topic: str, tmp_path: Path
) -> None:
    broker.prepare(topic, "ch")
    broker.publish(topic, b"x" * 2000)
    with Writer(broker.tcp_address, max_msg_size=2000) as writer:
        stores = open_stores(f"topic:{topic}_dead,directory:{tmp_path}", lambda: writer)
        with poisoned(broker, topic, to_stores(*stores)) as reader:
            wait_for(lambda: reader.stats().finished == 1)
    assert [letter.body for letter in give_up.read(tmp_path)] == [b"x" * 2000]


@pytest.mark.rule("MSG-4")
def test_the_message_is_requeued_if_the_dead_letter_topic_is_unreachable(broker: ServerHandle, topic: str) -> None:
    broker.prepare(topic, "ch")
    broker.publish(topic, b"one")
    writer = Writer("127.0.0.1:1", publish_timeout=0.2)
    with writer, poisoned(broker, topic, give_up.to_topic("dead", writer)) as reader:
        wait_for(lambda: reader.stats().requeued >= 3)
        assert reader.stats().finished == 0
    stats = broker.stats(topic, "ch")
    assert stats["depth"] + stats["deferred_count"] + stats["in_flight_count"] == 1


def no_writer() -> Writer:
    raise AssertionError("no writer is needed")


def test_give_up_callbacks_from_text(tmp_path: Path) -> None:
    assert give_up.by_words("log", no_writer)
    give_up.by_words(f"directory:{tmp_path}/x", no_writer)
    assert (tmp_path / "x").is_dir()
    assert give_up.by_words("topic:dead,bodies:dead", no_writer)
    for wrong in ("", "directory:", "topic:", "queue:x", "drop", "log,topic:x", "topic:x,"):
        with pytest.raises(errors.OptionError):
            give_up.by_words(wrong, no_writer)
    with pytest.raises(errors.InvalidName):
        give_up.by_words("topic:a b", no_writer)


@pytest.mark.parametrize("store", ["log", "directory"])
def test_a_message_that_is_given_up_by_give_up_is_one_line_of_the_log(
    broker: ServerHandle, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, store: str
) -> None:
    worker = Worker(
        nsqd_tcp_addresses=broker.tcp_address, on_give_up="log" if store == "log" else f"directory:{tmp_path}/dead"
    )

    @worker.handler(topic, "ch", decode=json.loads)
    def handle(value: Any, message: Message) -> None:
        raise GiveUp("sold out")

    caplog.set_level("INFO")
    broker.prepare(topic, "ch")
    broker.publish(topic, b"1", b"{")
    worker.start()
    wait_for(lambda: worker.stats()[0].given_up == 2)
    assert worker.close()
    about = [each for each in caplog.records if hasattr(each, "message_id")]
    assert len(about) == 2
    assert not any(each.exc_info for each in about)
    texts = sorted(each.getMessage().partition("GiveUp: ")[2].partition(":")[0] for each in about)
    assert texts == ["cannot decode the body", "sold out"]
