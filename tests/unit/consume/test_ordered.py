"""The commands and counts of an ordered connection (YZ-6).  The tests use no network and do not wait."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from greenlet import getcurrent

from gnsq_lite.errors import ConnectionLost, NotWritableError
from gnsq_lite.message import Message
from tests.frames import HEARTBEAT, message
from tests.unit.consume.fake_reader import FakeReader

pytestmark = pytest.mark.rule("YZ-6")


def read(reader: FakeReader, *numbers: int, attempts: int = 1) -> bool:
    """Pass a read of these messages to the connection.  Return False if the reading greenlet must handle it."""
    frames = [message(b"x", attempts=attempts, id=b"%016d" % number) for number in numbers]
    return bool(reader.connection._take_messages(b"".join(frames)))


def fin(number: int) -> bytes:
    return b"FIN %016d\n" % number


def req(number: int) -> bytes:
    return b"REQ %016d 0\n" % number


def test_a_message_whose_handler_returns_is_finished() -> None:
    reader = FakeReader(Message.finish, ordered=True)
    for number in range(3):
        assert read(reader, number)
        assert reader.turn() == fin(number)
    assert reader.connection.finished == reader.connection.received == 3
    reader.assert_nothing_is_in_flight()


def test_a_message_whose_handler_waits_is_counted_until_it_is_answered() -> None:
    reader = FakeReader(ordered=True)
    assert read(reader, 1)
    assert reader.connection.in_flight == sum(reader.reported) == 1
    reader.handled[0].finish()
    assert reader.turn() == fin(1)
    reader.assert_nothing_is_in_flight()


def test_messages_of_one_read_are_handled_one_after_the_other() -> None:
    reader = FakeReader(ordered=True)
    assert read(reader, 1, 2, 3)
    for number in (1, 2, 3):
        assert len(reader.handled) == number
        reader.handled[-1].finish()
        assert reader.turn() == fin(number)
    reader.assert_nothing_is_in_flight()


def test_a_read_with_other_frames_is_left_to_the_reading_greenlet() -> None:
    reader = FakeReader(ordered=True)
    for data in (b"", b"\0", HEARTBEAT, message(b"x")[:-1]):
        assert not reader.connection._take_messages(data)
    assert reader.handled == []
    assert read(reader, 1)


def test_answers_that_were_queued_before_a_fin_are_sent_before_it() -> None:
    reader = FakeReader(ordered=True)
    read(reader, 1)
    reader.handled[0].touch()
    reader.handled[0].finish()
    assert reader.turn().split(b" ")[0] == b"TOUCH"
    reader.assert_nothing_is_in_flight()


@pytest.mark.rule("MSG-5")
def test_a_fin_counts_for_each_delivery_of_its_message() -> None:
    reader = FakeReader(ordered=True)
    for _ in range(3):  # a server sends messages in flight again if its channel is reset
        assert read(reader, 1)
    assert len(reader.handled) == 1
    reader.handled[0].finish()
    assert reader.turn() == fin(1)
    reader.assert_nothing_is_in_flight()
    read(reader, 2)
    assert len(reader.handled) == 2


@pytest.mark.rule("MSG-5")
def test_a_req_counts_for_each_delivery_of_its_message() -> None:
    reader = FakeReader(ordered=True)
    read(reader, 1)
    read(reader, 1)
    reader.handled[0].requeue(0.0)
    assert reader.turn() == req(1)
    reader.assert_nothing_is_in_flight()


def test_unanswered_messages_are_requeued_once_at_the_end() -> None:
    reader = FakeReader(ordered=True)
    read(reader, 1, 2)
    reader.connection.send_close()
    assert reader.turn() == b"CLS\n" + req(2)
    assert reader.connection.unanswered() == reader.handled
    reader.handled[0].finish()
    reader.turn()
    reader.assert_nothing_is_in_flight()


@pytest.mark.rule("MSG-5")
@pytest.mark.parametrize("answer", [Message.finish, Message.requeue])
def test_messages_of_a_closed_connection_are_not_handled(answer: Callable[[Message], None]) -> None:
    reader = FakeReader(ordered=True)
    read(reader, 1, 2)
    reader.connection.close(ConnectionLost("nsqd:4150", "reset"))
    answer(reader.handled[0])
    assert reader.turn() == b""
    assert (len(reader.handled), reader.lost, reader.connection.in_flight) == (1, 1, 0)


@pytest.mark.rule("MSG-6")
@pytest.mark.parametrize("comes_again", [False, True])
def test_a_partition_continues_after_a_late_answer(comes_again: bool) -> None:
    reader = FakeReader(ordered=True)
    read(reader, 1)
    reader.clock.advance(62.0)
    if comes_again:
        read(reader, 1, attempts=2)
    assert reader.connection.expire_overdue(reader.clock.now()) == reader.handled
    reader.handled[0].finish()
    assert reader.turn() == fin(1)
    reader.assert_nothing_is_in_flight()
    read(reader, 2)
    assert len(reader.handled) == 2


def test_an_inline_handler_never_runs_in_the_hub() -> None:
    reader = FakeReader(ordered=True, reads_in_hub=False)
    read(reader, 1)
    read(reader, 1, attempts=2)
    reader.connection.loop.hub = getcurrent()
    reader.connection.handler_returned_unanswered(reader.handled[0])
    reader.turn()
    assert len(reader.handled) == 1
    ((_, handle, again),) = reader.loop.spawned
    handle(again)
    assert [message.attempts for message in reader.handled] == [1, 2]


def test_single_messages_are_not_reported_while_flow_control_does_not_watch() -> None:
    reader = FakeReader(Message.finish, ordered=True)
    reader.watches = False
    reader.connection.set_ready(1)
    reader.turn()
    for number in range(3):
        reader.clock.advance(1.0)
        assert read(reader, number)
        assert reader.turn() == fin(number)
        assert reader.connection.received_at == reader.handled[-1].received_at == reader.clock.now()
    assert reader.connection.finished == reader.connection.received == 3
    reader.assert_nothing_is_in_flight()
    assert not read(reader)
    read(reader, 3, 4)  # this server sends several messages at a time
    assert reader.turn() + reader.turn() == fin(3) + fin(4)
    assert reader.connection.in_flight == 0


def lost_after_finishing(number: int, seconds: float = 0.0) -> FakeReader:
    """Return a connection that finished a message, and was lost *seconds* later."""
    reader = FakeReader(Message.finish, ordered=True)
    read(reader, number)
    reader.turn()
    reader.connection.close_if_dead(reader.clock.now())
    reader.clock.advance(seconds)
    reader.connection.close(ConnectionLost("nsqd:4150", "EOF"))
    return reader


def test_a_message_that_was_finished_before_its_connection_was_lost_is_not_handled_again() -> None:
    reader, handled = lost_after_finishing(1), Handled()
    for _ in range(3):  # a leader that cannot write refuses each FIN
        reader = FakeReader(handled, after=reader, ordered=True)
        read(reader, 1)
        assert reader.turn() == fin(1)
        assert reader.connection.finished == 1
        reader.clock.advance(5.0)
        reader.connection.close(NotWritableError("E_FAILED_ON_NOT_WRITABLE"))
    assert handled.numbers == []


class Handled:
    """Handler that records the messages that a Reader would pass to its handler."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def __call__(self, message: Message) -> None:
        if not message.has_responded:
            self.numbers.append(int(message.id))
            message.finish()


def test_a_finished_message_is_handled_again_if_nsqd_had_executed_its_fin() -> None:
    handled = Handled()
    read(
        FakeReader(handled, after=lost_after_finishing(1, 11.0), ordered=True), 1
    )  # the connection lived for 10 s after the FIN
    assert handled.numbers == [1]
    reader = FakeReader(handled, after=lost_after_finishing(1), ordered=True)
    reader.clock.advance(60.0)  # the next connection lived on without a delivery
    read(reader, 1)
    assert handled.numbers == [1, 1]
    reader = FakeReader(handled, after=lost_after_finishing(1), ordered=True)
    read(reader, 2)  # nsqd delivers this one only after the FIN of 1
    read(reader, 1)
    assert handled.numbers == [1, 1, 2, 1]


def test_a_finished_message_is_handled_again_if_its_body_differs_or_after_five_minutes() -> None:
    handled = Handled()
    reader = FakeReader(handled, after=lost_after_finishing(1), ordered=True)
    reader.connection._take_messages(message(b"y", id=b"%016d" % 1))
    assert handled.numbers == [1]
    lost = lost_after_finishing(2)
    lost.clock.advance(301.0)
    read(FakeReader(handled, after=lost, ordered=True), 2)
    assert handled.numbers == [1, 2]


def test_the_same_connection_delivers_a_finished_message_to_a_handler_again() -> None:
    handled = Handled()
    reader = FakeReader(handled, ordered=True)
    read(reader, 1)
    reader.turn()
    read(reader, 1)
    assert handled.numbers == [1, 1]


def test_a_requeued_message_of_a_lost_connection_is_handled_again() -> None:
    reader = FakeReader(lambda message: message.requeue(0.0), ordered=True)
    read(reader, 1)
    reader.turn()
    reader.connection.close(ConnectionLost("nsqd:4150", "EOF"))
    handled = Handled()
    read(FakeReader(handled, after=reader, ordered=True), 1)
    assert handled.numbers == [1]
