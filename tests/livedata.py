"""Made-up documents of worker processes for tests of the live page."""

from __future__ import annotations

import time
from typing import Any

from gnsq_lite.stats import COMBINED
from gnsq_lite.supervise.merged import empty, merge


def handler(topic: str, **values: Any) -> dict[str, Any]:
    named = {"topic": topic, "channel": "ch", "name": "app.handle", "state": "connected"}
    zeros = dict.fromkeys(COMBINED, 0)
    return {**zeros, **named, "paused": False, "oldest_handler": 0.0, "errors": [], "running": [], **values}


def process(number: int, **values: Any) -> dict[str, Any]:
    told = {"number": number, "pid": 100 + number, "state": "running", "why": "", "memory": 50 << 20, "runs_for": 5.0}
    return {**told, "restarts": 0, "finished": 0, "in_flight": 0, **values}


def nsqd(address: str, topic: str, depth: int | None = 0) -> dict[str, Any]:
    counts = {"connections": 1, "ready": 5, "share": 5, "in_flight": 0, "last_read_ago": 0.5, "depth": depth}
    return {"address": address, "topic": topic, "channel": "ch", **counts}


def document(**parts: Any) -> dict[str, Any]:
    return merge("0.0", time.time(), [{**empty("0.0", 0.0), **parts}])
