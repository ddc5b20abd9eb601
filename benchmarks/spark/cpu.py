"""Reads from /proc (Linux) the CPU seconds of the processes that a benchmark has started, by kind of process."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
#: Text in a command line -> kind of process.  The first text that occurs decides.
_KINDS = (("python_streaming_source_runner", "source"), ("pyspark", "workers"), ("nsqd", "nsqd"))


def seconds() -> dict[tuple[str, int], float]:
    """Return the CPU seconds of every descendant of this process, as (kind, pid) -> seconds."""
    spent = _processes()
    return {(_kind(pid), pid): spent[pid][1] for pid in below(os.getpid(), spent)}


def below(ancestor: int, processes: dict[int, tuple[int, float]] | None = None) -> list[int]:
    """Return the descendants of *ancestor*."""
    found = _processes() if processes is None else processes

    def is_below(pid: int) -> bool:
        while pid > 1 and pid != ancestor:
            pid = found[pid][0] if pid in found else 0
        return pid == ancestor

    return [pid for pid in found if pid != ancestor and is_below(pid)]


def _processes() -> dict[int, tuple[int, float]]:
    """Return pid -> (pid of the parent, CPU seconds) for all processes."""
    found: dict[int, tuple[int, float]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(") ")[2].split()
            except OSError:
                continue  # the process has ended
            found[int(entry.name)] = int(fields[1]), (int(fields[11]) + int(fields[12])) / _TICKS
    return found


def _kind(pid: int) -> str:
    try:
        words = (Path("/proc") / str(pid) / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return "other"
    if words[0].endswith("java"):
        return "jvm"
    command = " ".join(words)
    return next((kind for mark, kind in _KINDS if mark in command), "other")


def since(before: dict[tuple[str, int], float]) -> dict[str, float]:
    """Return the CPU seconds since *before* of the processes that still run, by kind."""
    result: dict[str, float] = {}
    for (kind, pid), used in seconds().items():
        result[kind] = result.get(kind, 0.0) + used - before.get((kind, pid), 0.0)
    return result
