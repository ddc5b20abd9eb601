"""Middleware of a Writer: which hooks run for which publishes, in which order, and exceptions in hooks."""

from __future__ import annotations

import logging
import threading
from typing import Any

import gevent
import pytest

from gnsq_lite import PublishCall, PublishMiddleware, Reader, Writer
from gnsq_lite.broker import Broker
from gnsq_lite.errors import BodyTypeError, ClosedError, InvalidName, MessageTooLarge, NotSent, OptionError
from tests.programs import wait_for
from tests.servers import http_call
from tests.youzan_broker import YouzanBroker


def depth(nsqd: Broker, topic: str = "t") -> int:
    stats = http_call(nsqd.http_address, "GET", "/stats?format=json").json()
    return sum(each["depth"] for each in stats["topics"] or [] if each["topic_name"] == topic)


class Noted(PublishMiddleware):
    """Records each call of a hook."""

    def __init__(self, name: str = "", notes: list[tuple[Any, ...]] | None = None) -> None:
        self.name, self.notes = name, [] if notes is None else notes

    def before(self, call: PublishCall) -> None:
        self.notes.append((f"before{self.name}", call.method, call.topic, list(call.bodies), dict(call.options)))
        call.kept[self] = len(self.notes)

    def after(self, call: PublishCall, error: BaseException | None) -> None:
        assert call.kept[self] > 0
        self.notes.append((f"after{self.name}", call.method, type(error).__name__))


WAYS: dict[str, Any] = {
    "publish": lambda writer: writer.publish("t", b"x"),
    "deferred": lambda writer: writer.publish("t", b"x", defer=0.001, timeout=1.0),
    "publish_nowait": lambda writer: writer.publish_nowait("t", b"x"),
    "multipublish": lambda writer: writer.multipublish("t", iter([b"x", b"y"])),
    "split multipublish": lambda writer: writer.multipublish("t", [b"x" * 60, b"y" * 60]),
}


def in_greenlet(call: Any) -> None:
    greenlet = gevent.spawn(call)
    greenlet.join()
    greenlet.get()


def in_thread(call: Any) -> None:
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]


@pytest.mark.parametrize("coalesce", [False, True])
@pytest.mark.parametrize("where", [in_thread, in_greenlet])
@pytest.mark.parametrize("way", WAYS)
def test_each_way_to_publish_goes_through_before_and_after(nsqd: Broker, way: str, where: Any, coalesce: bool) -> None:
    noted = Noted()
    with Writer(nsqd.nsqd_tcp_address, middleware=[noted], coalesce=coalesce, max_body_size=100) as writer:
        where(lambda: WAYS[way](writer))
        writer.flush()
        wait_for(lambda: len(noted.notes) == 2)
    (_, method, topic, bodies, options), after = noted.notes
    assert (method, topic) == (way.split()[-1].replace("deferred", "publish"), "t")
    assert [body[:1] for body in bodies] == ([b"x", b"y"] if "multi" in way else [b"x"])
    assert options == ({"defer": 0.001, "timeout": 1.0} if way == "deferred" else {})
    assert after == ("after", method, "NoneType")
    wait_for(lambda: depth(nsqd) == len(bodies))


def test_the_first_middleware_is_the_outermost(nsqd: Broker) -> None:
    notes: list[tuple[Any, ...]] = []
    with Writer(nsqd.nsqd_tcp_address, middleware=[Noted("1", notes), Noted("2", notes)]) as writer:
        for way in (writer.publish, writer.publish_nowait):
            way("t", b"x")
            wait_for(lambda: len(notes) == 4)
            assert [note[0] for note in notes] == ["before1", "before2", "after2", "after1"]
            notes.clear()


def test_a_publish_sends_the_topic_and_bodies_that_before_has_set(nsqd: Broker) -> None:
    class Sign(PublishMiddleware):
        def before(self, call: PublishCall) -> None:
            call.topic = "signed"
            call.bodies = [body + b"!" for body in call.bodies]

    with Writer(nsqd.nsqd_tcp_address, middleware=[Sign()], max_msg_size=2) as writer:
        writer.publish("t", b"x")
        writer.multipublish("t", [b"y", b"z"])
        with pytest.raises(MessageTooLarge):
            writer.publish("t", b"xx")  # checked again after the hook
    assert (depth(nsqd), depth(nsqd, "signed")) == (0, 3)


class Broken(PublishMiddleware):
    """Raises in one of its hooks."""

    def __init__(self, hook: str) -> None:
        self.hook = hook

    def before(self, call: PublishCall) -> None:
        if self.hook == "before":
            raise ValueError("no luck")

    def after(self, call: PublishCall, error: BaseException | None) -> None:
        if self.hook == "after":
            raise ValueError("no luck")


@pytest.mark.parametrize("way", WAYS)
def test_an_exception_in_before_raises_not_sent_also_for_the_outer_middleware(nsqd: Broker, way: str) -> None:
    outer, inner = Noted(), Noted()
    with Writer(nsqd.nsqd_tcp_address, middleware=[outer, Broken("before"), inner], max_body_size=100) as writer:
        with pytest.raises(NotSent, match=r"Broken\.before\(\) raised ValueError: no luck") as raised:
            WAYS[way](writer)
        assert isinstance(raised.value.__cause__, ValueError)
        assert writer.is_idle
    assert [note[-1] for note in outer.notes[1:]] == ["NotSent"]
    assert inner.notes == []
    assert depth(nsqd) == 0


@pytest.mark.parametrize("way", WAYS)
def test_an_exception_in_after_is_logged_and_changes_no_outcome(
    nsqd: Broker, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    outer = Noted()
    caplog.set_level(logging.ERROR, "gnsq_lite")
    with Writer(nsqd.nsqd_tcp_address, middleware=[outer, Broken("after")], max_body_size=100) as writer:
        WAYS[way](writer)
        writer.flush()
        wait_for(lambda: len(outer.notes) == 2)
    assert outer.notes[1][-1] == "NoneType"
    wait_for(lambda: "Broken.after() failed" in caplog.text)
    assert "no luck" in caplog.text


def test_after_gets_the_error_of_a_failed_publish_and_the_caller_gets_the_same() -> None:
    noted = Noted()
    with Writer("127.0.0.1:1", middleware=[noted, Broken("after")], publish_timeout=0.2) as writer:
        ways = [*WAYS.values(), lambda writer: WAYS["publish_nowait"](writer).result()]
        ways.remove(WAYS["publish_nowait"])
        for way in ways:
            with pytest.raises(NotSent, match="no nsqd could be reached"):
                way(writer)
    with pytest.raises(ClosedError):
        writer.publish("t", b"x")
    wait_for(lambda: len(noted.notes) == 12)
    after = [note[-1] for note in noted.notes if note[0] == "after"]
    assert after == ["NotSent"] * 5 + ["ClosedError"]


def test_after_gets_the_timeout_that_interrupts_the_publishing_greenlet() -> None:
    noted = Noted()
    with Writer("127.0.0.1:1", middleware=[noted], publish_timeout=5.0) as writer:

        def publish() -> None:
            with gevent.Timeout(0.05, False):
                writer.publish("t", b"x")

        in_greenlet(publish)
        assert [note[-1] for note in noted.notes[1:]] == ["Timeout"]
        writer.close(timeout=0.0)


def test_an_invalid_publish_reaches_no_middleware() -> None:
    noted = Noted()
    with Writer("127.0.0.1:1", middleware=[noted], max_msg_size=3) as writer:
        wrong: list[tuple[type[Exception], Any]] = [
            (InvalidName, lambda: writer.publish("no good", b"x")),
            (BodyTypeError, lambda: writer.publish_nowait("t", "text")),  # type: ignore[arg-type]
            (MessageTooLarge, lambda: writer.multipublish("t", [b"x", b"long"])),
            (TypeError, lambda: writer.publish("t", b"x", defr=1.0)),  # type: ignore[call-arg]
        ]
        for error, call in wrong:
            with pytest.raises(error):
                call()
    assert noted.notes == []


@pytest.mark.parametrize("given", [[print], Noted(), [Noted]], ids=["function", "not a list", "class"])
def test_a_writer_refuses_an_object_that_is_not_middleware(given: Any) -> None:
    with pytest.raises(OptionError, match="PublishMiddleware"):
        Writer(middleware=given)


def test_a_writer_without_middleware_calls_its_methods_directly() -> None:
    """A Writer without middleware has no extra cost per publish."""
    assert not {"publish", "publish_nowait", "multipublish"} & vars(Writer()).keys()


def test_keys_headers_and_receipts_of_youzans_nsq_pass_through() -> None:
    class Signed(Noted):
        def before(self, call: PublishCall) -> None:
            super().before(call)
            if "headers" in call.options:
                call.options["headers"] = {"by": "middleware", **call.options["headers"]}

    signed, came = Signed(), []
    with YouzanBroker() as broker:
        broker.youzan.create_topic("t", partitions=2, ext=True)
        youzan: dict[str, Any] = {"lookupd_http_addresses": broker.lookupd_http_address, "dialect": "youzan"}
        with (
            Reader("t", "ch", came.append, max_in_flight=2, **youzan) as reader,
            Writer(middleware=[signed], **youzan) as writer,
        ):
            wait_for(lambda: len(reader.stats().connections) == 2)
            receipt = writer.publish("t", b"x", key="k", trace_id=7)
            writer.publish("t", b"y", key="k", headers={"a": "1"})
            wait_for(lambda: len(came) == 2)
    assert receipt is not None
    assert receipt.trace_id == 7
    (sent,) = [dict(message.headers) for message in came if message.body == b"y"]
    assert {"by": "middleware", "a": "1"}.items() <= sent.items()
    assert [note[0] for note in signed.notes] == ["before", "after"] * 2


def test_wrap_decides_when_a_call_is_carried_out(nsqd: Broker) -> None:
    class Later(PublishMiddleware):
        calls: list[Any] = []  # noqa: RUF012

        def wrap(self, send: Any) -> Any:
            return lambda call: self.calls.append(lambda: send(call))

    noted = Noted()
    with Writer(nsqd.nsqd_tcp_address, middleware=[Later(), noted]) as writer:
        writer.publish("t", b"x")
        assert (noted.notes, writer.is_idle) == ([], True)
        Later.calls.pop()()
    assert len(noted.notes) == 2
    assert depth(nsqd) == 1
