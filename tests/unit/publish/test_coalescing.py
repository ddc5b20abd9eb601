"""Publishes of one loop iteration are sent as one MPUB, and each caller gets its own outcome.

The Producer runs in this thread's hub; its nsqd is a list.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from gevent import hub
from greenlet import greenlet

from gnsq_lite import errors
from gnsq_lite.dialect import Endpoint, PublishRequest
from gnsq_lite.net.loop import loop_here
from gnsq_lite.publish.publication import Publication, Publish
from gnsq_lite.publish.settings import ANY_ENDPOINT
from gnsq_lite.wire import commands
from tests.fakes import FakeClock
from tests.unit.publish.conftest import publish_in_loop
from tests.unit.publish.cores import core_with, end_turn


class Wire:
    """A node that sends each publish and receives no answer."""

    endpoint = Endpoint("nsqd", 4150)
    full = False
    link = SimpleNamespace(close=lambda reason: None)

    def __init__(self) -> None:
        self.connection = self
        self.nsqd = SimpleNamespace(silent=set(), failed_until=0.0)
        self.unanswered: list[Publish] = []
        self.waiting: deque[Publish] = deque()

    def send_publish(self, publication: Publish) -> bool:
        publication.sent = True
        self.unanswered.append(publication)
        return True

    def owes(self) -> list[Publish]:
        return [*self.unanswered, *self.waiting]

    def why_not(self) -> None: ...

    def is_silent(self) -> bool:
        return False

    def fall_silent(self, owed: Publish) -> bool:
        self.nsqd.silent.add(self)
        return True

    def oldest(self) -> Publish | None:
        return self.unanswered[0] if self.unanswered else None

    def close(self) -> None:
        pass

    def forget_done(self) -> None:
        pass

    @property
    def sent(self) -> list[bytes]:
        return [publication.command() for publication in self.unanswered]


class FakeWriter:
    """A Producer, its wire and its clock."""

    def __init__(self, max_body_size: int = 1_000_000, coalesce: bool = True) -> None:
        self.wire, self.clock = Wire(), FakeClock()
        self.producer = core_with(self.clock, coalesce, max_body_size)
        self.producer.nodes[self.wire.endpoint] = self.wire
        self.producer.connected.append(self.wire)

    def publish(self, body: bytes, topic: str = "t", timeout: float = 5.0) -> Any:
        """Publish as a Writer does in a greenlet of the loop."""
        return self.producer.publish(topic, body, timeout)

    def submit(self, body: bytes, topic: str = "t", timeout: float = 5.0) -> Publish:
        """Publish as a Writer does for ``publish_nowait`` and for other threads."""
        deadline = self.clock.now() + timeout
        publication = publish_in_loop(loop_here(), topic, (body,), timeout, deadline)
        self.producer.submit(publication)
        return publication

    def spawn(self, *bodies: bytes, **more: Any) -> list[Any]:
        """Publish each body in a greenlet, and let the turn end."""
        greenlets = [gevent.spawn(self.publish, body, **more) for body in bodies]
        end_turn()
        return greenlets

    def answer(self, error: BaseException | None = None) -> None:
        """Answer each publish that was sent."""
        for publication in [self.wire.unanswered.pop(0) for _ in range(len(self.wire.unanswered))]:
            if error is None:
                self.producer.outcomes.succeeded(publication, None)
            else:
                self.producer.outcomes.failed_with(publication, error)


def outcomes(greenlets: list[Any]) -> list[Any]:
    gevent.joinall(greenlets, timeout=2)
    return [each.exception or each.value if each.ready() else "waiting" for each in greenlets]


@pytest.mark.rule("PUB-1")
def test_publishes_of_one_turn_to_one_topic_are_one_mpub_in_their_order() -> None:
    writer = FakeWriter()
    greenlets = [
        gevent.spawn(writer.publish, b"1"),
        gevent.spawn(writer.submit, b"2"),
        gevent.spawn(writer.publish, b"3"),
    ]
    end_turn()
    assert writer.wire.sent == [commands.multipublish("t", [b"1", b"2", b"3"])]
    assert not any(each.ready() for each in greenlets[::2])
    writer.answer()
    assert outcomes(greenlets[::2]) == [None, None]
    assert greenlets[1].value.result(0) is None
    assert writer.producer.outcomes._cells[0] == 3


def test_one_alone_is_a_pub_and_topics_are_not_mixed() -> None:
    writer = FakeWriter()
    greenlets = [*writer.spawn(b"1"), *writer.spawn(b"2", topic="other")]
    assert writer.wire.sent == [commands.publish("t", b"1"), commands.publish("other", b"2")]
    writer.answer()
    assert outcomes(greenlets) == [None, None]


@pytest.mark.rule("PUB-2")
def test_publishes_of_a_batch_that_may_be_there_already_stay_in_doubt_when_each_goes_alone() -> None:
    writer = FakeWriter()
    greenlets = [gevent.spawn(writer.publish, b"1"), gevent.spawn(writer.submit, b"2")]
    end_turn()
    batch = writer.wire.unanswered.pop()
    batch.in_doubt = True  # an earlier connection was lost before the answer came
    writer.producer.connected.clear()
    writer.producer.on_refused(batch, errors.BadMessageError("E_BAD_MESSAGE", "nsqd:4150"), ANY_ENDPOINT)
    writer.clock.advance(5.0)
    writer.producer.outcomes.expire()
    end_turn()
    assert [type(each) for each in outcomes(greenlets[:1])] == [errors.PublishTimeout]
    with pytest.raises(errors.PublishTimeout):
        greenlets[1].value.result(0)


def test_an_mpub_that_nsqd_cannot_store_is_not_split() -> None:
    writer = FakeWriter()
    greenlets = writer.spawn(b"1", b"2")
    refusal = errors.MpubFailedError("E_MPUB_FAILED disk", "nsqd:4150")
    writer.producer.on_refused(writer.wire.unanswered.pop(), refusal, ANY_ENDPOINT)
    assert (writer.wire.sent, outcomes(greenlets)) == ([], [refusal, refusal])


def test_a_batch_ends_where_the_next_body_would_make_it_too_large() -> None:
    writer, bodies = FakeWriter(max_body_size=4 + 3 * (4 + 20)), [b"%020d" % n for n in range(7)]
    greenlets = writer.spawn(*bodies, b"x" * 100, b"y")
    assert writer.wire.sent == [
        commands.multipublish("t", bodies[:3]),
        commands.multipublish("t", bodies[3:6]),
        commands.publish("t", bodies[6]),
        commands.publish("t", b"x" * 100),
        commands.publish("t", b"y"),
    ]
    for _ in range(4):
        writer.submit(b"z" * 20)
    end_turn()
    assert [publication.count for publication in writer.wire.unanswered[5:]] == [3, 1]
    writer.answer()
    assert outcomes(greenlets) == [None] * 9


@pytest.mark.rule("PUB-2")
def test_each_timeout_has_a_batch_of_its_own() -> None:
    writer = FakeWriter()
    patient = [gevent.spawn(writer.publish, body, timeout=9.0) for body in (b"1", b"2")]
    hasty = writer.spawn(b"3", timeout=2.0)
    held = writer.submit(b"4", timeout=2.0)
    end_turn()
    writer.clock.advance(3.0)
    writer.producer.outcomes.expire()
    assert [type(each) for each in outcomes(hasty)] == [errors.PublishTimeout]
    with pytest.raises(errors.PublishTimeout, match="within 2 s"):
        held.result(1)
    assert not any(each.ready() for each in patient)
    writer.answer()
    assert outcomes(patient) == [None, None]


@pytest.mark.parametrize("coalesce", [True, False])
def test_a_caller_that_is_killed_leaves_the_others_and_is_not_resumed_elsewhere(coalesce: bool) -> None:
    writer = FakeWriter(coalesce=coalesce)
    resumed: list[str] = []

    def impatient() -> None:
        try:
            writer.publish(b"2")
        except gevent.Timeout:
            resumed.append(hub.get_hub().switch())  # by whoever does

    others = writer.spawn(b"1")
    third = gevent.spawn(impatient)
    others += writer.spawn(b"3")
    third.kill(gevent.Timeout, block=False)
    end_turn()
    writer.answer()
    end_turn()
    loop_here().soon(third.switch, "by the test")
    assert outcomes([*others, third]) == [None, None, None]
    assert resumed == ["by the test"]


def test_a_bare_greenlet_that_dies_does_not_keep_the_others_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    writer, told = FakeWriter(), []
    monkeypatch.setattr(hub.get_hub(), "handle_error", lambda *what: told.append(what[1]))

    def dies() -> None:
        writer.publish(b"2")
        raise ValueError("after its publish")

    greenlets = writer.spawn(b"1")
    loop_here().soon(greenlet(dies, hub.get_hub()).switch)
    greenlets += writer.spawn(b"3")
    writer.answer()
    assert outcomes(greenlets) == [None, None]
    assert told == [ValueError]


@pytest.mark.parametrize("coalesce", [True, False])
def test_more_callers_than_are_resumed_at_once_are_all_resumed(coalesce: bool) -> None:
    writer = FakeWriter(coalesce=coalesce)
    publish: Callable[[bytes], Any] = writer.publish if coalesce else lambda body: writer.submit(body).result()
    greenlets = [gevent.spawn(publish, b"x") for _ in range(1500)]
    with gevent.Timeout(20):
        while not all(each.ready() for each in greenlets):
            writer.answer()
            end_turn()
    assert outcomes(greenlets) == [None] * 1500


def test_what_is_not_coalesced_does_not_overtake_what_is() -> None:
    writer = FakeWriter()
    first = writer.submit(b"1")
    batch = publish_in_loop(loop_here(), "t", [b"2", b"3"], 5.0, writer.clock.now() + 5, batch=True)
    writer.producer.submit(batch)
    last = writer.submit(b"4")
    end_turn()
    assert writer.wire.sent == [commands.publish("t", b"1"), batch.command(), commands.publish("t", b"4")]
    writer.answer()
    assert [each.result(0) for each in (first, batch, last)] == [None] * 3


def test_room_for_publishes_nobody_waits_for_is_given_back() -> None:
    writer = FakeWriter()
    publications = []
    for _ in range(3):
        publication = publish_in_loop(loop_here(), "t", (b"x" * 10,), 5.0, writer.clock.now() + 5)
        writer.producer.outcomes.reserve(publication, 10)
        writer.producer.submit(publication)
        publications.append(publication)
    end_turn()
    assert writer.producer.outcomes.backlog == 30
    writer.answer()
    assert writer.producer.outcomes.backlog == 0


@pytest.mark.parametrize("with_others", [False, True])
def test_a_publish_that_its_thread_gave_up_is_not_sent_and_releases_its_bytes(with_others: bool) -> None:
    writer = FakeWriter()
    publication = publish_in_loop(loop_here(), "t", (b"given up",), 5.0, writer.clock.now() + 5)
    writer.producer.outcomes.reserve(publication, 8)
    writer.producer.submit(publication)
    if with_others:
        writer.submit(b"sent")
    publication._give_up()  # as a thread does while something blocks the loop
    end_turn()
    assert writer.wire.sent == ([commands.publish("t", b"sent")] if with_others else [])
    writer.answer()
    assert writer.producer.outcomes.backlog == 0
    with pytest.raises(errors.NotSent, match="something blocks it"):
        publication.result(0)


@pytest.mark.rule("PUB-2")
def test_a_close_in_the_same_turn_settles_each_and_sends_nothing() -> None:
    writer = FakeWriter()
    waiting, held = gevent.spawn(writer.publish, b"1"), gevent.spawn(writer.submit, b"2")
    gevent.spawn(writer.producer.close, 0.0)
    end_turn()
    assert writer.wire.sent == []
    with pytest.raises(errors.NotSent):
        held.value.result(1)
    assert [type(each) for each in outcomes([waiting])] == [errors.NotSent]


def test_other_requests_are_never_gathered() -> None:
    writer = FakeWriter()
    deferred = publish_in_loop(loop_here(), "t", (b"1",), 5.0, writer.clock.now() + 5)
    deferred.data = commands.defer_publish("t", b"1", 1.0)
    deferred.request = PublishRequest(topic="t", bodies=(b"1",), defer=1.0)
    writer.producer.submit(deferred)
    assert writer.wire.sent == [deferred.data]


@pytest.mark.parametrize("coalesce", [True, False])
def test_a_caller_interrupted_between_its_answer_and_its_turn_is_not_resumed_elsewhere(coalesce: bool) -> None:
    writer = FakeWriter(coalesce=coalesce)
    resumed: list[str] = []

    def interrupted() -> None:
        try:
            writer.publish(b"2")
        except ValueError:
            resumed.append(hub.get_hub().switch())  # by whoever does

    def answer_and_interrupt() -> None:
        writer.answer()
        greenlets[1].throw(ValueError())

    greenlets = [gevent.spawn(writer.publish, b"1"), gevent.spawn(interrupted), gevent.spawn(writer.publish, b"3")]
    end_turn()
    loop_here().soon(answer_and_interrupt)
    end_turn()
    loop_here().soon(greenlets[1].switch, "by the test")
    assert outcomes(greenlets) == [None, None, None]
    assert resumed == ["by the test"]


@pytest.mark.parametrize("coalesce", [True, False])
def test_a_stray_switch_ends_no_wait(coalesce: bool) -> None:
    writer = FakeWriter(coalesce=coalesce)
    greenlets = writer.spawn(b"1", b"2")
    loop_here().soon(greenlets[0].switch, "stray")
    end_turn()
    assert not greenlets[0].ready()
    writer.answer()
    loop_here().soon(greenlets[1].switch, "stray")
    assert outcomes(greenlets) == [None, None]


def test_a_deadline_set_while_others_expire_is_kept() -> None:
    writer = FakeWriter(coalesce=False)
    first = publish_in_loop(loop_here(), "t", (b"x",), 5.0, writer.clock.now() + 5)
    last = publish_in_loop(loop_here(), "t", (b"x",), 60.0, writer.clock.now() + 60)
    again = publish_in_loop(loop_here(), "t", (b"x",), 8.0, writer.clock.now() + 8)
    for publication in (first, last):
        writer.producer.submit(publication)
    Publication(first).add_done_callback(lambda done: writer.producer.submit(again))
    writer.clock.advance(6)
    writer.producer.outcomes.expire()
    with pytest.raises(errors.PublishTimeout):
        first.result(0)
    assert not last.done()
    assert writer.producer.outcomes._check_at == again.deadline
