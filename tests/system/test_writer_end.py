"""flush() and close() of a Writer: what they wait for, and how much the Writer may hold until then."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from gnsq_lite import Writer, errors
from gnsq_lite.publish.publisher import WriterCore
from tests.programs import wait_for
from tests.servers import ServerHandle, refusing_port
from tests.system.clients import QUICK, depth


def test_flush_waits_for_every_outcome(broker: ServerHandle, topic: str) -> None:
    with Writer(broker.tcp_address) as writer:
        sent = [writer.publish_nowait(topic, b"x") for _ in range(100)]
        writer.flush()
        assert all(p.done() for p in sent)


def test_close_waits_for_outcomes_and_then_refuses(broker: ServerHandle, topic: str) -> None:
    writer = Writer(broker.tcp_address)
    sent = [writer.publish_nowait(topic, b"x") for _ in range(100)]
    writer.close()
    writer.close()
    assert [p.result() for p in sent] == [None] * 100
    with pytest.raises(errors.ClosedError):
        writer.publish(topic, b"late")


def test_close_without_wait_keeps_the_outcomes_of_earlier_publishes(broker: ServerHandle, topic: str) -> None:
    writer = Writer(broker.tcp_address)
    sent = [writer.publish_nowait(topic, b"x") for _ in range(1000)]
    writer.close(wait=False)
    assert [p.result(10.0) for p in sent] == [None] * 1000
    wait_for(lambda: writer.stats().state == "closed")
    with pytest.raises(errors.ClosedError):
        writer.publish(topic, b"late")


def test_close_without_wait_returns_while_a_publish_has_no_outcome() -> None:
    with refusing_port() as port:
        writer = Writer(f"127.0.0.1:{port}", **QUICK)
        sent = writer.publish_nowait("t", b"x")
        writer.close(timeout=3.0, wait=False)
        assert not sent.done()
        with pytest.raises(errors.NotSent):
            sent.result(10.0)
        wait_for(lambda: writer.stats().state == "closed")


@pytest.mark.parametrize("moment", ["__init__", "start"])
def test_a_close_in_the_middle_of_the_first_publish_wins(monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    writer, cores = Writer("127.0.0.1:1", lookupd_http_addresses="127.0.0.1:1", **QUICK), []
    begin = getattr(WriterCore, moment)

    def closed_meanwhile(core: WriterCore, *args: Any) -> None:
        cores.append(core)
        if moment == "start":
            writer.close(0)
        begin(core, *args)
        writer.close(0)

    monkeypatch.setattr(WriterCore, moment, closed_meanwhile)
    for _ in range(2):
        with pytest.raises(errors.ClosedError):
            writer.publish("t", b"x")
    assert [(core.nodes, core._greenlets) for core in cores] == [({}, [])]


@pytest.mark.rule("PUB-1")
@pytest.mark.parametrize("coalesce", [False, True])
def test_close_does_not_wait_for_those_who_go_on_publishing(broker: ServerHandle, topic: str, coalesce: bool) -> None:
    writer = Writer(broker.tcp_address, coalesce=coalesce)
    ends: list[Exception] = []

    def publish() -> None:
        try:
            while True:
                writer.publish(topic, b"x")
        except errors.NSQError as error:
            ends.append(error)

    threads = [threading.Thread(target=publish) for _ in range(6)]
    for each in threads:
        each.start()
    wait_for(lambda: writer.stats().published > 100)
    begun = time.monotonic()
    writer.close(20.0)
    assert time.monotonic() - begun < 10.0
    for each in threads:
        each.join()
    assert [type(error) for error in ends] == [errors.ClosedError] * 6
    assert writer.stats().published == depth(broker, topic)


def test_what_cannot_be_sent_by_the_close_is_settled_not_lost() -> None:
    writer = Writer("127.0.0.1:1", **QUICK)
    publication = writer.publish_nowait("t", b"x")
    writer.close(timeout=0.1)
    with pytest.raises(errors.NotSent):
        publication.result(10.0)


def test_the_backlog_of_publish_nowait_is_bounded() -> None:
    with Writer("127.0.0.1:1", max_pending=1000, publish_timeout=0.2, **QUICK) as writer:
        for _ in range(10):
            writer.publish_nowait("t", b"x" * 100)
        with pytest.raises(errors.BacklogFull, match="nothing was sent"):
            writer.publish_nowait("t", b"x")
        time.sleep(0.5)  # the deadlines pass and the room is free again
        writer.publish_nowait("t", b"x")
