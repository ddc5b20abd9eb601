"""The Writer against an embedded and a real nsqd."""

from __future__ import annotations

import os
import pickle
import socket
import threading
import time

import gevent
import pytest

from gnsq_lite import Writer, errors
from gnsq_lite.broker import Broker
from tests.conftest import MakeBroker
from tests.servers import ServerHandle
from tests.system.clients import QUICK, depth


@pytest.mark.rule("PUB-1")
def test_publish_returns_when_nsqd_has_the_message(broker: ServerHandle, topic: str) -> None:
    with Writer(broker.tcp_address) as writer:
        assert writer.publish(topic, b"one") is None
        assert depth(broker, topic) == 1
        writer.multipublish(topic, [b"two", b"three"])
        assert depth(broker, topic) == 3
        writer.publish(topic, b"later", defer=0.001)
        assert writer.stats().published == 4


@pytest.mark.rule("PUB-1")
def test_a_server_that_refuses_a_publish_raises_its_own_error(make_broker: MakeBroker, topic: str) -> None:
    broker = make_broker(max_msg_size=100)
    with Writer(broker.tcp_address, **QUICK) as writer:
        with pytest.raises(errors.BadMessageError, match="too big") as caught:
            writer.publish(topic, b"x" * 200)
        assert caught.value.address == broker.tcp_address
        writer.publish(topic, b"small")  # the Writer lives on
        assert depth(broker, topic) == 1


@pytest.mark.parametrize("coalesce", [False, True])
def test_one_bad_publish_hurts_no_other(make_broker: MakeBroker, topic: str, coalesce: bool) -> None:
    broker = make_broker(max_msg_size=100)
    with Writer(broker.tcp_address, coalesce=coalesce, **QUICK) as writer:
        writer.publish(topic, b"first")
        sent = [writer.publish_nowait(topic, b"x" * (200 if n == 3 else 10)) for n in range(10)]
        outcomes = []
        for publication in sent:
            try:
                outcomes.append(publication.result())
            except errors.NsqdError as error:
                outcomes.append(type(error))
        assert outcomes == [None] * 3 + [errors.BadMessageError] + [None] * 6
        assert depth(broker, topic) == 10


@pytest.mark.rule("WIRE-8")
@pytest.mark.parametrize(
    ("topic_name", "body", "error"),
    [
        ("t", "text", errors.BodyTypeError),
        ("t", b"", errors.InvalidBody),
        ("t", b"x" * (1024 * 1024 + 1), errors.MessageTooLarge),
        ("t\n", b"x", errors.InvalidName),
        ("a b", b"x", errors.InvalidName),
        ("", b"x", errors.InvalidName),
        ("t" * 65, b"x", errors.InvalidName),
        (b"t", b"x", errors.InvalidName),
        (["t"], b"x", errors.InvalidName),
    ],
)
def test_what_nsqd_would_refuse_is_refused_before_anything_is_sent(
    embedded: Broker, topic_name: str, body: bytes, error: type[Exception]
) -> None:
    with Writer(embedded.nsqd_tcp_address) as writer:
        with pytest.raises(error):
            writer.publish(topic_name, body)
        with pytest.raises(error):
            writer.publish_nowait(topic_name, body)
        with pytest.raises(error):
            writer.multipublish(topic_name, [b"good", body])
        writer.publish("good", b"x")
    assert [t["topic_name"] for t in embedded.node.stats()["topics"]] == ["good"]


@pytest.mark.rule("PUB-1")
@pytest.mark.parametrize("timeout", [None, 20.0])
def test_a_blocking_publish_in_the_greenlet_that_connects_is_refused(
    broker: ServerHandle, topic: str, timeout: float | None
) -> None:
    """A finalizer, or as here a function of the user, may publish in the greenlet that connects."""
    refused: list[str] = []

    def publishes(host: str, port: int) -> str:
        try:
            writer.publish(topic, b"inside", timeout=timeout)
        except errors.NotSent as error:
            refused.append(str(error))
        return f"{host}:{port}"

    with Writer(broker.tcp_address, address_map=publishes) as writer:
        publication = writer.publish_nowait(topic, b"x", timeout=20.0)
        publication.result(20.0)
    assert refused == ["a publish would block gevent's hub, or a greenlet that connects: use publish_nowait()"]
    assert broker.stats(topic)["message_count"] == 1


@pytest.mark.rule("WIRE-8")
def test_a_defer_beyond_max_defer_is_refused_and_one_within_it_reaches_an_nsqd_that_allows_it(
    make_broker: MakeBroker, topic: str
) -> None:
    broker = make_broker(max_req_timeout=86400.0)
    with Writer(broker.tcp_address) as writer:
        writer.publish(topic, b"x", defer=3600.0)
        with pytest.raises(errors.OptionError, match=r"max_defer, 3600 s .*an outbox with at= has no limit"):
            writer.publish(topic, b"x", defer=3600.001)
    with Writer(broker.tcp_address, max_defer=86400.0) as writer:
        writer.publish(topic, b"x", defer=86400.0)
        with pytest.raises(errors.OptionError, match="max_defer, 86400 s"):
            writer.publish(topic, b"x", defer=86401.0)


def test_bad_arguments_say_what_is_wrong(embedded: Broker) -> None:
    with Writer(embedded.nsqd_tcp_address) as writer:
        with pytest.raises(errors.BodyTypeError, match=r"\.encode\(\)"):
            writer.publish("t", "text")  # type: ignore[arg-type]
        allowed = "must be a number between 0.001 and 86400.0"
        for seconds in (-1.0, 0.0, 86401.0, float("inf"), float("nan"), True):
            for publish, body in ((writer.publish, b"x"), (writer.multipublish, [b"x"])):
                with pytest.raises(errors.OptionError, match=f"timeout=.*: {allowed}"):
                    publish("t", body, timeout=seconds)  # type: ignore[operator]
        for seconds in (-1.0, 1e6 + 1.0, float("inf"), float("nan")):
            with pytest.raises(errors.OptionError, match=r"defer=.*: must be a number between 0.0 and 1000000.0"):
                writer.publish("t", b"x", defer=seconds)
        with pytest.raises(errors.OptionError, match="key"):
            writer.publish("t", b"x", key="k")
        with pytest.raises(errors.InvalidBody):
            writer.multipublish("t", [])


def test_bad_options_fail_at_construction() -> None:
    for wrong in ({"publish_timeout": 0}, {"retries": -1}, {"max_msg_size": 0}, {"compression": "lz4"}, {"retrys": 1}):
        with pytest.raises(errors.OptionError):
            Writer("127.0.0.1:4150", **wrong)  # type: ignore[arg-type]
    with pytest.raises(errors.OptionError, match="did you mean 'retries'"):
        Writer("127.0.0.1:4150", retrys=1)  # type: ignore[call-arg]
    for wrong in ({"address_map": "host"}, {"allowed_addresses": True}, {"lookupd_http_addresses": 4161}):
        with pytest.raises(errors.OptionError):
            Writer(**wrong)  # type: ignore[arg-type]
    for address in ("127.0.0.1:0", "127.0.0.1:65536", "http://127.0.0.1:4150", ":", "a@b:1"):
        with pytest.raises(errors.OptionError):
            Writer(address)


@pytest.mark.rule("PUB-2")
@pytest.mark.rule("WIRE-8")
def test_a_batch_larger_than_nsqd_takes_is_split(make_broker: MakeBroker, topic: str) -> None:
    broker = make_broker(max_body_size=2000)
    with Writer(broker.tcp_address, max_body_size=2000) as writer:
        writer.multipublish(topic, [b"x" * 100] * 50)
    assert depth(broker, topic) == 50


@pytest.mark.rule("WIRE-8")
def test_the_error_of_a_split_batch_says_how_many_messages_nsqd_took(make_broker: MakeBroker, topic: str) -> None:
    broker = make_broker(max_msg_size=1000)
    bodies = [b"a" * 900] * 4 + [b"b" * 1500] + [b"c" * 900] * 4
    with Writer(broker.tcp_address, max_body_size=2000, publish_timeout=10.0, **QUICK) as writer:
        with pytest.raises(errors.BadMessageError, match=r"\(nsqd confirmed 8 of the batch's 9 messages\)$") as caught:
            writer.multipublish(topic, bodies)
        assert depth(broker, topic) == 8  # every part has its outcome by then
        error = caught.value
        assert (error.taken, error.total, error.code, error.address) == (8, 9, "E_BAD_MESSAGE", broker.tcp_address)
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
        with pytest.raises(errors.BadMessageError) as caught:  # one part: all or nothing
            writer.multipublish(topic, [b"b" * 1500])
        assert (caught.value.taken, caught.value.total) == (None, None)
    assert depth(broker, topic) == 8


@pytest.mark.rule("PUB-2")
def test_parts_of_unknown_outcome_do_not_count_as_taken(embedded: Broker) -> None:
    with Writer(embedded.nsqd_tcp_address, max_body_size=2000, publish_timeout=1.0, **QUICK) as writer:
        writer.publish("t", b"first")
        embedded.faults.delay(3.0, "MPUB", times=1)  # later answers wait behind it
        with pytest.raises(errors.PublishTimeout, match=r"nsqd confirmed 0 of the batch's 6 messages") as caught:
            writer.multipublish("t", [b"x" * 900] * 6)
        assert (caught.value.taken, caught.value.total) == (0, 6)


def test_what_a_split_batch_tells_is_not_told_of_other_publishes() -> None:
    errors_seen: list[errors.NSQError] = []
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        silent.settimeout(20.0)
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with Writer(address, max_body_size=2000, tls=True, **QUICK) as writer:
            alone = writer.publish_nowait("t", b"x", timeout=2.0)
            batch = gevent.spawn(writer.multipublish, "t", [b"x" * 900] * 4, timeout=2.0)
            gevent.sleep(0)  # both wait for the one connection, and get the one error of it
            peer, _ = silent.accept()
            with peer:
                peer.sendall(b"\0\0\0\6\0\0\0\0OK")
                for wait in (alone.result, batch.get):
                    with pytest.raises(errors.TLSNotGranted) as caught:
                        wait(timeout=20.0)
                    errors_seen.append(caught.value)
    assert [(error.taken, error.total) for error in errors_seen] == [(None, None), (0, 4)]
    assert "batch" not in str(errors_seen[0])
    assert str(errors_seen[1]) == f"{errors_seen[0]} (nsqd confirmed 0 of the batch's 4 messages)"


@pytest.mark.parametrize("coalesce", [False, True])
def test_it_may_be_shared_by_threads_and_greenlets(broker: ServerHandle, topic: str, coalesce: bool) -> None:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for number in range(50):
                writer.publish(topic, b"%d" % number)
        except BaseException as error:
            failures.append(error)

    with Writer(broker.tcp_address, coalesce=coalesce) as writer:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        greenlets = [gevent.spawn(work) for _ in range(4)]
        gevent.joinall(greenlets)
        for thread in threads:
            thread.join()
        assert failures == []
        assert depth(broker, topic) == 400


def test_other_greenlets_run_while_one_waits_for_its_answer(embedded: Broker) -> None:
    embedded.faults.delay(0.5, "PUB", times=1)
    ticks: list[float] = []

    def tick() -> None:
        for _ in range(10):
            gevent.sleep(0.02)
            ticks.append(time.monotonic())

    with Writer(embedded.nsqd_tcp_address) as writer:
        ticking = gevent.spawn(tick)
        writer.publish("t", b"slow")
        assert len(ticks) >= 3  # none, were they held up; 25 on an idle machine
        ticking.join()


def test_a_greenlet_killed_while_it_publishes_hurts_nobody(embedded: Broker) -> None:
    with Writer(embedded.nsqd_tcp_address) as writer:
        writer.publish("t", b"first")
        embedded.faults.delay(0.2, "PUB", times=1)
        waiting = gevent.spawn(writer.publish, "t", b"second")
        gevent.sleep(0.05)
        waiting.kill()
        writer.publish("t", b"third")
        with gevent.Timeout(5):
            writer.flush()
    assert embedded.node.stats()["topics"][0]["depth"] == 3


@pytest.mark.parametrize("coalesce", [False, True])
def test_each_publish_of_many_at_once_gets_its_own_outcome(make_broker: MakeBroker, topic: str, coalesce: bool) -> None:
    broker = make_broker()
    with Writer(broker.tcp_address, coalesce=coalesce) as writer:
        sent = [writer.publish_nowait(topic, b"%d" % n) for n in range(500)]
        assert [p.result() for p in sent] == [None] * 500
        assert all(p.done() for p in sent)
        assert writer.stats().pending == 0
        assert writer.stats().published == 500
    assert depth(broker, topic) == 500


def test_an_address_map_that_fails_once_costs_one_attempt(broker: ServerHandle, topic: str) -> None:
    calls: list[str] = []

    def resolve(host: str, port: int) -> None:
        calls.append(host)
        if len(calls) == 1:
            raise OSError("the resolver rests")

    with Writer(broker.tcp_address, address_map=resolve, **QUICK) as writer:
        writer.publish(topic, b"x", timeout=10.0)
    assert len(calls) == 2


def test_a_subclass_of_bytes_is_a_body(broker: ServerHandle, topic: str) -> None:
    class Text(bytes):  # numpy has one
        pass

    with Writer(broker.tcp_address) as writer:
        writer.publish(topic, Text(b"1"))
        writer.publish(topic, Text(b"2"))  # connected: another way
        writer.publish_nowait(topic, Text(b"3")).result()
        with pytest.raises(errors.InvalidBody):
            writer.publish(topic, Text())
    assert depth(broker, topic) == 3


def test_stats_do_not_connect_a_writer_that_has_published_nothing(embedded: Broker) -> None:
    with Writer(embedded.nsqd_tcp_address) as writer:
        stats = writer.stats()
        assert (stats.state, stats.connections, stats.pending, stats.published) == ("idle", (), 0, 0)
        assert (stats.failed, stats.unknown, stats.reconnects) == (0, 0, 0)
        assert writer.is_idle
        with pytest.raises(errors.InvalidName):
            writer.publish("a b", b"x")
        assert writer.is_idle
        writer.publish("t", b"x")
        stats = writer.stats()
        assert (stats.state, len(stats.connections), stats.published) == ("connected", 1, 1)
        assert not writer.is_idle
    unused = Writer(embedded.nsqd_tcp_address)
    unused.close()
    assert (unused.stats().state, unused.is_idle) == ("closed", True)


def test_publishing_works_in_a_forked_child(broker: ServerHandle, topic: str) -> None:
    with Writer(broker.tcp_address) as writer:
        writer.publish(topic, b"parent")
        child = os.fork()
        if child == 0:
            try:
                writer.publish(topic, b"child", timeout=10.0)
                os._exit(0)
            except BaseException:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        assert status == 0
        writer.publish(topic, b"parent again")
        assert writer.stats().reconnects == 0
    assert depth(broker, topic) == 3
