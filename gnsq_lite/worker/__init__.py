"""Many Readers in one process: decorated handlers, middleware, orderly shutdown."""

from __future__ import annotations

from gnsq_lite.worker.app import Middleware, Worker
from gnsq_lite.worker.specs import Handler

__all__ = ["Handler", "Middleware", "Worker"]
