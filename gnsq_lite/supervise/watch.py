"""Notices changed sources by their modification times: nothing to install, and works on every file system."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable, Iterable

#: Installed packages are not watched.
_INSTALLED = tuple({sysconfig.get_paths()[name] + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def loaded_sources() -> set[str]:
    """Return the source files of all loaded modules, without installed packages."""
    found = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    return {os.path.abspath(path) for path in found if path and path.endswith(".py") and not _is_installed(path)}


def _is_installed(path: str) -> bool:
    return os.path.abspath(path).startswith(_INSTALLED)


class SourceWatch:
    """Remembers the times of files, and finds one that has changed, appeared or gone since the last look.

    *files* is called at each look, as modules may be loaded later.
    """

    def __init__(self, files: Callable[[], Iterable[str]] = loaded_sources) -> None:
        self._files = files
        self._times = {path: _time(path) for path in files()}

    def changed(self) -> str | None:
        """Return a file that has changed, or None."""
        for path in self._files():
            self._times.setdefault(path, _time(path))
        for path, time in self._times.items():
            if _time(path) != time:
                self._times = {each: _time(each) for each in self._times}
                return path
        return None


def _time(path: str) -> tuple[int, int] | None:
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size
