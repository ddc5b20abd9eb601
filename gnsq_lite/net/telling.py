"""Logging where a greenlet's life hangs on it: a filter or a handler of the user's that raises must not end it."""

from __future__ import annotations

import logging
import traceback
from typing import Any


def log_safely(log: logging.Logger, level: int, text: str, *args: Any, **keywords: Any) -> None:
    """Log; what the user's logging raises is printed to standard error, as :mod:`logging` itself does."""
    try:
        log.log(level, text, *args, stacklevel=2, **keywords)
    except Exception:
        traceback.print_exc()
