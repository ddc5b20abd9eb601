"""A signal handler that comes in at a chosen place."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import gevent


def struck(step: int, act: Callable[[], Any], strike: Callable[[], Any]) -> bool:
    """Carry *act* out, with a signal at its call or return of that number; return whether it has so many."""
    left, greenlet = step, gevent.getcurrent()

    def look(frame: Any, event: str, called: Any) -> None:
        nonlocal left
        if gevent.getcurrent() is greenlet and called is not sys.setprofile:
            left -= 1
            if not left:
                sys.setprofile(None)
                strike()

    sys.setprofile(look)
    try:
        act()
    finally:
        sys.setprofile(None)
    return left <= 0
