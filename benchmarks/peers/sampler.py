"""A sampling profiler for the drivers: where the CPU time of a measurement goes, by line and by function.

A signal every few milliseconds of CPU time notes the stack of the main thread, and those of others that do not wait
(as they stand when the main thread gets the interpreter: less exact).  On only with ``GNSQ_BENCH_PROFILE`` set to a
file name; costs a few percent.
"""

from __future__ import annotations

import collections
import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType

#: Seconds the main thread may wait in one go: while it waits it takes no signal.  None where nothing is sampled.
WAIT = 0.003 if os.environ.get("GNSQ_BENCH_PROFILE") else None


@contextlib.contextmanager
def sampling() -> Iterator[None]:
    """Sample what runs inside; write the tables to the file at the end."""
    path = os.environ.get("GNSQ_BENCH_PROFILE")
    if not path:
        yield
        return
    lines: collections.Counter[str] = collections.Counter()
    selves: collections.Counter[str] = collections.Counter()
    stacks: collections.Counter[str] = collections.Counter()
    samples = 0

    def note(frame: FrameType | None) -> None:
        nonlocal samples
        if frame is None:
            return
        samples += 1
        lines[f"{_short(frame.f_code.co_filename)}:{frame.f_lineno}"] += 1
        selves[_name(frame)] += 1
        seen = set()
        while frame is not None:
            seen.add(_name(frame))
            frame = frame.f_back
        stacks.update(seen)

    def on_signal(_number: int, frame: FrameType | None) -> None:
        if frame is not None and not _waits(frame):
            note(frame)
        for other in sys._current_frames().values():
            if other.f_code is not on_signal.__code__ and not _waits(other):
                note(other)

    switching = sys.getswitchinterval()
    sys.setswitchinterval(0.0001)  # or the other threads are only seen where they wait
    signal.signal(signal.SIGPROF, on_signal)
    signal.setitimer(signal.ITIMER_PROF, 0.001, 0.001)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.setswitchinterval(switching)
        with open(path, "w") as out:
            for title, table in (("self, by line", lines), ("self, by function", selves), ("with callees", stacks)):
                print(f"{title} ({samples} samples)", file=out)
                for name, count in table.most_common(30):
                    print(f"{100 * count / max(1, samples):6.1f} %  {name}", file=out)
                print(file=out)


def _waits(frame: FrameType) -> bool:
    """Whether the thread of *frame* only waits: in a lock, or for gevent's own threads."""
    return frame.f_code.co_filename.endswith(("/threading.py", "/gevent/_threading.py", "/gevent/threadpool.py"))


def _short(path: str) -> str:
    return "/".join(path.split("/")[-3:])


def _name(frame: FrameType) -> str:
    return f"{_short(frame.f_code.co_filename)} {getattr(frame.f_code, 'co_qualname', frame.f_code.co_name)}"
