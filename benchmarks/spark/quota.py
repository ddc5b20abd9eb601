"""CPU quotas for processes, by Linux's control groups: machines of one size where there is but one."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

#: Microseconds a quota is counted over: short, so that nobody waits long for the next.
PERIOD = 20_000


class Quotas:
    """Control groups below *root*, a hierarchy with the controller "cpu", of version 1 or 2; root's."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._groups: dict[str, Path] = {}

    def __enter__(self) -> Quotas:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.lift()

    def limit(self, name: str, cores: float, pids: Iterable[int]) -> None:
        """Let the processes *pids* have *cores* together; what they start later is of the group too."""
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = self._root / f"bench-{os.getpid()}-{name}"
            group.mkdir()
            quota = str(int(cores * PERIOD))
            if (group / "cpu.max").exists():
                (group / "cpu.max").write_text(f"{quota} {PERIOD}")
            else:
                (group / "cpu.cfs_period_us").write_text(str(PERIOD))
                (group / "cpu.cfs_quota_us").write_text(quota)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
                (group / "cgroup.procs").write_text(str(pid))

    def lift(self) -> None:
        """Give the processes back, and remove the groups."""
        for group in self._groups.values():
            for _ in range(100):
                for pid in (group / "cgroup.procs").read_text().split():
                    with contextlib.suppress(ProcessLookupError):
                        (self._root / "cgroup.procs").write_text(pid)
                try:
                    group.rmdir()
                    break
                except OSError:  # one of them was starting another
                    time.sleep(0.02)
        self._groups.clear()
