"""A Writer with Youzan's dialect whose nodes fail, on the embedded cluster, through proxies."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from gnsq_lite import Writer, errors
from gnsq_lite.youzan.dialect import YouzanDialect
from gnsq_lite.youzan.partitions import partition_of
from tests.native import native_lock
from tests.system.publishing_threads import Ways
from tests.youzan_broker import YouzanBroker

QUICK = {"reconnect_delay": 0.05, "max_reconnect_delay": 0.2}


@pytest.fixture
def ways() -> Iterator[Ways]:
    with YouzanBroker(nsqds=2) as broker:
        ways = Ways(broker)
        assert ways.leader(0) != ways.leader(1)
        try:
            yield ways
        finally:
            for proxy in ways.proxies.values():
                proxy.__exit__(None, None, None)


@pytest.mark.rule("PUB-4")
@pytest.mark.parametrize("fault", ["silent", "refusing", "silent from the start"])
def test_a_publish_without_a_key_avoids_a_node_that_cannot_be_reached(ways: Ways, fault: str) -> None:
    bad = ways.of_partition[0]
    with ways.writer(publish_timeout=4.0) as writer:
        if fault == "silent from the start":
            bad.holding = True
        else:
            for _ in range(4):
                writer.publish("t", b"x")
        if fault == "silent":
            bad.holding = True
        elif fault == "refusing":
            bad.refusing = True
            bad.reset()
        failed, slow = 0, 0
        for _ in range(40):
            began = time.monotonic()
            try:
                writer.publish("t", b"y")
            except errors.PublishError:
                failed += 1
            slow += time.monotonic() - began > 2.0  # a new attempt at a failed node takes up to a second
        assert failed <= 1
        assert slow <= 5  # 1; a Writer that does not avoid the partition waits at every second publish
        bad.holding = bad.refusing = False
        bad.reset()
        before = len(ways.broker.youzan.bodies("t", 0))
        deadline = time.monotonic() + 30.0
        while len(ways.broker.youzan.bodies("t", 0)) == before:
            assert time.monotonic() < deadline, "the node that came back is not used"
            writer.publish("t", b"z", timeout=20.0)


@pytest.mark.rule("YZ-5")
def test_a_key_of_a_silent_partition_goes_nowhere_else(ways: Ways) -> None:
    key = next(str(n) for n in range(100) if partition_of(b"%d" % n, 2) == 0)
    with ways.writer(publish_timeout=1.0, retries=3) as writer:
        for _ in range(4):
            writer.publish("t", b"x")
        ways.of_partition[0].holding = True
        for _ in range(3):
            with pytest.raises(errors.PublishError):
                writer.publish("t", b"keyed", key=key)
            writer.publish("t", b"any")
    assert b"keyed" not in ways.broker.youzan.bodies("t", 1)


class Heard:
    """Hears what goes to nsqd."""

    def __init__(self) -> None:
        self._lock = native_lock()
        self.data = b""

    def up(self, data: bytes) -> None:
        with self._lock:
            self.data += data

    def down(self, data: bytes) -> None:
        pass

    def passed(self, count: int) -> None:
        pass


@pytest.mark.rule("YZ-9")
def test_a_traced_publish_that_is_sent_again_keeps_its_trace_id(ways: Ways) -> None:
    heard = Heard()
    with ways.writer(dialect=YouzanDialect(trace=True), retries=2) as writer:
        first = writer.publish("t", b"first", partition=0)
        proxy = ways.of_partition[0]
        proxy.reset()
        proxy.tap = lambda: heard
        proxy.cut_after = 0  # its answers are lost, from the handshake on
        sent = writer.publish_nowait("t", b"again", partition=0)
        proxy.cut_after = None
        proxy.reset()
        ways.broker.faults.disconnect_on("PUB_TRACE")
        receipt = sent.result()
    ids = [heard.data[at - 8 : at] for at in _places(heard.data, b"again")]
    assert len(ids) == 2
    assert {int.from_bytes(each, "big") for each in ids} == {receipt.trace_id}
    assert receipt.trace_id != first.trace_id


def _places(data: bytes, what: bytes) -> list[int]:
    found, at = [], data.find(what)
    while at >= 0:
        found.append(at)
        at = data.find(what, at + 1)
    return found


@pytest.mark.rule("YZ-8")
@pytest.mark.parametrize("nowait", [True, False])
def test_without_nsqlookupd_a_refusal_of_the_given_nsqd_is_raised(ways: Ways, nowait: bool) -> None:
    ways.broker.youzan.set_writable("t", 0, False)
    writer = Writer(ways.of_partition[0].address, dialect="youzan", publish_timeout=5.0)
    with writer, pytest.raises(errors.NotWritableError):
        writer.publish_nowait("t", b"x", partition=0).result() if nowait else writer.publish("t", b"x", partition=0)
