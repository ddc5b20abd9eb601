"""What becomes of the publishes of a connection: no hub, no socket, no clock."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from gnsq_lite import errors
from gnsq_lite.dialect import PublishRequest
from gnsq_lite.publish.answer_queue import AnswerQueue, Taken

pytestmark = pytest.mark.rule("PUB-2")

LOST = errors.ConnectionLost("nsqd", "gone")
REFUSED = errors.BadMessageError("E_BAD_MESSAGE")


class Publish:
    """A publish that was sent."""

    def __init__(self, name: str, retries: int = 0, done: bool = False, request: PublishRequest | None = None) -> None:
        self.name, self.retries, self.request = name, retries, request
        self.sent, self.in_doubt = True, False
        self._done = done

    def done(self) -> bool:
        return self._done

    def stand_in(self) -> Publish:
        return Publish(f"stand-in of {self.name}", done=True, request=self.request)


def never(request: PublishRequest, body: bytes) -> Any:
    raise AssertionError("OK needs no reading")


def queue(*publishes: Publish, read: Any = never) -> AnswerQueue[Any]:
    return AnswerQueue(publishes, read=read)


def names(publishes: Any) -> list[str]:
    return [publish.name for publish in publishes]


def test_ok_is_for_the_oldest_and_has_no_receipt() -> None:
    owed = queue(Publish("1"), Publish("2"))
    assert owed.receipt(b"OK") is None
    assert owed.popleft().name == "1"


def test_another_answer_is_read_with_what_the_oldest_asked_for() -> None:
    request = PublishRequest(topic="t", bodies=(b"x",), trace_id=7)
    owed = queue(Publish("1", request=request), Publish("2"), read=lambda asked, body: (asked, body))
    assert owed.receipt(b"OK12345") == (request, b"OK12345")


@pytest.mark.parametrize("body", [b"OK", b"what"])
def test_an_answer_to_nothing_is_unexpected(body: bytes) -> None:
    with pytest.raises(errors.UnexpectedFrame, match="without a publish"):
        queue().receipt(body)


def test_an_answer_that_nobody_understands_leaves_the_publish_to_the_end_of_the_connection() -> None:
    owed = queue(Publish("1"))
    with pytest.raises(errors.UnexpectedFrame, match="not an OK"):
        owed.receipt(b"what")
    assert names(owed.lose(LOST).unknown) == ["1"]


def test_after_an_error_frame_only_the_oldest_was_read() -> None:
    first, doubtful = Publish("2"), Publish("3", retries=1)
    doubtful.in_doubt = True
    owed = queue(Publish("1", retries=5), first, Publish("late", done=True), doubtful)
    loss = owed.lose(REFUSED)
    assert loss.refused is not None
    assert loss.refused.name == "1"
    assert (names(loss.again), names(loss.unknown), len(owed)) == (["2", "3"], [], 0)
    assert [(each.sent, each.retries) for each in (first, doubtful)] == [(False, 0), (True, 1)]


def test_a_loss_without_a_word_repeats_what_has_a_try_left_and_the_rest_is_unknown() -> None:
    repeated = Publish("2", retries=1)
    owed = queue(Publish("1"), repeated, Publish("late", retries=3, done=True), Publish("4", retries=2))
    loss = owed.lose(LOST)
    assert loss.refused is None
    assert (names(loss.again), names(loss.unknown), len(owed)) == (["2", "4"], ["1"], 0)
    assert (repeated.retries, repeated.sent, repeated.in_doubt) == (0, True, True)
    second = queue(repeated).lose(LOST)
    assert (names(second.again), names(second.unknown)) == ([], ["2"])


def test_what_is_sent_again_after_a_doubtful_try_stays_in_doubt_though_the_second_nsqd_had_not_read_it() -> None:
    publish = Publish("1", retries=1)
    queue(publish).lose(LOST)
    queue(Publish("bad"), publish).lose(REFUSED)
    assert publish.sent


@pytest.mark.parametrize("error", [LOST, REFUSED])
def test_a_connection_that_owed_nothing_loses_nothing(error: errors.NSQError) -> None:
    loss = queue().lose(error)
    assert (loss.refused, loss.again, loss.unknown) == (None, [], [])


def test_what_is_taken_to_another_nsqd_leaves_a_stand_in_for_its_answer() -> None:
    taken = Publish("2", retries=1)
    owed = queue(Publish("1"), taken, Publish("bound", retries=1), Publish("late", retries=1, done=True))
    assert owed.take_repeatable(lambda publish: publish.name != "bound") == [taken]
    assert names(owed) == ["1", "stand-in of 2", "bound", "late"]
    assert (taken.retries, taken.in_doubt) == (0, True)
    loss = owed.lose(LOST)
    assert (names(loss.again), names(loss.unknown)) == (["bound"], ["1"])


class Counted(Publish):
    """Takes its outcome."""

    count = cost = 1

    def settle(self, value: Any = None) -> bool:
        self.value = value
        return True


def reply(body: bytes) -> bytes:
    return struct.pack(">II", len(body) + 4, 0) + body


@pytest.mark.rule("YZ-9")
def test_a_read_of_traces_settles_each_with_its_receipt() -> None:
    asked = PublishRequest(topic="t", bodies=(b"x",), trace_id=7)
    owed = queue(*(Counted(name, request=asked) for name in "abcd"), read=lambda request, body: (request, body))
    first, second, third, fourth = owed
    total = Taken()
    assert owed.take_oks(reply(b"OK 1") + reply(b"OK") + reply(b"OK 3"), total)
    assert [each.value for each in (first, second, third)] == [(asked, b"OK 1"), None, (asked, b"OK 3")]
    assert (list(owed), total.messages) == ([fourth], 3)


def unreadable(request: PublishRequest, body: bytes) -> Any:
    raise errors.ProtocolError("no trace")


@pytest.mark.rule("YZ-9")
@pytest.mark.parametrize(
    "data",
    [
        reply(b"OK 1") + reply(b"_heartbeat_"),
        reply(b"OK 1")[:-1],
        reply(b"OK 1") + b"\0\0",
        reply(b"OK 1") + reply(b"OK 2") + reply(b"OK 3"),
        reply(b"OK") + reply(b"OK 2"),
        reply(b"_heartbeat_"),
        b"",
    ],
    ids=["heartbeat", "cut", "more", "too many", "not asked", "other", "nothing"],
)
def test_what_is_more_than_answers_is_left_as_it_is(data: bytes) -> None:
    asked = PublishRequest(topic="t", bodies=(b"x",), trace_id=7)
    owed = queue(Counted("1", request=asked), Counted("2"), read=lambda request, body: body)
    assert not owed.take_oks(data, Taken())
    assert names(owed) == ["1", "2"]


@pytest.mark.rule("YZ-9")
def test_a_trace_that_is_not_understood_is_left_to_who_says_so() -> None:
    owed = queue(Counted("1", request=PublishRequest(topic="t", bodies=(b"x",), trace_id=7)), read=unreadable)
    assert not owed.take_oks(reply(b"OK 1"), Taken())
    assert names(owed) == ["1"]
