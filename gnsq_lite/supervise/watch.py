"""Notices that sources have changed, by looking at their times: nothing to install, works on every file system."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable, Iterable

#: What pip and the system have installed is not looked at.
_INSTALLED = tuple({sysconfig.get_paths()[name] + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def loaded_sources() -> set[str]:
    """Return the files of all modules that are loaded, without those of installed packages."""
    found = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    return {os.path.abspath(path) for path in found if path and path.endswith(".py") and not _is_installed(path)}


def _is_installed(path: str) -> bool:
    return os.path.abspath(path).startswith(_INSTALLED)


class SourceWatch:
    """Remembers the times of files, and tells which one changed, came or went.

    *files* is asked anew at each look, as modules are loaded later too.
    """

    def __init__(self, files: Callable[[], Iterable[str]] = loaded_sources) -> None:
        self._files = files
        self._times = {path: _time(path) for path in files()}

    def changed(self) -> str | None:
        """Return a file that is not as it was, or None."""
        for path in self._files():
            self._times.setdefault(path, _time(path))
        for path, time in self._times.items():
            if _time(path) != time:
                return path
        return None


def _time(path: str) -> tuple[int, int] | None:
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size
