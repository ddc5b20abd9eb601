"""Which nsqds of a Writer take their turn; without a network and without waiting."""

from __future__ import annotations

from typing import Any

import gevent
import pytest

from gnsq_lite import errors
from gnsq_lite.net.link import Again
from tests.unit.publish.cores import FakeNodes, publish_of


@pytest.mark.rule("PUB-4")
@pytest.mark.parametrize("timeout", [0.05, 5.0, 600.0])
def test_after_one_time_out_a_silent_nsqd_gets_nothing_until_it_answers(timeout: float) -> None:
    writer = FakeNodes()
    silent, good = writer.nodes
    failed = 0
    for _ in range(20):
        publication = writer.publish(timeout)
        if good.unanswered:
            writer.answer(good)
        else:
            writer.later(timeout)
        with pytest.raises(errors.PublishTimeout) if silent.is_silent() and not failed else _nothing():
            publication.result(0)
        failed = len(silent.unanswered)
    assert failed == 1
    writer.answer(silent)
    for _ in range(4):
        writer.publish(timeout)
    assert writer.owed() == [2, 2]


def _nothing() -> Any:
    return memoryview(b"")  # a context that does nothing


@pytest.mark.rule("PUB-4")
def test_an_nsqd_that_owes_one_publish_for_two_looks_gets_no_more_for_now() -> None:
    writer = FakeNodes()
    first, second = writer.publish(60.0), writer.publish(60.0)
    writer.core.check_nodes()
    assert not any(node.is_silent() for node in writer.nodes)
    good, silent = writer.nodes
    writer.answer(good)
    writer.core.check_nodes()
    assert silent.is_silent()
    for _ in range(10):
        writer.publish(60.0)
    assert writer.owed() == [10, 1]
    assert first.done() != second.done()
    writer.answer(silent)
    assert [first.done(), second.done(), silent.is_silent()] == [True, True, False]


@pytest.mark.rule("PUB-2")
def test_what_was_sent_elsewhere_and_got_no_answer_there_either_is_of_unknown_outcome() -> None:
    writer = FakeNodes(retries=1)
    good, silent = writer.nodes
    publications = [writer.publish(3.0), writer.publish(3.0)]
    doubtful = next(each for each in publications if silent.unanswered[0] is each)
    writer.answer(good)
    writer.lose(silent, errors.HeartbeatTimeout("nsqd1", "silent"))
    good.unanswered.appendleft(publish_of(writer.core, b"bad", 3.0))
    writer.lose(good, errors.BadMessageError("E_BAD_MESSAGE"))  # nsqd read nothing behind the bad one
    writer.later(3.0)
    with pytest.raises(errors.PublishTimeout):  # the silent one may have it
        doubtful.result(0)


@pytest.mark.rule("PUB-4")
def test_where_all_are_silent_the_one_that_owes_least_is_used() -> None:
    writer = FakeNodes()
    for _ in range(5):
        writer.publish(1.0)
    writer.later(1.0)
    assert all(node.is_silent() for node in writer.nodes)
    publication = writer.publish(1.0)
    assert writer.owed() == [3, 3]
    least = next(node for node in writer.nodes if node.unanswered[-1] is publication)
    for _ in range(3):
        writer.answer(least)
    assert publication.result(0) is None
    assert not least.is_silent()


@pytest.mark.rule("PUB-4")
def test_a_silent_nsqd_gets_a_publish_while_no_other_is_connected() -> None:
    writer = FakeNodes()
    back, silent = writer.nodes
    writer.leave_the_silent_one_alone()
    writer.publish(9.0)
    assert writer.owed() == [0, 2]
    assert silent.is_silent()
    writer.open(back)
    writer.publish(9.0)
    assert writer.owed() == [1, 2]


@pytest.mark.rule("PUB-4")
def test_while_one_is_silent_the_others_take_turns_evenly() -> None:
    writer = FakeNodes(nodes=3)
    writer.nodes[0].nsqd.silent.add(writer.nodes[0])
    for _ in range(30):
        writer.publish(60.0)
    assert writer.owed() == [0, 15, 15]


@pytest.mark.rule("PUB-4")
@pytest.mark.parametrize("proven", [False, True])
@pytest.mark.parametrize(
    ("error", "mends"),
    [
        (errors.TLSError("nsqd0", "the handshake failed"), True),
        (errors.ProtocolError("HTTP/1.1 503"), True),
        (errors.UnauthorizedError("E_UNAUTHORIZED"), False),
        (errors.CertificateError("nsqd0", "expired"), False),
        (errors.TLSNotGranted("nsqd0", "none"), False),
        (errors.AuthFirstError("E_AUTH_FIRST"), False),
    ],
)
def test_nothing_but_what_cannot_mend_fails_before_the_deadline_and_only_at_first(
    error: errors.NSQError, mends: bool, proven: bool
) -> None:
    writer = FakeNodes(nodes=1)
    writer.core.nsqds.proven = proven
    node = writer.nodes[0]
    node.on_disconnected(node.connection)
    publication = writer.publish(15.0)
    writer.lose(node, error)
    if not (mends or proven):
        assert publication._error is error
        return
    assert not publication.done()
    writer.later(15.0)
    with pytest.raises(errors.NotSent, match="within 15 s") as caught:
        publication.result(0)
    assert caught.value.__cause__ is error
    gevent.sleep(0)


FULL = errors.PubFailedError("E_PUB_FAILED", "no space left on device", "nsqd0")


@pytest.mark.rule("PUB-4")
@pytest.mark.parametrize(
    ("nodes", "unanswered", "error", "again"),
    [
        (1, 1, FULL, Again.SOON),
        (1, 3, FULL, Again.SOON),
        (1, 0, FULL, Again.LATER),
        (1, 1, errors.ConnectionLost("nsqd0", "gone"), Again.LATER),
        (2, 2, FULL, Again.LATER),
    ],
)
def test_an_nsqd_that_refused_a_publish_is_asked_again_soon_where_no_other_is_there(
    nodes: int, unanswered: int, error: errors.NSQError, again: Again
) -> None:
    writer = FakeNodes(nodes)
    for _ in range(unanswered):
        writer.publish()
    assert writer.lose(writer.nodes[0], error) is again


@pytest.mark.rule("PUB-2")
def test_an_nsqd_that_says_nothing_from_the_start_is_named_by_what_could_not_be_sent() -> None:
    writer = FakeNodes(nodes=2)
    writer.nodes[1].error = errors.ConnectError("nsqd1:4150", "refused")
    for node in writer.nodes:
        writer.core.on_disconnected(node)
        node.connection = None
    publication = writer.publish(timeout=1.0)
    writer.later(1.0)
    with pytest.raises(
        errors.NotSent, match="within 1 s: nsqd0:4150: no connection yet; nsqd1:4150: refused"
    ) as caught:
        publication.result(0)
    assert caught.value.__cause__ is writer.nodes[1].error
