"""What processes tell the live page, made up."""

from __future__ import annotations

import time
from typing import Any

from gnsq_lite.supervise.merged import empty, merge


def handler(topic: str, **values: Any) -> dict[str, Any]:
    counts = ("rate", "failing", "in_flight", "max_in_flight", "ready", "connections", "queued", "running", "received")
    more = ("finished", "requeued", "failures", "given_up", "expired", "backoff_level", "backoff_for")
    named = {"topic": topic, "channel": "ch", "name": "app.handle", "state": "connected"}
    zeros = dict.fromkeys((*counts, *more), 0)
    return {**named, **zeros, "paused": False, "starved": False, "errors": [], **values}


def process(number: int, **values: Any) -> dict[str, Any]:
    told = {"number": number, "pid": 100 + number, "state": "running", "why": "", "memory": 50 << 20, "runs_for": 5.0}
    return {**told, "restarts": 0, "rate": 1.5, "in_flight": 0, **values}


def nsqd(address: str, topic: str, depth: int | None = 0) -> dict[str, Any]:
    counts = {"connections": 1, "ready": 5, "in_flight": 0, "last_read_ago": 0.5, "depth": depth}
    return {"address": address, "topic": topic, "channel": "ch", **counts}


def document(**parts: Any) -> dict[str, Any]:
    return merge("0.0", time.time(), [{**empty("0.0", 0.0), **parts}])
