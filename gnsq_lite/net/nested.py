"""Calls that come in the middle of another one of the same thread: from a signal handler, or a finalizer.

What the interrupted call holds, a lock or the reading for all, it keeps until the nested one has returned; so that one
must not wait for it.  What holds something is a function marked by :func:`holds`, and adds its thread to
:data:`holding` for as long.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

from gevent._hub_local import get_hub_if_exists
from greenlet import getcurrent

from gnsq_lite.net.forks import on_fork
from gnsq_lite.net.os_threads import native_ident

F = TypeVar("F", bound=Callable[..., Any])

#: The threads that hold something, by ident.  An exception may leave one in here, until it holds something again: ask
#: :func:`is_nested`.
holding: set[int] = set()
_codes: set[Any] = set()

#: Why a call did not wait, and what can be called there.
WHY = (
    "it would wait for itself: this is a signal handler, or a finalizer, in the middle of a call of this thread,"
    " or gevent's own loop"
)


def holds(function: F) -> F:
    """Mark a function that holds something."""
    _codes.add(function.__code__)
    return function


def is_nested() -> bool:
    """Whether the caller has interrupted a call that holds something; ask only if :data:`holding` is not empty."""
    return native_ident() in holding and _is_called_by(_codes, sys._getframe(2))  # who asks may be about to hold, too


def comes_from(function: Callable[..., Any], above: int) -> bool:
    """Whether *function* has called, at some depth, what is *above* so many frames here."""
    return _is_called_by({function.__code__}, sys._getframe(above + 1))


def _is_called_by(codes: set[Any], frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code in codes:
            return True
        frame = frame.f_back
    return False


def must_not_wait() -> bool:
    """Whether the caller would wait for itself: for what it has interrupted, or, being the hub, for the loop."""
    if sys.is_finalizing():  # there are no greenlets any more
        return False
    return (bool(holding) and is_nested()) or getcurrent() is get_hub_if_exists()


class Holding:
    """``with Holding():`` in a function marked by :func:`holds`: a nested call does not wait for what is held there."""

    __slots__ = ("_mine",)

    def __enter__(self) -> None:
        self._mine = native_ident() not in holding
        holding.add(native_ident())

    def __exit__(self, *error: object) -> None:
        if self._mine:
            holding.discard(native_ident())


on_fork(holding.clear)
