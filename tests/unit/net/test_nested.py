"""What is known of a call that comes in the middle of another one of its thread."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from gnsq_lite.net.nested import Holding, comes_from, holding, holds, is_nested, must_not_wait
from tests.native import native_ident

pytestmark = pytest.mark.rule("PUB-2")


@holds
def hold(ask: Callable[[], bool]) -> bool:
    with Holding():
        return ask()


def asked() -> bool:
    return is_nested()


def test_what_is_called_by_who_holds_something_must_not_wait() -> None:
    assert hold(asked)
    assert hold(must_not_wait)
    assert hold(lambda: hold(asked) and native_ident() in holding)
    assert not asked()
    assert native_ident() not in holding


def test_what_an_exception_has_left_does_not_count() -> None:
    holding.add(native_ident())
    assert not asked()
    holding.discard(native_ident())


def test_another_thread_may_wait_for_who_holds_something() -> None:
    seen: list[bool] = []

    def ask() -> bool:
        thread = threading.Thread(target=lambda: seen.append(asked()))
        thread.start()
        thread.join()
        return asked()

    assert hold(ask)
    assert seen == [False]


def test_who_has_called_is_found() -> None:
    assert hold(lambda: comes_from(hold, 0))
    assert not comes_from(hold, 0)
