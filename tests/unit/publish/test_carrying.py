"""The locks of publishing threads, in C and in Python; and what C refuses to look into."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from gnsq_lite.net.os_threads import native_held_lock, native_lock, start_native_thread
from gnsq_lite.publish import carrying
from gnsq_lite.publish.answer_queue import Taken
from gnsq_lite.publish.publication import Publication

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
        carrying.know(Loose, Publication, Taken)
    with pytest.raises(AttributeError):
        carrying.know(Loose, Publication, Slots)
    with pytest.raises(TypeError):
        carrying.know(None, Publication, Taken)  # type: ignore[arg-type]
    for wrong in (None, Loose(), object):
        with pytest.raises(TypeError):
            carrying.carry(wrong, wrong, b"")
