"""The locks of publishing threads, in C and in Python; and what C refuses to look into."""

from __future__ import annotations

import threading
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from gnsq_lite.publish import carrying
from gnsq_lite.publish.answer_queue import Taken
from gnsq_lite.publish.coalescing import Gathering
from gnsq_lite.publish.publication import Publication
from gnsq_lite.publish.shared_connection import SharedConnection
from tests.native import native_held_lock, native_lock, start_native_thread

LOCKS = {
    "chosen": (carrying.make_lock, carrying.held_lock),
    "Python": (native_lock, native_held_lock),
}


@pytest.fixture(params=LOCKS)
def make(request: pytest.FixtureRequest) -> Any:
    """Return what makes an open lock, and a held one."""
    return LOCKS[request.param]


def test_a_lock_is_held_by_one_and_opened_by_anybody(make: Any) -> None:
    lock = make[0]()
    assert lock.acquire() is True
    assert lock.acquire(False) is False
    assert lock.acquire(True, 0.0) is False
    assert lock.acquire(True, 1e-6) is False
    start_native_thread("opens", lock.release)
    assert lock.acquire(True, 30.0) is True
    lock.release()
    with lock:
        assert lock.acquire(False) is False
    assert lock.acquire(False) is True


def test_a_lock_made_for_waiting_is_held(make: Any) -> None:
    lock = make[1]()
    assert lock.acquire(False) is False
    lock.release()
    with pytest.raises(RuntimeError):
        lock.release()


def test_a_lock_lets_one_in_at_a_time(make: Any) -> None:
    lock, inside, most = make[0](), [0], [0]

    def run() -> None:
        for _ in range(200):
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                inside[0] -= 1

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, inside) == ([1], [0])


class Loose:
    """Has no slots."""


class Slots(Loose):
    """Has one too few."""

    __slots__ = ("messages",)


@pytest.mark.skipif(not carrying.is_accelerated, reason="Python looks into nothing")
def test_what_has_not_the_fields_is_refused() -> None:
    with pytest.raises(AttributeError):
        carrying.know(Loose, Publication, Taken, Gathering, set())
    with pytest.raises(AttributeError):
        carrying.know(Loose, Publication, Slots, Gathering, set())
    with pytest.raises(TypeError):
        carrying.know(None, Publication, Taken, Gathering, set())  # type: ignore[arg-type]
    for wrong in (None, Loose(), object):
        with pytest.raises(TypeError):
            carrying.carry(wrong, wrong, b"")


class Full(deque[Any]):
    """Has room for one."""

    def append(self, thing: Any) -> None:
        if self:
            raise MemoryError
        super().append(thing)


def publication() -> Publication:
    loop: Any = None
    return Publication(loop, "t", (b"x",), 30.0, float("inf"))


@pytest.mark.rule("PUB-2")
@pytest.mark.skipif(not carrying.is_accelerated, reason="Python notes it before it begins")
def test_a_queue_that_was_left_half_way_is_torn() -> None:
    """Else the answer to what is written next would be taken for that to a publish which was never sent."""
    connection: Any = SharedConnection.__new__(SharedConnection)
    first, second = publication(), publication()
    connection._queue, connection._pending, connection._followers = [(first, b"PUB 1")], Full(), deque()
    connection._sender = connection._reader = None
    connection._lent, connection._ending, connection._sends, connection._reads = True, False, False, False
    connection.read_at, connection._lock, connection._fd = float("inf"), carrying.make_lock(), -1
    connection._destination, connection._taken = SimpleNamespace(silent=False), Taken()
    connection._bytes_in = connection._bytes_out = 0
    with pytest.raises(MemoryError):
        carrying.carry(connection, second, b"PUB 2")
    assert connection._sends
    assert connection._sender is second
    assert (list(connection._pending), connection._queue) == ([first], [(second, b"PUB 2")])
