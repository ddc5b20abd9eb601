"""Counters and groups that many threads share, and the versions that run without the GIL."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable

import pytest

from gnsq_lite.errors import AlreadyAnswered, FreeThreadingError, NSQError
from gnsq_lite.net import os_threads
from gnsq_lite.net.os_threads import Count, WeakGroup, check_versions
from gnsq_lite.testing import make_message
from tests.profiles import repeats


def in_threads(count: int, run: Callable[[int], None]) -> None:
    """Call *run* in *count* threads at the same time, and raise their errors."""
    errors: list[BaseException] = []
    start = threading.Barrier(count)

    def work(number: int) -> None:
        start.wait()
        try:
            run(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


@pytest.fixture(autouse=True)
def _switch_often() -> object:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_a_count_loses_nothing_between_threads() -> None:
    count, each = Count(), repeats(200_000, 5_000)

    def run(number: int) -> None:
        for _ in range(each):
            count.add()
        count.add(number)

    in_threads(8, run)
    assert count.value() == 8 * each + sum(range(8))


class Member:
    """An object that can be referred to weakly."""


def test_of_threads_that_answer_expire_and_keep_a_message_one_gets_it() -> None:
    rounds = repeats(20_000, 1_000)
    messages = [make_message(b"x") for _ in range(rounds)]
    answered, expired = Count(), Count()

    def run(number: int) -> None:
        for message in messages:
            try:
                if number < 2:
                    message.finish()
                elif number < 4:
                    message.requeue()
                elif number == 4:
                    message.enable_async()
                    continue
                else:
                    expired.add(message._expire())
                    continue
            except AlreadyAnswered:
                continue
            answered.add()

    in_threads(6, run)
    assert answered.value() == rounds
    assert [len(message.answers) for message in messages] == [1] * rounds


def test_a_weak_group_lists_its_members_while_threads_add_and_drop_some() -> None:
    group, rounds = WeakGroup(), repeats(20_000, 500)
    kept = [Member() for _ in range(5)]
    for member in kept:
        group.add(member)

    def run(number: int) -> None:
        for _ in range(rounds):
            group.add(Member())
            assert group.members()[:5] == kept

    in_threads(4, run)
    gc.collect()
    assert group.members() == kept
    group.add(kept[0])
    assert group.members() == kept
    group.clear()
    assert group.members() == []


class LazyObject:
    """An object that loads itself when its class is read, as Django's lazy objects do, and cannot."""

    @property
    def __class__(self) -> type:
        raise LookupError("no installed app")

    @__class__.setter
    def __class__(self, value: type) -> None: ...


def test_parking_hubs_at_exit_runs_no_code_of_the_objects_it_looks_through(monkeypatch: pytest.MonkeyPatch) -> None:
    lazy = LazyObject()
    assert gc.is_tracked(lazy)
    monkeypatch.setattr(os_threads, "started_threads", {0})  # the ident of no thread, so no hub is parked
    os_threads._park_hubs()


@pytest.mark.parametrize(
    ("has_gil", "python", "greenlet", "is_refused"),
    [
        (True, (3, 10, 0), "2.0.0", False),
        (True, (3, 13, 0), "3.5.6", False),
        (False, (3, 13, 9), "3.5.6", True),
        (False, (3, 14, 4), "3.5.6", True),
        (False, (3, 14, 5), "3.5.5", True),
        (False, (3, 14, 5), "3.5.6", False),
        (False, (3, 15, 0), "4.0rc1", False),
    ],
)
def test_without_the_gil_old_versions_are_refused_by_name(
    has_gil: bool, python: tuple[int, ...], greenlet: str, is_refused: bool
) -> None:
    if not is_refused:
        check_versions(has_gil, python, greenlet)
        return
    with pytest.raises(FreeThreadingError) as raised:
        check_versions(has_gil, python, greenlet)
    said = str(raised.value)
    assert "Python 3.14.5 and greenlet 3.5.6 or newer" in said
    assert ".".join(map(str, python)) in said
    assert greenlet in said
    assert isinstance(raised.value, (NSQError, ImportError))
