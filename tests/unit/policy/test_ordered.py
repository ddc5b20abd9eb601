"""Each partition handles one message at a time, and a failed message again before all later messages (YZ-6)."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_lite.policy.ordered import Decision, OrderedPartition
from tests.fakes import FakeClock

pytestmark = pytest.mark.rule("YZ-6")


@dataclass(eq=False)
class Note:
    id: bytes
    deadline: float
    attempts: int = 1


def a_partition() -> tuple[OrderedPartition, FakeClock]:
    clock = FakeClock(0.0)
    return OrderedPartition(clock), clock


def test_the_second_message_waits_for_the_end_of_the_first() -> None:
    partition, _ = a_partition()
    first, second = Note(b"1", 60), Note(b"2", 60)
    assert partition.arrived(first) == [Decision("handle", first)]
    assert partition.arrived(second) == []
    assert partition.finished(first) == [Decision("handle", second)]
    assert partition.finished(second) == []
    assert partition.close() == []


def test_a_failed_message_is_held_for_its_delay_and_then_sent_back_at_once() -> None:
    partition, _ = a_partition()
    first = Note(b"1", 60)
    partition.arrived(first)
    assert partition.failed(first, 5.0) == [Decision("hold", first, 5.0)]
    assert partition.handler_returned(first) == []
    assert partition.release(first) == [Decision("send_back", first)]
    again = Note(b"1", 120, 2)
    assert partition.arrived(again) == [Decision("handle", again)]


def test_a_delay_that_does_not_fit_before_the_deadline_is_cut() -> None:
    partition, clock = a_partition()
    first = Note(b"1", 60)
    partition.arrived(first)
    assert partition.failed(first, 90.0) == [Decision("hold", first, 59.0)]
    partition, clock = a_partition()
    late = Note(b"1", 2.0)
    partition.arrived(late)
    clock.advance(1.0)
    assert partition.failed(late, 90.0) == [Decision("hold", late, 0.9)]
    partition, clock = a_partition()
    partition.arrived(late)
    clock.advance(2.0)
    assert partition.failed(late, 90.0) == [Decision("send_back", late)]
    assert partition.close() == []


def test_a_message_with_delay_0_is_not_held() -> None:
    partition, _ = a_partition()
    first = Note(b"1", 60)
    partition.arrived(first)
    assert partition.failed(first, 0.0) == [Decision("send_back", first)]
    assert partition.close() == []


def test_messages_after_a_failed_message_are_sent_back_after_it() -> None:
    # a correct server does not send it yet, and it must not be handled first
    partition, _ = a_partition()
    first, second = Note(b"1", 60), Note(b"2", 60)
    partition.arrived(first)
    partition.arrived(second)
    assert partition.failed(first, 5.0) == [Decision("hold", first, 5.0)]
    assert partition.release(first) == [Decision("send_back", first), Decision("send_back", second)]


def test_a_new_delivery_waits_for_the_handler_of_the_old_delivery() -> None:
    partition, clock = a_partition()
    first = Note(b"1", 60)
    partition.arrived(first)
    clock.advance(60)
    again = Note(b"1", 120, 2)
    assert partition.arrived(again) == []
    # the FIN has the same id, which is in flight again, so it counts
    assert partition.finished(first) == [Decision("count_out", again)]
    assert partition.close() == []


def test_a_failed_message_is_held_until_its_newest_deadline_at_most() -> None:
    partition, clock = a_partition()
    first, again = Note(b"1", 60), Note(b"1", 120, 2)
    partition.arrived(first)
    clock.advance(60)
    partition.arrived(again)
    assert partition.failed(first, 10.0) == [Decision("count_out", first), Decision("hold", again, 10.0)]
    assert partition.release(again) == [Decision("send_back", again)]


def test_a_new_delivery_is_handled_if_the_handler_of_the_old_one_did_not_answer() -> None:
    partition, _ = a_partition()
    first, again = Note(b"1", 60), Note(b"1", 120, 2)
    partition.arrived(first)
    partition.handler_returned(first)
    assert partition.arrived(again) == [Decision("handle", again)]
    third = Note(b"1", 180, 3)
    assert partition.arrived(third) == []  # the handler of the second message runs
    assert partition.handler_returned(again) == [Decision("handle", third)]


def test_the_next_message_is_handled_after_a_message_expired_in_the_queue() -> None:
    partition, _ = a_partition()
    first, second = Note(b"1", 60), Note(b"2", 60)
    partition.arrived(first)
    partition.arrived(second)
    assert partition.expired(first) == [Decision("handle", second)]
    partition, _ = a_partition()
    again = Note(b"1", 120, 2)
    partition.arrived(first)
    partition.arrived(again)
    assert partition.expired(first) == [Decision("handle", again)]


def test_closing_sends_back_held_and_waiting_messages_but_not_running_ones() -> None:
    partition, _ = a_partition()
    first, second = Note(b"1", 60), Note(b"2", 60)
    partition.arrived(first)
    partition.arrived(second)
    assert partition.close() == [Decision("send_back", second)]
    assert partition.finished(first) == []
    partition.arrived(first)
    assert partition.failed(first, 5.0) == [Decision("send_back", first)]  # the message is no longer held
    partition, _ = a_partition()
    partition.arrived(first)
    partition.failed(first, 5.0)
    assert partition.close() == [Decision("send_back", first)]
    assert partition.release(first) == []
    assert partition.close() == []


def test_answers_to_unknown_messages_are_ignored() -> None:
    partition, _ = a_partition()
    stray, first = Note(b"9", 60), Note(b"1", 60)
    partition.arrived(first)
    assert partition.finished(stray) == []
    assert partition.handler_returned(stray) == []
    assert partition.expired(stray) == []
    assert partition.release(first) == []
    assert partition.failed(stray, 5.0) == [Decision("send_back", stray)]
    assert partition.failed(first, 5.0) == [Decision("hold", first, 5.0)]
    assert partition.failed(first, 5.0) == [Decision("send_back", first)]


def test_each_delivery_except_the_one_sent_back_is_counted_out() -> None:
    first, again, third = Note(b"1", 60), Note(b"1", 60, 2), Note(b"1", 60, 3)
    for act, decisions in (
        (lambda p: p.failed(first, 0.0), [Decision("count_out", first), Decision("send_back", third)]),
        (lambda p: p.answered_late(first, finished=True), [Decision("count_out", third)]),
        (lambda p: p.answered_late(first, finished=False), [Decision("count_out", third)]),
    ):
        partition, _ = a_partition()
        partition.arrived(first)
        partition.arrived(again)
        assert partition.arrived(third) == [Decision("count_out", again)]
        assert act(partition) == decisions
        assert partition.close() == []
    for end in (lambda p: p.close(), lambda p: p.release(first)):
        partition, _ = a_partition()
        partition.arrived(first)
        partition.failed(first, 5.0)
        partition.arrived(again)
        assert end(partition) == [Decision("send_back", first), Decision("count_out", again)]
        assert partition.close() == []


class Server:
    """A strictly ordered channel: one message in flight, sent again after REQ 0 or after its deadline."""

    def __init__(self, count: int, clock: FakeClock) -> None:
        self.left, self.clock = list(range(count)), clock
        self.sent: Note | None = None
        self.attempts = 0

    def send(self) -> Note | None:
        if self.sent is not None and self.clock.now() >= self.sent.deadline:
            self.sent = None
        if self.sent is not None or not self.left:
            return None
        self.attempts += 1
        self.sent = Note(b"%d" % self.left[0], self.clock.now() + 60, self.attempts)
        return self.sent

    def finish(self, id: bytes) -> None:
        if self.sent is not None and self.sent.id == id:
            self.left.pop(0)
            self.sent, self.attempts = None, 0

    def requeue(self, id: bytes) -> None:
        if self.sent is not None and self.sent.id == id:
            self.sent = None


STEPS = st.lists(
    st.tuples(st.sampled_from(["succeed", "fail", "leave", "wait"]), st.floats(0.0, 100.0)), min_size=5, max_size=60
)


@given(STEPS)
def test_messages_finish_in_order_one_at_a_time_whatever_fails(
    steps: list[tuple[str, float]],
) -> None:
    clock = FakeClock(0.0)
    server, partition = Server(50, clock), OrderedPartition(clock)
    handled: list[Note] = []  # running handlers
    unanswered: list[Note] = []
    order: list[bytes] = []
    held: list[tuple[float, Note]] = []

    def act(decisions: list[Decision]) -> None:
        for decision in decisions:
            note = decision.message
            assert isinstance(note, Note)
            if decision.action == "handle":
                assert not handled
                handled.append(note)
                if not order or order[-1] != note.id:
                    order.append(note.id)
            elif decision.action == "hold":
                assert clock.now() + decision.seconds <= note.deadline
                held.append((clock.now() + decision.seconds, note))
            elif decision.action == "send_back":
                server.requeue(note.id)

    def pump() -> None:
        for due in [h for h in held if h[0] <= clock.now()]:
            held.remove(due)
            act(partition.release(due[1]))
        if (note := server.send()) is not None:
            act(partition.arrived(note))

    for what, seconds in [*steps, *[("wait", 100.0), ("succeed", 0.0)] * 3]:
        pump()
        if what == "wait":
            clock.advance(seconds)
        elif handled:
            note = handled.pop()
            if what == "succeed":
                server.finish(note.id)
                act(partition.finished(note))
            elif what == "fail":
                act(partition.failed(note, seconds))
            else:
                unanswered.append(note)
                act(partition.handler_returned(note))
    numbers = [int(id) for id in order]
    assert numbers == sorted(numbers)
    assert handled or held or unanswered or 50 - len(server.left) > 0  # all messages are handled in the end
