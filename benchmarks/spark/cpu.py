"""CPU seconds of the processes a benchmark has started, by what they are; reads /proc, so Linux alone."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
#: What a command line says -> what the process is; the first that fits.
_KINDS = (("python_streaming_source_runner", "source"), ("pyspark", "workers"), ("nsqd", "nsqd"))


def seconds() -> dict[tuple[str, int], float]:
    """Return the CPU seconds of every descendant of this process so far: (kind, pid) -> seconds."""
    parents: dict[int, int] = {}
    spent: dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(") ")[2].split()
            except OSError:
                continue  # it ended meanwhile
            parents[int(entry.name)] = int(fields[1])
            spent[int(entry.name)] = (int(fields[11]) + int(fields[12])) / _TICKS
    return {(_kind(pid), pid): used for pid, used in spent.items() if _is_ours(pid, parents)}


def _is_ours(pid: int, parents: dict[int, int]) -> bool:
    above = parents.get(pid, 0)
    while above > 1 and above != os.getpid():
        above = parents.get(above, 0)
    return above == os.getpid()


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
    """Return the CPU seconds spent since *before* by processes that are still there, by kind."""
    result: dict[str, float] = {}
    for (kind, pid), used in seconds().items():
        result[kind] = result.get(kind, 0.0) + used - before.get((kind, pid), 0.0)
    return result
