"""Merges the status documents of several processes.  All functions are pure.

A document is the reply of ``/api/status`` for one process.  A merged document has the same form.  Merging adds the
counts of the running processes, so totals drop when a process restarts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gnsq_lite.stats import COMBINED, HUNG

Document = dict[str, Any]

_COMBINE: dict[str, Callable[[Iterable[Any]], Any]] = {"sum": sum, "highest": max, "any": any}
#: States by priority.  The merged state is the first of these states that any process has.
_STATES = ("blocked", "backoff", "connecting", "paused", "closing", "closed", "starting", "connected")
#: Number of latest errors that the live page shows for each handler.
ERRORS = 10
#: Number of oldest running calls that the live page shows for each handler.
CALLS = 5


def empty(version: str, at: float) -> Document:
    """Return a document without processes.  *at* is in seconds since 1970."""
    lists: Document = {name: [] for name in ("handlers", "processes", "nsqds", "unavailable")}
    return {"version": version, "at": at, "draining": False, **lists}


def merge(version: str, at: float, documents: Sequence[Document]) -> Document:
    """Merge *documents* into one document."""
    merged = empty(version, at)
    merged["draining"] = any(each["draining"] for each in documents)
    merged["processes"] = _all(documents, "processes")
    merged["nsqds"] = [_nsqd(group) for group in _grouped(_all(documents, "nsqds"), "address", "topic", "channel")]
    lost = _grouped(_all(documents, "unavailable"), "address", "topic", "channel")
    merged["unavailable"] = [group[0] for group in lost]
    merged["handlers"] = [_handler(group) for group in _grouped(_all(documents, "handlers"), "topic", "channel")]
    depths: dict[tuple[str, str], float] = {}
    for nsqd in merged["nsqds"]:
        if nsqd["depth"] is not None:
            key = (nsqd["topic"], nsqd["channel"])
            depths[key] = depths.get(key, 0) + nsqd["depth"]
    for handler in merged["handlers"]:
        handler["depth"] = depths.get((handler["topic"], handler["channel"]))
        handler["hung"] = _hung(handler)
    return merged


def _hung(handler: Document) -> str:
    """Return "warn" if a call is older than HUNG, "bad" if messages wait too or no place is free, or ""."""
    if handler["oldest_handler"] < HUNG:
        return ""
    waits = handler["queued"] or handler["depth"]
    places = (("handlers_running", "concurrency"), ("in_flight", "max_in_flight"))
    is_full = any(0 < handler[most] <= handler[taken] for taken, most in places)
    return "bad" if waits or is_full else "warn"


def _all(documents: Iterable[Document], name: str) -> list[Document]:
    return [each for document in documents for each in document[name]]


def _grouped(rows: Iterable[Document], *names: str) -> Iterable[list[Document]]:
    groups: dict[tuple[Any, ...], list[Document]] = {}
    for each in rows:
        groups.setdefault(tuple(each[name] for name in names), []).append(each)
    return groups.values()


def _nsqd(group: list[Document]) -> Document:
    depths = [each["depth"] for each in group if each["depth"] is not None]
    return {
        **group[0],
        **{name: sum(each[name] for each in group) for name in ("ready", "share", "in_flight", "connections")},
        "last_read_ago": min(each["last_read_ago"] for each in group),
        "depth": depths[0] if depths else None,
    }


def _handler(group: list[Document]) -> Document:
    states = {each["state"] for each in group}
    errors = sorted((error for each in group for error in each["errors"]), key=lambda error: -error["at"])
    running = sorted((call for each in group for call in each["running"]), key=lambda call: -call["seconds"])
    return {
        **{name: group[0][name] for name in ("topic", "channel", "name")},
        "state": next((state for state in _STATES if state in states), group[0]["state"]),
        **{name: _COMBINE[how](each[name] for each in group) for name, how in COMBINED.items()},
        "paused": all(each["paused"] for each in group),
        "oldest_handler": max(each["oldest_handler"] for each in group),
        "kept_in": group[0].get("kept_in", ""),
        "errors": errors[:ERRORS],
        "running": running[:CALLS],
    }
