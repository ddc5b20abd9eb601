"""Waiting for the end, with signals: the first drains, the second ends at once (CLOSE-1)."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from typing import Any

from gnsq_lite.net.runtime import Completion

log = logging.getLogger("gnsq_lite.reader")

#: Seconds between two looks for a signal that came in while nobody could be interrupted.
_LOOK = 0.5


def in_main_thread() -> bool:
    """Whether signals arrive in the calling thread."""
    return threading.current_thread() is threading.main_thread()


def until_signal(ended: Completion, close: Callable[..., Any], *, handle_sigterm: bool = True) -> None:
    """Wait for *ended* and return, or raise its error.

    Ctrl-C, and SIGTERM where nobody handles it, call ``close()``; a second one calls ``close(0)``.  Ctrl-C is raised
    on when all is closed.
    """
    asked: list[int] = []

    def ask(number: int, frame: Any) -> None:
        asked.append(number)
        raise KeyboardInterrupt

    mine = handle_sigterm and in_main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if mine:
        signal.signal(signal.SIGTERM, ask)
    try:
        try:
            while not ended.wait(_LOOK):
                pass
        except KeyboardInterrupt:
            _drain(close)
            if not asked:
                raise
        ended.result(0)
    finally:
        if mine:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _drain(close: Callable[..., Any]) -> None:
    log.info("closing; once more to end at once")
    try:
        close()
    except KeyboardInterrupt:
        log.warning("ending at once")
        close(0.0)
