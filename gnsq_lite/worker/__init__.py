"""Runs many Readers in one process, with decorated handlers, middleware and a graceful shutdown.

Each name is imported at its first use, so that a supervisor can import :mod:`gnsq_lite.worker.launch` without gevent.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gnsq_lite.worker.app import Middleware, Worker
    from gnsq_lite.worker.specs import Handler

__all__ = ["Handler", "Middleware", "Worker"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "specs" if name == "Handler" else "app"
    return getattr(importlib.import_module(f"gnsq_lite.worker.{home}"), name)
