"""A signal handler that comes in at a chosen place, or at one place after the other."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import gevent
import greenlet

import gnsq_lite

LIBRARY = str(Path(gnsq_lite.__file__).parent)


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

    gc.disable()  # what it calls would be counted too, now here and now there
    sys.setprofile(look)
    try:
        act()
    finally:
        sys.setprofile(None)
        gc.enable()
    return left <= 0


class EachPlace:
    """``with each_place:`` a signal handler raises *error*, in whatever greenlet or callback of the main thread, at one
    place of the library where none has before: as a function of its begins, or as C returns to one.

    None raises within *spared*, the user's own functions.  One place in *every* is struck, which ones says *share*.
    """

    def __init__(self, error: type[BaseException], *spared: CodeType, every: int = 1, share: int = 0) -> None:
        self._error, self._spared, self._every, self._share = error, spared, every, share
        self._seen: set[tuple[CodeType, int, str]] = set()
        #: Where one has raised last; None: there was no new place.
        self.struck: str | None = None

    def __enter__(self) -> None:
        self.struck = None
        greenlet.settrace(lambda event, switched: sys.setprofile(self._look))
        sys.setprofile(self._look)

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)
        greenlet.settrace(None)

    def _look(self, frame: FrameType, event: str, called: Any) -> None:
        code, place = frame.f_code, (frame.f_code, frame.f_lasti, event)
        if event not in ("call", "c_return") or place in self._seen or not code.co_filename.startswith(LIBRARY):
            return
        if (frame.f_lineno + frame.f_lasti // 2) % self._every != self._share:
            return
        caller: FrameType | None = frame
        while caller is not None:
            if caller.f_code in self._spared:
                return
            caller = caller.f_back
        self._seen.add(place)
        name = getattr(called, "__name__", "") if event == "c_return" else ""
        self.struck = f"{code.co_filename}:{frame.f_lineno} {code.co_name} {name}"
        self.__exit__()
        raise self._error


def surviving(errors: type[BaseException] | tuple[type[BaseException], ...], act: Callable[[], Any]) -> Any:
    """Return what *act* does, called again where it raises *errors*: from the hub they come a moment later."""
    while True:
        try:
            return act()
        except errors:
            pass
