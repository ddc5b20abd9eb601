"""A Writer whose nsqds are missing, silent, lost, or servers of another protocol."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import pytest

from gnsq_lite import TLSOptions, Writer, errors
from gnsq_lite.broker import Broker
from tests.certs import Certificates
from tests.conftest import MakeBroker
from tests.frames import frame
from tests.programs import wait_for
from tests.proxy import Proxy
from tests.servers import ServerHandle
from tests.stub_nsqd import shake_hands, small_buffer, steps
from tests.system.clients import QUICK, connected, depth
from tests.system.http_stub import scripted


def test_an_nsqd_that_is_not_there_is_not_sent_and_says_so() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with Writer(address, **QUICK) as writer:
            began = time.monotonic()
            with pytest.raises(errors.NotSent, match=r"within 0\.3 s"):
                writer.publish("t", b"x", timeout=0.3)
            assert 0.25 < time.monotonic() - began < 15.0


@pytest.mark.rule("DISC-6")
def test_when_no_nsqlookupd_answers_the_error_says_so() -> None:
    refused = pytest.raises(errors.NotSent, match=r"127\.0\.0\.1:1/\S+ no connection: Connection refused")
    with Writer(lookupd_http_addresses="127.0.0.1:1", publish_timeout=3.0) as writer, refused:
        writer.publish("t", b"x")


@pytest.mark.rule("DISC-6")
@pytest.mark.parametrize("dialect", ["nsq", "youzan"])
@pytest.mark.parametrize("nowait", [False, True])
def test_a_silent_nsqlookupd_is_named(dialect: Any, nowait: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with Writer(lookupd_http_addresses=address, dialect=dialect, publish_timeout=0.5) as writer:
            publish = (
                (lambda: writer.publish_nowait("t", b"x").result()) if nowait else lambda: writer.publish("t", b"x")
            )
            with pytest.raises(errors.NotSent, match=f"nsqlookupd {address} has not answered"):
                publish()


def test_a_host_that_does_not_resolve_is_named() -> None:
    seen: list[str] = []
    with Writer("no-such-host.invalid:4150", **QUICK) as writer:
        with pytest.raises(errors.NotSent) as caught:
            writer.publish("t", b"x", timeout=3.0)
        seen.append(str(caught.value))
    assert "no-such-host.invalid" in seen[0]


@pytest.mark.rule("CONN-5")
def test_a_peer_that_says_nothing_is_given_up() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with (
            Writer(address, handshake_timeout=0.2, **QUICK) as writer,
            pytest.raises(errors.NotSent, match="handshake"),
        ):
            writer.publish("t", b"x", timeout=3.0)


def test_a_port_that_speaks_http_is_named_as_such(broker: ServerHandle) -> None:
    with Writer(broker.http_address, **QUICK) as writer, pytest.raises(errors.NotSent, match="HTTP") as caught:
        writer.publish("t", b"x", timeout=5.0)
    assert isinstance(caught.value.__cause__, errors.ProtocolError)


@pytest.mark.rule("PUB-2")
def test_a_connection_lost_after_sending_leaves_the_outcome_unknown(embedded: Broker) -> None:
    with Writer(embedded.nsqd_tcp_address, **QUICK) as writer:
        writer.publish("t", b"first")
        embedded.faults.disconnect_on("PUB")
        with pytest.raises(errors.OutcomeUnknown, match="outcome is unknown"):
            writer.publish("t", b"second")
        writer.publish("t", b"third")
        assert writer.stats().unknown == 1


@pytest.mark.rule("PUB-2")
def test_an_error_that_comes_in_the_middle_of_a_write_is_heard_although_nsqd_has_closed() -> None:
    """As nsqd does with a message that is too big: it closes with most of it unread, so that the write fails."""
    refusal = b"E_BAD_MESSAGE PUB message too big"

    def read_line(connection: socket.socket) -> None:
        while connection.recv(1) != b"\n":
            pass

    with (
        scripted(steps(small_buffer, shake_hands, read_line, frame(1, refusal))) as address,
        Writer(address, max_msg_size=8_000_000, reconnect_delay=0.01) as writer,
    ):
        for _ in range(12):  # either may be seen first
            with pytest.raises(errors.BadMessageError):
                writer.publish("t", bytes(8_000_000))


@pytest.mark.rule("PUB-4")
def test_the_only_nsqd_says_of_each_publish_that_its_disk_is_full_and_takes_the_next_when_it_is_not(
    embedded: Broker,
) -> None:
    embedded.faults.answer("PUB", b"E_PUB_FAILED PUB failed disk full", times=14)
    with Writer(embedded.nsqd_tcp_address, reconnect_delay=0.01, max_reconnect_delay=3600.0) as writer:
        for _ in range(14):  # with pauses that grow the last would be 80 s
            with pytest.raises(errors.PubFailedError, match="disk full"):
                writer.publish("t", b"x", timeout=20.0)
        writer.publish("t", b"x", timeout=20.0)


@pytest.mark.rule("PUB-2")
def test_with_retries_a_publish_of_unknown_outcome_is_sent_again(embedded: Broker) -> None:
    with Writer(embedded.nsqd_tcp_address, retries=2, **QUICK) as writer:
        writer.publish("t", b"first")
        embedded.faults.disconnect_on("PUB")
        writer.publish("t", b"second")
    assert embedded.node.stats()["topics"][0]["depth"] >= 2


@pytest.mark.rule("PUB-2")
def test_a_repeated_publish_that_fails_has_an_unknown_outcome(embedded: Broker) -> None:
    """The nsqd of the first attempt may have the message, whatever happens to the second attempt."""
    with Writer(embedded.nsqd_tcp_address, retries=1, **QUICK) as writer:
        writer.publish("t", b"first")
        embedded.faults.disconnect_on("PUB")
        embedded.faults.answer("PUB", b"E_PUB_FAILED PUB failed")
        with pytest.raises(errors.OutcomeUnknown, match=r"earlier attempt.*E_PUB_FAILED"):
            writer.publish("t", b"second")
    writer = Writer(embedded.nsqd_tcp_address, retries=1, reconnect_delay=60.0, max_reconnect_delay=60.0)
    writer.publish_nowait("t", b"third").result(10.0)
    embedded.faults.disconnect_on("PUB")
    sent = writer.publish_nowait("t", b"fourth")
    writer.close(timeout=0.5)
    with pytest.raises(errors.OutcomeUnknown, match=r"earlier attempt.*closed"):
        sent.result(10.0)


def test_an_answer_that_never_comes_is_a_timeout_and_later_answers_stay_in_order(embedded: Broker) -> None:
    with Writer(embedded.nsqd_tcp_address, **QUICK) as writer:
        writer.publish("t", b"first")
        embedded.faults.delay(0.4, "PUB", times=1)
        with pytest.raises(errors.PublishTimeout, match=r"within 0\.1 s"):
            writer.publish("t", b"slow", timeout=0.1)
        embedded.faults.clear()
        writer.publish("t", b"good")
        embedded.faults.answer("PUB", b"E_BAD_MESSAGE no", close=True)
        with pytest.raises(errors.BadMessageError):
            writer.publish("t", b"refused")


@pytest.mark.rule("PUB-3")
def test_an_idle_writer_answers_heartbeats(make_broker: MakeBroker, topic: str) -> None:
    broker = make_broker()
    with Writer(broker.tcp_address, heartbeat_interval=1.0) as writer:
        writer.publish(topic, b"one")
        time.sleep(2.6)  # nsqd disconnects after two intervals without a command
        writer.publish(topic, b"two")
        assert writer.stats().reconnects == 0


@pytest.mark.rule("PUB-3")
def test_an_idle_writer_survives_a_restart_of_nsqd(broker: ServerHandle, topic: str) -> None:
    with Writer(broker.tcp_address, **QUICK) as writer:
        writer.publish(topic, b"one")
        broker.stop()
        time.sleep(0.05)
        broker.restart()
        writer.publish(topic, b"two")
        assert writer.stats().reconnects >= 1


@pytest.mark.rule("PUB-4")
def test_a_dead_nsqd_is_skipped_and_used_again_later(make_broker: MakeBroker, topic: str) -> None:
    first, second = make_broker(), make_broker()
    both = {first.tcp_address, second.tcp_address}
    with Writer([first.tcp_address, second.tcp_address], **QUICK) as writer:
        for _ in range(10):
            writer.publish(topic, b"x")
        wait_for(lambda: connected(writer) == both)
        for _ in range(10):
            writer.publish(topic, b"x")
        assert depth(first, topic) >= 5
        assert depth(second, topic) >= 5
        second.stop()
        wait_for(lambda: connected(writer) == {first.tcp_address})
        time.sleep(0.05)  # within 20 ms of its last answer a connection is used without a look whether it has ended
        before = depth(first, topic)
        for _ in range(10):
            writer.publish(topic, b"x")
        assert depth(first, topic) == before + 10
        second.restart()
        wait_for(lambda: writer.publish(topic, b"x") or connected(writer) == both)
        before = depth(second, topic)

        def is_used() -> bool:
            writer.publish(topic, b"x")
            return depth(second, topic) > before

        wait_for(is_used)  # threads can use a connection some time after it is there
        before = depth(second, topic)
        for _ in range(40):
            writer.publish(topic, b"x")
        assert 10 <= depth(second, topic) - before <= 30  # the loop, where it sends one, has turns of its own


@pytest.mark.rule("PUB-4")
@pytest.mark.parametrize("coalesce", [False, True])
@pytest.mark.parametrize("timeout", [0.9, 3.0])
def test_a_silent_nsqd_costs_one_publish_and_is_used_again(
    make_broker: MakeBroker, topic: str, timeout: float, coalesce: bool
) -> None:
    good, silent = make_broker(), make_broker()
    with (
        Proxy(silent.tcp_address) as proxy,
        Writer([good.tcp_address, proxy.address], publish_timeout=timeout, coalesce=coalesce, **QUICK) as writer,
    ):
        wait_for(lambda: writer.publish(topic, b"x", timeout=20.0) or len(connected(writer)) == 2)
        proxy.holding = True
        failed = 0
        for _ in range(40):
            try:
                writer.publish(topic, b"x")
            except errors.PublishTimeout:
                failed += 1
        assert failed <= 1
        proxy.holding = False
        proxy.reset()
        before = depth(silent, topic)
        wait_for(lambda: writer.publish(topic, b"x", timeout=20.0) or depth(silent, topic) > before)


@pytest.mark.rule("PUB-2")
@pytest.mark.rule("PUB-4")
def test_with_retries_a_silent_nsqd_costs_no_publish_at_all(make_broker: MakeBroker, topic: str) -> None:
    good, silent = make_broker(), make_broker()
    with (
        Proxy(silent.tcp_address) as proxy,
        Writer([good.tcp_address, proxy.address], publish_timeout=30.0, retries=1, **QUICK) as writer,
    ):
        writer.publish_nowait(topic, b"x").result()
        wait_for(lambda: len(connected(writer)) == 2)
        proxy.holding = True
        began = time.monotonic()
        for publication in [writer.publish_nowait(topic, b"x") for _ in range(100)]:
            publication.result()
        assert time.monotonic() - began < 20.0
        assert depth(good, topic) >= 100


@pytest.mark.rule("PUB-4")
@pytest.mark.parametrize("secure", [False, True])
def test_a_publish_tries_until_its_deadline_while_nsqd_restarts(
    make_broker: MakeBroker, certs: Certificates, topic: str, secure: bool
) -> None:
    options = {"tls_cert": certs.server.cert, "tls_key": certs.server.key} if secure else {}
    tls = TLSOptions(ca_file=certs.ca) if secure else None
    broker = make_broker(**options)
    said_ok = 0
    with (
        Proxy(broker.tcp_address) as proxy,
        Writer(proxy.address, tls=tls, publish_timeout=30.0, retries=1000, **QUICK) as writer,
    ):
        writer.publish(topic, b"x")
        stop = threading.Event()
        failures: list[BaseException] = []

        def publish() -> None:
            nonlocal said_ok
            while not stop.is_set():
                try:
                    writer.publish(topic, b"x")
                    said_ok += 1
                except BaseException as error:
                    failures.append(error)

        thread = threading.Thread(target=publish)
        thread.start()
        for turn in range(10):
            before = said_ok
            proxy.cut_after = (0, 8, 200, 900)[turn % 4]  # also in the middle of what TLS needs
            broker.stop()
            broker.restart()
            time.sleep(0.2)
            proxy.cut_after = None
            proxy.reset()
            wait_for(lambda before=before: said_ok > before)
        stop.set()
        thread.join(60.0)
    assert failures == []


@pytest.mark.rule("PUB-4")
def test_a_balancers_503_is_waited_for(embedded: Broker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as balancer:
        host, port = embedded.nsqd_tcp_address.split(":")
        target = balancer.getsockname()
        with Writer("nsqd:4150", address_map=lambda *_: target, publish_timeout=30.0, **QUICK) as writer:
            publication = writer.publish_nowait("t", b"x")
            for _ in range(3):
                peer, _ = balancer.accept()
                with peer:
                    peer.sendall(b"HTTP/1.1 503 Service Unavailable\r\n\r\n")
            assert not publication.done()
            target = host, int(port)
            publication.result(30.0)
